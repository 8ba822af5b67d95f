"""The plan of a federation: its defaults, its spelling, its refusals, and its agreement with a
saved scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rayfl.component import component
from rayfl.errors import DataError
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.plan import FederationPlan
from rayfl.federation.scenario import build_scenario, open_federation
from rayfl.federation.split import Amount

ASYMMETRIC = {"name": "asymmetric", "rate": 0.5, "pairs": {9: 1, 2: 0}}


@component
class Toy:
    """A hundred samples of ten classes, found below the root that it is given."""

    file: str = ""

    def load(self, root: Path) -> Dataset:
        y = np.arange(100) % 10
        images = Images(np.zeros((100, 1, 1, 1), np.uint8), y)
        return Dataset(str(root / self.file), images, images, tuple("abcdefghij"))


def plan_of(**settings: Any) -> FederationPlan:
    return FederationPlan.model_validate({"data": Toy(), **settings})


def saved(directory: Path, **settings: Any) -> Path:
    plan = plan_of(**settings)
    build_scenario(plan, plan.data.load(Path("/data")), 0).save(directory)
    return directory


def test_the_default_is_clean_iid_digits_for_ten_clients() -> None:
    recorded = FederationPlan().recorded()
    assert recorded["data"]["name"] == "digits"
    assert recorded["partition"]["name"] == "iid"
    assert [recorded[noise]["name"] for noise in ("noise", "labelled_noise", "public_noise")] == [
        "none"
    ] * 3
    assert (recorded["clients"], recorded["labels"]) == (10, "true")


def test_the_record_builds_an_equal_plan_and_holds_no_path_of_this_machine() -> None:
    plan = plan_of(
        split={"public": 0.1, "train_samples": {"first": 50}}, noise=ASYMMETRIC, data_root="/here"
    )
    recorded = plan.recorded()
    assert not {"data_root", "scenario"} & set(recorded)
    again = FederationPlan.model_validate(recorded)
    assert again.recorded() == recorded
    assert again.split.public == Amount(fraction=0.1)
    assert again.noise == plan.noise


@pytest.mark.parametrize("key", ["data_root", "scenario"])
def test_paths_become_absolute_at_once(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "place")
    monkeypatch.chdir(tmp_path)
    assert getattr(plan_of(**{key: "place"}), key) == tmp_path / "place"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clients": 0}, "clients"),
        ({"client": 5}, "client"),
        ({"labels": "noisy"}, "labels"),
        ({"partition": "idd"}, "unknown partition 'idd'. Did you mean 'iid'"),
        ({"noise": {"name": "symmetric", "rate": 1.4}}, "noise"),
        ({"split": {"public": {"per_clas": 3}}}, "per_clas"),
    ],
)
def test_ill_formed_plans_are_refused_by_key(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        plan_of(**settings)


def test_a_plan_is_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        plan_of().clients = 3  # type: ignore[misc]


def test_a_saved_scenario_fills_in_what_it_was_built_from(tmp_path: Path) -> None:
    settings = {"clients": 7, "noise": ASYMMETRIC, "split": {"public": 0.2}}
    place = saved(tmp_path / "s", **settings)
    adopted = FederationPlan.model_validate({"scenario": str(place)})
    assert adopted.recorded() == plan_of(**settings).recorded()
    assert FederationPlan.model_validate(adopted.model_dump(mode="json")) == adopted


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("clients", 8),
        ("noise", "none"),
        ("partition", {"name": "shards"}),
        ("split", {"public": 0.1}),
        ("labels", "given"),
    ],
)
def test_a_key_that_contradicts_the_saved_scenario_is_refused(
    key: str, value: Any, tmp_path: Path
) -> None:
    place = saved(tmp_path / "s", clients=7, noise=ASYMMETRIC, split={"public": 0.2})
    with pytest.raises(ValidationError, match=f"{key} is .* in the scenario .* Leave out '{key}'"):
        FederationPlan.model_validate({"scenario": place, key: value})


def test_a_key_that_repeats_the_saved_scenario_is_accepted(tmp_path: Path) -> None:
    place = saved(tmp_path / "s", clients=7, noise=ASYMMETRIC)
    assert plan_of(scenario=place, clients=7, noise=ASYMMETRIC).clients == 7


def test_a_missing_scenario_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"a directory with a scenario.json"):
        plan_of(scenario=tmp_path)


def test_data_is_looked_for_below_data_root_or_the_users_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RAYFL_DATA", "/users/own")
    assert open_federation(plan_of(), 0)[0].name == "/users/own"
    assert open_federation(plan_of(data_root="/given"), 0)[0].name == "/given"
