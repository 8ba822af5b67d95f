"""Every network: its size, its seed, its two halves, and the images that it refuses."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

from rayfl.errors import ConfigError
from rayfl.models import MODELS
from rayfl.models.blocks import choose_norm, pool_before_relu
from rayfl.models.heads import ProjectedClassifier, build_projection_mlp
from rayfl.models.network import Network, Shape, build_network, count_parameters

RGB: Shape = (32, 32, 3)
GREY: Shape = (28, 28, 1)


def made(spec: Any, shape: Shape = RGB, classes: int = 10, seed: int = 0) -> Network:
    return build_network(MODELS.build(spec), shape, classes, seed)


def spec_of(name: str) -> dict[str, Any]:
    return {"name": name, "network": "resnet18"} if name == "torchvision" else {"name": name}


def same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "count"),
    [
        ({"name": "mnist_cnn"}, GREY, 10, 21_840),
        ({"name": "mnist_cnn_wide"}, GREY, 10, 1_663_370),
        ({"name": "mlp", "hidden": [200, 200]}, GREY, 10, 199_210),
        ({"name": "linear"}, GREY, 10, 7_850),
        ({"name": "vgg"}, RGB, 10, 3_512_650),
        ({"name": "cnn4"}, RGB, 10, 115_658),
        ({"name": "cnn4", "track_running_stats": True}, RGB, 10, 115_658),
        ({"name": "cnn4"}, RGB, 100, 138_788),
        ({"name": "resnet10"}, RGB, 10, 4_903_242),
        ({"name": "resnet18"}, RGB, 10, 11_173_962),
        ({"name": "resnet18"}, (128, 128, 3), 9, 11_173_449),
        ({"name": "resnet18"}, (224, 224, 3), 7, 11_172_423),
        ({"name": "resnet18", "norm": "group"}, RGB, 10, 11_173_962),
        ({"name": "resnet18", "hidden": 1024}, RGB, 100, 11_796_644),
        ({"name": "resnet18", "stem": "imagenet"}, (224, 224, 3), 1000, 11_689_512),
        ({"name": "resnet34"}, RGB, 100, 21_328_292),
        ({"name": "resnet50", "stem": "imagenet"}, (224, 224, 3), 1000, 25_557_032),
        ({"name": "mobilenet"}, RGB, 100, 3_309_476),
        ({"name": "mobilenet"}, RGB, 50, 3_258_226),
        ({"name": "torchvision", "network": "resnet18"}, RGB, 1000, 11_689_512),
    ],
)
def test_a_network_has_as_many_parameters_as_its_paper_says(
    spec: dict[str, Any], shape: Shape, classes: int, count: int
) -> None:
    assert count_parameters(made(spec, shape, classes)) == count


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        ({"stem_norm": True, "final_norm": False}, 11_166_144),
        ({"stem_norm": True, "final_norm": True}, 11_167_168),
        ({}, 11_167_040),
        ({"final_norm": False}, 11_166_016),
    ],
)
def test_the_layouts_of_the_preact_trunk_differ_by_their_normalisations(
    settings: dict[str, bool], count: int
) -> None:
    assert count_parameters(made({"name": "preact_resnet18", **settings}).trunk) == count


def test_resnet10_without_its_head() -> None:
    assert count_parameters(made("resnet10").trunk) == 4_898_112


@pytest.mark.parametrize(("width", "count"), [(50, 18_176), (512, 396_554)])
def test_the_projected_classifier_has_the_size_of_moons_head(width: int, count: int) -> None:
    assert count_parameters(ProjectedClassifier(width, classes=10)) == count


@pytest.mark.parametrize(("inputs", "count"), [(512, 10_500_096), (2048, 16_791_552)])
def test_the_projection_mlp_has_the_size_of_byols(inputs: int, count: int) -> None:
    assert count_parameters(build_projection_mlp(inputs, 4096, 2048)) == count


def test_the_contrastive_online_network_adds_up() -> None:
    trunk = made({"name": "preact_resnet18", "stem_norm": True, "final_norm": False}).trunk
    parts = (trunk, build_projection_mlp(512, 4096, 2048), build_projection_mlp(2048, 4096, 2048))
    assert sum(map(count_parameters, parts)) == 38_457_792


def test_the_projected_classifier_reads_the_projection() -> None:
    head = ProjectedClassifier(5, classes=3, outputs=4)
    features = torch.randn(2, 5, generator=torch.Generator().manual_seed(0))
    z = head.project(features)
    assert z.shape == (2, 4)
    assert torch.equal(head(features), head.classifier(z))


@pytest.mark.parametrize("name", MODELS.names())
def test_logits_are_the_head_of_the_features(name: str) -> None:
    network = made(spec_of(name), classes=7).eval()
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        features = network.features(x)
        logits = network(x)
        assert features.shape == (3, network.feature_dim)
        assert logits.shape == (3, 7)
        assert torch.equal(logits, network.head(features))


@pytest.mark.parametrize("name", [name for name in MODELS.names() if name != "torchvision"])
def test_grey_images_fit(name: str) -> None:
    assert made(name, GREY).eval()(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize(
    "name", ["cnn4", "mlp", "mobilenet", "preact_resnet18", "resnet10", "torchvision"]
)
def test_a_seed_gives_the_same_bits_and_another_seed_others(name: str) -> None:
    first, again, other = (made(spec_of(name), seed=seed) for seed in (3, 3, 4))
    assert same(first, again)
    assert not same(first, other)


@pytest.mark.parametrize("name", ["cnn4", "resnet18", "torchvision"])
def test_building_leaves_the_global_generator_alone(name: str) -> None:
    before = torch.random.get_rng_state()
    made(spec_of(name))
    assert torch.equal(before, torch.random.get_rng_state())


def test_a_built_network_is_in_training_mode() -> None:
    assert all(part.training for part in made("vgg").modules())


def test_every_weight_receives_a_gradient() -> None:
    network = made({"name": "preact_resnet18"}, (8, 8, 3), 4)
    network(torch.rand(4, 3, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in network.parameters())


@pytest.mark.parametrize("memory", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("values", ["drawn", "tied", "low"])
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_the_maximum_before_a_relu_is_the_same_to_the_last_bit(
    memory: torch.memory_format, values: str, kind: torch.dtype
) -> None:
    """Forward and backward, with several that are the largest, and where none of four is
    positive."""
    drawn = torch.randn(5, 3, 9, 8, generator=torch.Generator().manual_seed(0))
    x = (
        {"drawn": drawn, "tied": drawn.round(), "low": drawn - 1.5}[values]
        .to(kind)
        .contiguous(memory_format=memory)
    )
    weight = torch.randn(5, 3, 4, 4, generator=torch.Generator().manual_seed(1)).to(kind)
    found = []
    for layers in ([nn.ReLU(), nn.MaxPool2d(2)], pool_before_relu(nn.ReLU(inplace=True))):
        leaf = x.clone().requires_grad_()
        out = nn.Sequential(*layers)(leaf)
        (out * weight).sum().backward()
        assert leaf.grad is not None
        found.append((out, leaf.grad))
    (out, slope), (other, other_slope) = found
    assert torch.equal(out, other)
    assert torch.equal(slope, other_slope)
    assert slope.any()


def test_without_running_statistics_a_prediction_depends_on_its_batch() -> None:
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for track in (False, True):
        network = made({"name": "cnn4", "track_running_stats": track}).eval()
        alone, together = network(x[:1]), network(x)[:1]
        assert torch.allclose(alone, together, atol=1e-6) is track
        assert any("running" in name for name in network.state_dict()) is track


@pytest.mark.parametrize("name", ["vgg", "cnn4", "mobilenet", "preact_resnet18", "resnet10"])
def test_group_normalisation_keeps_no_statistics(name: str) -> None:
    network = made({"name": name, "norm": "group"})
    assert not any(isinstance(part, nn.BatchNorm2d) for part in network.modules())
    assert not list(network.buffers())


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (16, 16), (48, 16), (7, 1)])
def test_groups_divide_the_channels(channels: int, groups: int) -> None:
    layer = choose_norm("group")(channels)
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups


def test_widths_of_cnn4_are_free() -> None:
    network = made({"name": "cnn4", "widths": [64, 128, 256, 256]})
    assert [part.out_channels for part in network.modules() if isinstance(part, nn.Conv2d)] == [
        64,
        128,
        256,
        256,
    ]
    assert network.feature_dim == 2 * 2 * 256


def test_the_stem_for_small_images_keeps_their_resolution() -> None:
    small, large = (made({"name": "resnet10", "stem": stem}) for stem in ("cifar", "imagenet"))
    x = torch.zeros(1, 3, 32, 32)
    sides = []
    for trunk in (small.trunk, large.trunk):
        stem = trunk.maxpool(trunk.conv1(x))  # type: ignore[operator]
        sides.append(trunk.layer1(stem).shape[-1])  # type: ignore[operator]
    assert sides == [32, 8]


def test_preact_convolutions_are_he_normal_over_the_fan_out() -> None:
    weights = [
        p.weight for p in made("preact_resnet18").trunk.modules() if isinstance(p, nn.Conv2d)
    ]
    for weight in (w for w in weights if w.numel() > 100_000):
        expected = (2 / (weight.shape[0] * weight.shape[2] * weight.shape[3])) ** 0.5
        assert float(weight.detach().std()) == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(
    ("name", "side"), [("mnist_cnn", 15), ("mnist_cnn_wide", 3), ("vgg", 7), ("cnn4", 15)]
)
def test_an_image_one_pixel_too_small_is_refused(name: str, side: int) -> None:
    with pytest.raises(
        ConfigError, match=rf"large enough .* '{name}'; got {side}x{side}x3\. Use larger images"
    ):
        made(name, (side, side, 3))
    assert made(name, (side + 1, side + 1, 3)).feature_dim > 0


@pytest.mark.parametrize("shape", [(0, 32, 3), (32, 32, 0)])
def test_an_empty_image_is_refused(shape: Shape) -> None:
    with pytest.raises(ConfigError, match="positive image sides, channels and classes; got"):
        made("mlp", shape)


def test_no_classes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"positive image sides, channels and classes; got .* 0"):
        made("linear", classes=0)


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"name": "mlp", "hidden": [0]}, "hidden"),
        ({"name": "cnn4", "widths": []}, "widths"),
        ({"name": "vgg", "dropout": 1.5}, "dropout"),
        ({"name": "resnet18", "stem": "tiny"}, "stem"),
        ({"name": "resnet18", "depth": 20}, "depth"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(settings: dict[str, Any], field: str) -> None:
    with pytest.raises(ValueError, match=field):
        MODELS.build(settings)


@pytest.mark.parametrize("name", MODELS.names())
def test_a_description_builds_the_same_component(name: str) -> None:
    built = MODELS.build(spec_of(name))
    described = MODELS.describe(built)
    assert described["name"] == name
    assert MODELS.build(described) == built


def test_a_network_of_ones_own_is_named_by_its_import_path() -> None:
    assert made("rayfl.models.mlp:Linear", GREY).feature_dim == 784


def test_an_mlp_without_hidden_layers_is_linear() -> None:
    assert count_parameters(made({"name": "mlp", "hidden": []}, GREY)) == count_parameters(
        made("linear", GREY)
    )


def test_naming_networks_imports_no_torch() -> None:
    program = "import sys, rayfl.models; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
