"""Features of frozen encoders: computed once, cached, given to every place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.fleet.base import BaseFleet
from rayfl.fleet.executor import Holdings
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import Shard
from rayfl.run import features as module
from rayfl.run.features import PARTS_AT_ONCE, encode_rows, share_features
from tests.algorithms.conformance import Row, facts, run_toy, toy_config
from tests.fleet.toys import holdings, spec
from tests.methods import Brightness, Encoding


def fleet_of() -> InlineFleet:
    held = holdings()
    sets = {**held.sets, "train": Shard(held.x, None)}
    prints = {"test": "t", "public": "p", "train": "all"}
    return InlineFleet(
        spec(), Holdings(held.x, held.y, held.order, held.offsets, sets, fingerprints=prints)
    )


def shared(
    fleet: BaseFleet, root: Path, method: Encoding | None = None, dataset: str = "toy"
) -> list[str]:
    """Share, and tell what had to be computed."""
    said: list[str] = []
    share_features(method or Encoding(), fleet, dataset, (2, 2, 1), root, said.append)
    return said


def test_every_place_gets_the_features_of_all_sets(tmp_path: Path) -> None:
    fleet = fleet_of()
    said = shared(fleet, tmp_path)
    assert said == [
        f"encoding {name} with bright: {rows}/{rows}"
        for name, rows in (("public", 5), ("train", 20))
    ]
    expected = fleet.executor.holdings.x.mean(axis=(1, 2, 3), dtype=np.float32)[:, None]
    assert np.array_equal(fleet.executor.features["bright"], expected)
    assert fleet.executor.holdings.sets["test"].features == {}
    assert np.array_equal(fleet.executor.holdings.sets["public"].features["bright"], expected[4:9])


def test_encoding_is_no_part_of_the_bill(tmp_path: Path) -> None:
    fleet = fleet_of()
    shared(fleet, tmp_path)
    assert not any(fleet.costs.take().values())


def test_a_second_run_reads_what_the_first_computed(tmp_path: Path) -> None:
    shared(fleet_of(), tmp_path)
    again = fleet_of()
    assert shared(again, tmp_path) == []
    assert len(again.executor.features["bright"]) == 20


@pytest.mark.parametrize("what", ["dataset", "encoder", "damage"])
def test_anything_else_is_computed_anew(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared(fleet_of(), tmp_path)
    if what == "encoder":
        monkeypatch.setattr(Encoding, "encoders", lambda self: {"bright": Brightness("b")})
    if what == "damage":
        for path in tmp_path.glob("*.npy"):
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    said = shared(fleet_of(), tmp_path, dataset="other" if what == "dataset" else "toy")
    assert len(said) == 2


@pytest.mark.parametrize(("part", "batches"), [(1, 3), (3, 1), (20, 1), (1000, 1)])
def test_parts_do_not_show(part: int, batches: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", part)
    said: list[str] = []
    fleet = fleet_of()
    found = encode_rows(fleet, "train", Brightness(), (2, 2, 1), said.append, np.arange(20))
    assert np.array_equal(
        found[:, 0], fleet.executor.holdings.x.mean(axis=(1, 2, 3), dtype=np.float32)
    )
    assert found.dtype == np.float32
    assert PARTS_AT_ONCE == 8
    assert len(said) == batches
    assert said[-1] == "20/20"


def test_only_what_somebody_owns_is_computed_and_the_rest_when_it_is_needed(tmp_path: Path) -> None:
    half = fleet_of()
    half.owned = np.arange(0, 20, 2)
    assert shared(half, tmp_path)[-1] == "encoding train with bright: 10/10"
    assert np.isnan(half.executor.features["bright"][1::2]).all()
    whole = fleet_of()
    assert shared(whole, tmp_path) == ["encoding train with bright: 10/10"]
    expected = whole.executor.holdings.x.mean(axis=(1, 2, 3), dtype=np.float32)[:, None]
    assert np.array_equal(whole.executor.features["bright"], expected)


def test_a_place_builds_an_encoder_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Any] = []

    def build(self: Brightness, shape: tuple[int, int, int]) -> Brightness:
        built.append(shape)
        return self

    monkeypatch.setattr(module, "PART", 2)
    monkeypatch.setattr(Brightness, "build", build)
    encode_rows(fleet_of(), "train", Brightness(), (2, 2, 1), lambda text: None, np.arange(20))
    assert built == [(2, 2, 1)]


def test_methods_that_ask_for_none_get_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoding, "encoders", lambda self: {})
    fleet = fleet_of()
    assert shared(fleet, tmp_path) == []
    assert fleet.executor.features == {}


def test_a_run_with_features_is_the_same_on_ray(tmp_path: Path, cluster: None) -> None:
    config = toy_config(
        Row("encoding", {"name": "tests.methods:Encoding"}, config={"training": {"rounds": 1}}),
        tmp_path,
    )
    here, _ = run_toy(config, directory="here")
    assert any(name.startswith("bright/") for name in here.history[0]["metrics"])
    there, _ = run_toy(config, "ray1", directory="there")
    assert facts(there) == facts(here)
