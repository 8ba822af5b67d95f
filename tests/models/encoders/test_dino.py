"""The small vision transformer against torchvision's, with the same weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfl.errors import DataError
from rayfl.models.encoders.dino import DinoViTS16, VisionTransformer
from rayfl.models.network import count_parameters

RENAMED = (
    ("encoder.layers.encoder_layer_", "blocks."),
    ("self_attention.in_proj_", "attn.qkv."),
    ("self_attention.out_proj", "attn.proj"),
    ("ln_1", "norm1"),
    ("ln_2", "norm2"),
    ("mlp.0", "mlp.fc1"),
    ("mlp.3", "mlp.fc2"),
    ("encoder.ln", "norm"),
    ("encoder.pos_embedding", "pos_embed"),
    ("class_token", "cls_token"),
    ("conv_proj", "patch_embed.proj"),
)


@pytest.fixture(scope="module")
def reference() -> nn.Module:
    """Two layers, two heads of 64, patches of 8 pixels on 24x24 images; its head answers with the
    class token."""
    from torchvision.models import VisionTransformer as Theirs

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model: nn.Module = Theirs(24, 8, num_layers=2, num_heads=2, hidden_dim=128, mlp_dim=512)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2)
    model.heads = nn.Identity()
    return model.eval()


def in_dinos_layout(model: nn.Module) -> dict[str, Tensor]:
    weights = {}
    for name, value in model.state_dict().items():
        for theirs, ours in RENAMED:
            name = name.replace(theirs, ours)
        weights[name] = value
    return weights


@pytest.mark.parametrize(
    ("nest", "prefix"), [(None, ""), ("teacher", "backbone."), ("teacher", "module.backbone.")]
)
def test_the_class_token_is_that_of_the_reference(
    reference: nn.Module, tmp_path: Path, nest: str | None, prefix: str
) -> None:
    weights = {prefix + name: value for name, value in in_dinos_layout(reference).items()}
    if nest:
        weights[f"{prefix}head.weight"] = torch.zeros(3)
    torch.save({nest: weights} if nest else weights, tmp_path / "dino.pth")
    encoder = DinoViTS16(path=str(tmp_path / "dino.pth"), prefix=prefix).build((32, 32, 3))
    assert (encoder.dim, encoder.sight.side) == (128, 24)
    x = torch.randn(3, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(encoder.encode_tensor(x), reference(x), atol=1e-4, rtol=1e-4)


def test_images_are_resized_and_rows_keep_their_bits(reference: nn.Module, tmp_path: Path) -> None:
    torch.save(in_dinos_layout(reference), tmp_path / "dino.pth")
    encoder = DinoViTS16(path=str(tmp_path / "dino.pth")).build((17, 30, 1))
    x = np.random.default_rng(0).integers(0, 256, (35, 17, 30, 1), dtype=np.uint8)
    features = encoder.encode(x)
    assert features.shape == (35, 128)
    assert np.array_equal(encoder.encode(x[::-1]), features[::-1])


def test_the_published_size_has_384_features_and_21_million_parameters() -> None:
    network = VisionTransformer(width=384, depth=12, patch=16, grid=14).eval()
    assert network.side == 224
    assert count_parameters(network) == 21_665_664
    with torch.no_grad():
        assert network(torch.zeros(1, 3, 224, 224)).shape == (1, 384)


def test_a_nested_backbone_asks_for_its_prefix(reference: nn.Module, tmp_path: Path) -> None:
    torch.save(
        {f"backbone.{k}": v for k, v in in_dinos_layout(reference).items()}, tmp_path / "dino.pth"
    )
    with pytest.raises(
        DataError, match=r"must hold its embeddings; got no 'cls_token' in .* Set `prefix`"
    ):
        DinoViTS16(path=str(tmp_path / "dino.pth")).build((32, 32, 3))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"norm.bias": None}, r"missing \(norm.bias\)"),
        ({"dist_token": torch.ones(1)}, r"unknown \(dist_token\)"),
    ],
)
def test_a_file_of_another_transformer_is_refused(
    reference: nn.Module, tmp_path: Path, change: dict[str, Tensor | None], told: str
) -> None:
    weights = {k: v for k, v in {**in_dinos_layout(reference), **change}.items() if v is not None}
    torch.save(weights, tmp_path / "dino.pth")
    with pytest.raises(DataError, match=told):
        DinoViTS16(path=str(tmp_path / "dino.pth")).build((32, 32, 3))


def test_a_width_that_heads_do_not_divide_is_refused(reference: nn.Module, tmp_path: Path) -> None:
    weights = in_dinos_layout(reference) | {"cls_token": torch.zeros(1, 1, 100)}
    torch.save(weights, tmp_path / "dino.pth")
    with pytest.raises(DataError, match="heads of 64; got 100 in"):
        DinoViTS16(path=str(tmp_path / "dino.pth")).build((32, 32, 3))
