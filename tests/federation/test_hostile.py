"""Hostile clients: who they are, what they do to labels and images, and how a scenario keeps it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.errors import ConfigError, DataError
from rayfl.federation.hostile import HOSTILITIES, Attack
from rayfl.federation.plan import FederationPlan
from rayfl.federation.scenario import Scenario, build_scenario
from rayfl.federation.scenario_display import list_scenario_facts

BLOBS = {"name": "blobs", "samples": 200, "test_samples": 40, "classes": 4, "side": 8}
FLIP = {"name": "label_flip", "clients": 0.3}


def build(hostile: Any, seed: int = 0, **more: Any) -> Scenario:
    plan = FederationPlan(data=BLOBS, clients=10, hostile=hostile, **more)
    return build_scenario(plan, plan.data.load(Path()), seed)


def attack_of(scenario: Scenario) -> Attack:
    assert scenario.attack is not None
    return scenario.attack


def test_nobody_is_hostile_by_default_and_nothing_is_drawn() -> None:
    honest = build(None)
    assert honest.attack is None
    listed = build({"name": "sign_flip", "clients": [3]})
    # Owners, labels and noise are drawn as they were: only the truth about client 3 is new.
    assert np.array_equal(honest.owner, listed.owner)
    assert np.array_equal(honest.given, listed.given)
    assert honest.sha256 != listed.sha256


@pytest.mark.parametrize(("clients", "count"), [(0.3, 3), (0.29, 2), (1.0, 10), (0.0, 0)])
def test_a_share_of_clients_is_drawn_by_the_seed(clients: float, count: int) -> None:
    chosen = [
        attack_of(build({**FLIP, "clients": clients}, seed)).clients.tolist() for seed in (0, 0, 1)
    ]
    assert len(chosen[0]) == len(set(chosen[0])) == count
    assert chosen[0] == chosen[1] == sorted(chosen[0])
    assert count in (0, 10) or chosen[0] != chosen[2]


def test_listed_clients_are_hostile() -> None:
    assert attack_of(build({**FLIP, "clients": [7, 2, 7]})).clients.tolist() == [2, 7]


@pytest.mark.parametrize(
    ("pairs", "table"), [("mirror", [3, 2, 1, 0]), ("next", [1, 2, 3, 0]), ({0: 2}, [2, 1, 2, 3])]
)
def test_flipped_labels(pairs: Any, table: list[int]) -> None:
    scenario = build({**FLIP, "pairs": pairs})
    honest = build(None)
    theirs = np.isin(scenario.owner, attack_of(scenario).clients)
    assert np.array_equal(scenario.given[theirs], np.array(table)[honest.given[theirs]])
    assert np.array_equal(scenario.given[~theirs], honest.given[~theirs])
    assert np.array_equal(scenario.true, honest.true)  # type: ignore[arg-type]


def test_noise_comes_before_the_flip() -> None:
    noise = {"name": "symmetric", "rate": 0.4}
    noisy, both = build(None, noise=noise), build(FLIP, noise=noise)
    theirs = np.isin(both.owner, attack_of(both).clients)
    assert np.array_equal(both.given[theirs], 3 - noisy.given[theirs])
    assert np.array_equal(both.nominal, noisy.nominal)


def test_a_backdoor_relabels_the_rows_that_it_stamps() -> None:
    scenario = build({"name": "backdoor", "clients": [1, 4], "target": 2, "share": 0.5})
    rows = attack_of(scenario).rows
    assert set(scenario.given[rows].tolist()) == {2}
    assert np.isin(scenario.owner[rows], [1, 4]).all()
    assert len(rows) == sum(int(scenario.sizes()[k]) // 2 for k in (1, 4))
    x = np.zeros((2, 8, 8, 3), np.uint8)
    HOSTILITIES.build({"name": "backdoor", "clients": 0.1, "size": 2}).stamp(x)
    assert (x[:, 6:, 6:] == 255).all()
    assert x.sum() == 2 * 4 * 3 * 255


def test_the_artefact_keeps_who_is_hostile(tmp_path: Path) -> None:
    scenario = build({"name": "backdoor", "clients": 0.2})
    scenario.save(tmp_path / "s")
    loaded = Scenario.load(tmp_path / "s")
    assert loaded.sha256 == scenario.sha256
    assert loaded.attack is not None
    assert loaded.attack.name == "backdoor"
    assert np.array_equal(loaded.attack.rows, attack_of(scenario).rows)
    plan = FederationPlan(scenario=tmp_path / "s")
    assert plan.hostile == HOSTILITIES.build({"name": "backdoor", "clients": 0.2})


def test_the_facts_name_them() -> None:
    facts = dict(list_scenario_facts(build({"name": "gaussian", "clients": [5, 1]})))
    assert facts["hostile"] == "gaussian: 1, 5"
    assert "hostile" not in dict(list_scenario_facts(build(None)))


@pytest.mark.parametrize(
    ("hostile", "match"),
    [
        ({**FLIP, "clients": 0.05}, r"at least one client; got 0\.05 of 10.*Raise hostile"),
        ({**FLIP, "clients": [3, 10]}, "hostile.clients lists ids below 10; got 10"),
        ({"name": "backdoor", "clients": 0.2, "target": 4}, "target is a class below 4; got 4"),
    ],
)
def test_what_cannot_be_is_refused(hostile: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        build(hostile)


def test_a_patch_larger_than_the_image_is_refused() -> None:
    backdoor = HOSTILITIES.build({"name": "backdoor", "clients": 0.1, "size": 9})
    with pytest.raises(ConfigError, match="at most an image's side, 8 pixels; got 9"):
        backdoor.stamp(np.zeros((1, 8, 8, 1), np.uint8))


def test_poisoned_rows_are_of_hostile_clients() -> None:
    scenario = build({"name": "backdoor", "clients": [0]})
    foreign = np.flatnonzero(scenario.owner == 1)[:1]
    attack = Attack("backdoor", attack_of(scenario).clients, foreign)
    with pytest.raises(DataError, match="poisoned rows belong to hostile clients"):
        Scenario(**{**vars(build(None)), "attack": attack})


@pytest.mark.parametrize(
    ("hostile", "expected"),
    [
        ({"name": "sign_flip", "scale": 2.0}, [-3.0, 5.0]),
        ({"name": "scaled", "scale": 3.0}, [7.0, -5.0]),
        ({"name": "scaled", "scale": 1.0}, [3.0, -1.0]),
        ({"name": "scaled", "scale": 0.0}, [1.0, 1.0]),
        ({"name": "label_flip"}, [3.0, -1.0]),
        ({"name": "backdoor", "scale": 2.0}, [5.0, -3.0]),
    ],
    ids=lambda value: f"{value['name']}-{value.get('scale')}" if isinstance(value, dict) else "",
)
def test_changed_updates_are_relative_to_what_was_begun_with(
    hostile: dict[str, Any], expected: list[float]
) -> None:
    kind = HOSTILITIES.build({"clients": 0.5, **hostile})
    start, update = np.ones(2, np.float32), np.array([3, -1], np.float32)
    changed = kind.change(update, start, np.random.default_rng(0))
    assert changed.dtype == np.float32
    assert changed.tolist() == expected


def test_gaussian_updates_are_noise_around_the_start() -> None:
    kind = HOSTILITIES.build({"name": "gaussian", "clients": 0.5, "deviation": 2.0})
    start, update = np.full(20_000, 5, np.float32), np.full(20_000, 900, np.float32)
    drawn = kind.change(update, start, np.random.default_rng(0))
    assert abs(drawn.mean() - 5) < 0.1
    assert abs(drawn.std() - 2) < 0.1
