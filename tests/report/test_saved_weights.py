"""A report makes networks of configurations and numbers; it runs nothing that lies in a folder."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

import rayfl
from rayfl.errors import DataError
from rayfl.report.feature_space import load_saved_network
from rayfl.report.material import NoData
from rayfl.run.store import Record, read_record
from rayfl.tracking.saved_model import WEIGHTS

SETTINGS: dict[str, Any] = {
    "data": "digits",
    "clients": 4,
    "model": {"name": "mlp", "hidden": [8]},
    "fleet": "inline",
    "tracking": {"enabled": False},
    "training": {"rounds": 1},
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> rayfl.Result:
    result = rayfl.run({**SETTINGS, "output": tmp_path_factory.mktemp("runs")})
    (result.directory / "model" / "data").mkdir(parents=True)
    return result


@pytest.fixture
def record(result: rayfl.Result) -> Record:
    found = read_record(result.directory)
    assert found is not None
    return found


def save(result: rayfl.Result, weights: np.ndarray[Any, Any]) -> None:
    save_file({"weights": weights}, result.directory / "model" / WEIGHTS)


def test_the_network_is_the_one_of_the_run(result: rayfl.Result, record: Record) -> None:
    save(result, result.models[None])
    network = load_saved_network(record)
    images = torch.rand(5, 1, 8, 8)
    with torch.no_grad():
        assert torch.equal(network(images), result.model.eval()(images))


class _Trap:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_beside_the_weights_is_left_alone(
    tmp_path: Path, result: rayfl.Result, record: Record
) -> None:
    trap = pickle.dumps(_Trap(tmp_path / "sprung"))
    for name in ("model.pth", "pickle_module_info.txt"):
        (result.directory / "model" / "data" / name).write_bytes(trap)
    save(result, result.models[None])
    load_saved_network(record)
    (result.directory / "model" / WEIGHTS).unlink()
    with pytest.raises(NoData, match="as a pickle alone, which may hold anybody's code"):
        load_saved_network(record)
    assert not (tmp_path / "sprung").exists()


def test_damaged_weights_are_refused(result: rayfl.Result, record: Record) -> None:
    (result.directory / "model" / WEIGHTS).write_bytes(b"nonsense")
    with pytest.raises(NoData, match="has saved are damaged"):
        load_saved_network(record)


def test_weights_of_another_network_are_refused(result: rayfl.Result, record: Record) -> None:
    save(result, np.zeros(1, np.float32))
    with pytest.raises(DataError, match=r"of this configuration has [\d,]+ weights; got 1"):
        load_saved_network(record)
