"""Weight files: read whole, without code, and only into the network that they fit."""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from rayfl.errors import ConfigError, DataError
from rayfl.models.weight_files import (
    allow_stand_ins,
    fetch_imagenet_weights,
    find_weights,
    load_exactly,
    read_weights,
    strip_prefix,
)


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


@pytest.fixture
def weights() -> dict[str, Tensor]:
    return OrderedDict(a=torch.arange(6.0).view(2, 3), b=torch.ones(2, dtype=torch.int64))


@pytest.mark.parametrize("nest", [None, "state_dict", "teacher", "model"])
def test_tensors_are_found_wherever_checkpoints_nest_them(
    tmp_path: Path, weights: dict[str, Tensor], nest: str | None
) -> None:
    torch.save(weights if nest is None else {nest: weights, "epoch": 3}, tmp_path / "w.pt")
    found = read_weights(tmp_path / "w.pt")
    assert list(found) == ["a", "b"]
    assert torch.equal(found["a"], weights["a"])


def test_safetensors_are_read(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    save_file(dict(weights), tmp_path / "w.safetensors")
    assert torch.equal(read_weights(str(tmp_path / "w.safetensors"))["a"], weights["a"])


def test_the_old_form_of_pytorch_is_read(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    torch.save(weights, tmp_path / "w.pth", _use_new_zipfile_serialization=False)
    assert torch.equal(read_weights(tmp_path / "w.pth")["b"], weights["b"])


@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_with_code_is_refused_and_the_code_does_not_run(
    tmp_path: Path, weights: dict[str, Tensor], zipped: bool
) -> None:
    marker = tmp_path / "ran"
    torch.save(
        {**weights, "x": Trap(marker)}, tmp_path / "w.pt", _use_new_zipfile_serialization=zipped
    )
    with pytest.raises(
        DataError, match=r"tensors and plain values only; got .*w\.pt.* torch\.save\("
    ):
        read_weights(tmp_path / "w.pt")
    assert not marker.exists()


@pytest.fixture
def lightning(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module with the kinds of class that trainers leave in their checkpoints."""
    module = ModuleType("pytorch_lightning.fake")
    source = (
        "class ModelCheckpoint: pass\n"
        "class AttributeDict(dict): pass\n"
        "class Logger:\n def __init__(self): self.name = 'csv'\n"
    )
    exec(source, module.__dict__)
    monkeypatch.setitem(sys.modules, "pytorch_lightning", ModuleType("pytorch_lightning"))
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def test_what_a_trainer_leaves_in_a_checkpoint_is_never_imported(
    tmp_path: Path,
    weights: dict[str, Tensor],
    lightning: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = {
        "state_dict": weights,
        "callbacks": {lightning.ModelCheckpoint: {"best": 1}},
        "hyper_parameters": lightning.AttributeDict(lr=0.1),
        "loggers": [lightning.Logger()],
    }
    torch.save(checkpoint, tmp_path / "w.ckpt")
    monkeypatch.delitem(sys.modules, "pytorch_lightning.fake")
    assert torch.equal(read_weights(tmp_path / "w.ckpt")["a"], weights["a"])
    assert "pytorch_lightning.fake" not in sys.modules


def test_stand_ins_do_not_outlive_the_reading(tmp_path: Path, lightning: ModuleType) -> None:
    torch.save({"a": torch.ones(1), "c": lightning.ModelCheckpoint}, tmp_path / "w.pt")
    before = torch.serialization.get_safe_globals()
    with allow_stand_ins((tmp_path / "w.pt").read_bytes()):
        assert len(torch.serialization.get_safe_globals()) == len(before) + 1
    assert torch.serialization.get_safe_globals() == before


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (b"", "w.pt"),
        (b"PK\x03\x04 torn", "w.pt"),
        (b"\x08\x00", "w.safetensors"),
        (b"hello", "w.ckpt"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, name: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"weight file .* got .*{name}"):
        read_weights(tmp_path / name)


def test_a_truncated_file_is_named(tmp_path: Path, weights: dict[str, Tensor]) -> None:
    torch.save(weights, tmp_path / "w.pt")
    (tmp_path / "w.pt").write_bytes((tmp_path / "w.pt").read_bytes()[:-200])
    with pytest.raises(DataError, match=r"must be whole .* got .*w\.pt .*Fetch it again"):
        read_weights(tmp_path / "w.pt")


@pytest.mark.parametrize("content", [{"epoch": 3}, [1, 2], {}])
def test_a_file_without_tensors_is_refused(tmp_path: Path, content: Any) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(DataError, match="must hold named tensors; got none in"):
        read_weights(tmp_path / "w.pt")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"must exist; got .*nowhere\.pt\. Check the path"):
        find_weights(str(tmp_path / "nowhere.pt"), "resnet18")


def test_a_prefix_selects_and_is_cut_off(weights: dict[str, Tensor]) -> None:
    assert list(
        strip_prefix({"encoder.a": weights["a"], "head.b": weights["b"]}, "encoder.", "file")
    ) == ["a"]
    with pytest.raises(
        DataError, match=r"of file must start with 'net.'; got encoder, head. Set `prefix`"
    ):
        strip_prefix({"encoder.a": weights["a"], "head.b": weights["b"]}, "net.", "file")


def small() -> nn.Module:
    return nn.Sequential(
        OrderedDict(one=nn.Linear(2, 3), norm=nn.BatchNorm1d(3), fc=nn.Linear(3, 4))
    )


def test_loading_skips_the_head_and_forgives_step_counters() -> None:
    source, target = small(), small()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    given = {
        name: value for name, value in source.state_dict().items() if "num_batches" not in name
    }
    load_exactly(target, {**given, "fc.weight": torch.zeros(9, 3)}, "file", skip=("fc.",))
    after = target.state_dict()
    assert torch.equal(after["one.weight"], source.state_dict()["one.weight"])
    assert torch.equal(after["fc.weight"], before["fc.weight"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"one.weight": None}, r"1 missing \(one.weight\)"),
        ({"two.weight": torch.ones(1)}, r"1 unknown \(two.weight\)"),
        ({"one.bias": torch.ones(5)}, r"1 of another shape \(one.bias\)"),
        ({"fc.bias": None}, r"1 missing \(fc.bias\)"),
    ],
)
def test_a_tensor_out_of_place_is_named_and_nothing_is_loaded(
    change: dict[str, Tensor | None], told: str
) -> None:
    source, target = small(), small()
    before = {name: value.clone() for name, value in target.state_dict().items()}
    given = {k: v for k, v in {**source.state_dict(), **change}.items() if v is not None}
    with pytest.raises(
        DataError, match=f"tensors of file must be those of the network; got {told}"
    ):
        load_exactly(target, given, "file")
    assert all(torch.equal(value, before[name]) for name, value in target.state_dict().items())


@pytest.mark.parametrize("network", ["resnet10", "nothing"])
def test_imagenet_weights_exist_for_torchvisions_networks_only(network: str) -> None:
    with pytest.raises(ConfigError, match=f"that torchvision offers them for; got {network}"):
        fetch_imagenet_weights(network)


def test_imagenet_weights_that_cannot_be_fetched_say_where_to_put_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torchvision.models import ResNet18_Weights

    def offline(*_args: Any, **_settings: Any) -> Any:
        raise OSError("no route")

    monkeypatch.setattr(ResNet18_Weights, "get_state_dict", offline)
    with pytest.raises(
        DataError, match=r"checkpoints/resnet18-\w+\.pth\. Put the file there by hand.*no route"
    ):
        fetch_imagenet_weights("resnet18")
