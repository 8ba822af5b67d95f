"""What a run tells of clients that misbehave, and that it decides about them once."""

from __future__ import annotations

import json
import logging
import math
import shutil
from pathlib import Path
from typing import Any

import pytest

import rayfl
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError, StorageError
from rayfl.fleet.absences import Absence
from rayfl.fleet.safeguards import Safeguards
from rayfl.run.assembly import build_safeguards
from rayfl.run.checkpoint import CheckpointStore
from rayfl.run.engine import Outcome
from tests.algorithms.conformance import Row, facts, run_toy, toy_config
from tests.run.small_run import SETTINGS

SECONDS = 2.0
"""Of a visit: many times what a client of the toy federation needs."""


def toy(folder: Path, method: str, settings: dict[str, Any], **more: Any) -> Config:
    row = Row("misbehaving", {"name": f"tests.methods:{method}", **settings})
    training = {"rounds": 3, "epochs": 1, "batch_size": 16, "lr": 0.1}
    return toy_config(row, folder, training=training, **more)


# -- who is left out -------------------------------------------------------------------------------


def left_out(outcome: Outcome) -> list[dict[str, float]]:
    told = [record["metrics"] for record in outcome.history]
    return [{k: v for k, v in of.items() if k.startswith("clients/left_out")} for of in told]


@pytest.fixture(scope="module")
def late(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, Outcome]:
    """A run in which client 1 was late in its second round, and would be so only once."""
    folder = tmp_path_factory.mktemp("late")
    method = {"at": 1, "marker": str(folder / "dawdled"), "seconds": 1.5 * SECONDS}
    limit = {"visit_limit": SECONDS}
    rules = {"unfinished": "leave_out"}
    config = toy(folder, "Dawdling", method, resources=limit, safety=rules)
    return config, run_toy(config, directory="a")[0]


def copy_decisions(config: Config, directory: str) -> Path:
    """A place without checkpoints, where only the decisions of the run are known."""
    there = config.output / directory
    shutil.rmtree(there, ignore_errors=True)
    there.mkdir()
    shutil.copy(config.output / "a" / "left_out.json", there)
    return there


def test_a_client_that_is_left_out_is_counted_and_named(late: tuple[Config, Outcome]) -> None:
    config, outcome = late
    nobody = {"clients/left_out": 0.0}
    assert left_out(outcome) == [
        nobody,
        {"clients/left_out": 1.0, "clients/left_out/1": 1.0},
        nobody,
    ]
    assert json.loads((config.output / "a" / "left_out.json").read_text()) == [[1, 1, 0, "late"]]


@pytest.mark.parametrize("place", ["inline", "ray1"])
def test_who_was_left_out_once_is_left_out_whenever_the_round_is_computed_again(
    late: tuple[Config, Outcome], place: str, cluster: None
) -> None:
    """Though nobody is late now, and no limit is set: it says nothing of the result."""
    config, outcome = late
    copy_decisions(config, place)
    free = config.model_copy(
        update={"resources": config.resources.model_copy(update={"visit_limit": None})}
    )
    assert free.digest == config.digest
    again, _ = run_toy(free, place, directory=place)
    assert facts(again) == facts(outcome)
    assert again.sha256 == outcome.sha256
    assert left_out(again) == left_out(outcome)


def test_without_the_decisions_it_is_another_run(late: tuple[Config, Outcome]) -> None:
    config, outcome = late
    other, _ = run_toy(config, directory="other")
    assert other.sha256 != outcome.sha256
    assert not (config.output / "other" / "left_out.json").exists()


@pytest.mark.parametrize("damage", ["", "[[1, 1]]", "{}x", '[["a", 1, 0, "late"]]'])
def test_damaged_decisions_are_refused(late: tuple[Config, Outcome], damage: str) -> None:
    config, _ = late
    (copy_decisions(config, "damaged") / "left_out.json").write_text(damage)
    with pytest.raises(StorageError, match=r"left_out\.json lists visits as .* begin it anew"):
        run_toy(config, directory="damaged")


def test_decisions_outlive_checkpoints(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    assert store.absences() == {}
    decided = {Absence(3, 5, 1): "died", Absence(-1, 2, 0): "memory"}
    store.note_absences(decided)
    assert CheckpointStore(str(tmp_path)).absences() == decided
    assert store.rounds() == []


# -- losses and norms ------------------------------------------------------------------------------


def test_a_loss_that_is_not_finite_is_told_everywhere(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    from rayfl.run.artifacts import tracking_uri
    from rayfl.run.progress import Lines
    from rayfl.tracking.store import open_client

    method = "tests.methods:Exaggerating"
    training = {**SETTINGS["training"], "rounds": 1, "fraction": 1.0, "epochs": 1}
    settings = {**SETTINGS, "method": method, "training": training, "tracking": {"enabled": True}}
    with caplog.at_level(logging.WARNING, "rayfl"):
        result = rayfl.run(
            {**settings, "output": tmp_path, "fleet": "inline"}, progress=Lines(1, seconds=0)
        )
    assert math.isnan(result.history[0]["metrics"]["test/loss"])
    assert "loss nan" in capsys.readouterr().out
    assert caplog.text.count("test/loss is nan; the model has diverged") == 1
    kept = json.loads((result.directory / "result.json").read_text())
    assert math.isnan(kept["metrics"]["test/loss"])
    client = open_client(tracking_uri(result.config))
    points = client.get_metric_history(result.mlflow_run_id, "test/loss")
    assert [math.isnan(point.value) for point in points] == [True]
    # Who brought it about was named before.
    assert result.history[0]["metrics"]["clients/absurd/1"] == 1.0
    assert "round 0: the update 'w' of client 1 is absurd" in caplog.text


@pytest.mark.parametrize("place", ["inline", "ray1"])
def test_absurd_updates_are_dropped_alike_everywhere(
    tmp_path: Path, place: str, cluster: None
) -> None:
    config = toy(tmp_path, "Exaggerating", {}, safety={"absurd": "drop"})
    outcome, _ = run_toy(config, place)
    for record in outcome.history:
        assert record["metrics"]["clients/absurd"] == record["metrics"]["clients/absurd/1"] == 1.0
        assert math.isfinite(record["metrics"]["test/loss"])


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "rules"),
    [
        ({}, Safeguards()),
        ({"resources": {"visit_limit": 60}}, Safeguards(visit_seconds=60.0)),
        ({"resources": {"visit_limit": "2.5x"}}, Safeguards(visit_multiple=2.5)),
        ({"resources": {"memory_per_client": 1.5}}, Safeguards(memory_bytes=1_500_000_000)),
        ({"safety": {"unfinished": "leave_out"}}, Safeguards(leave_out=True)),
        (
            {"safety": {"absurd": "clip", "norm_multiple": 3}},
            Safeguards(absurd="clip", norm_multiple=3.0),
        ),
    ],
)
def test_settings_reach_the_fleet(settings: dict[str, Any], rules: Safeguards) -> None:
    assert build_safeguards(validate_config(settings)) == rules


@pytest.mark.parametrize("limit", ["x", "20 x", "-1x", 0, -5, "sixty"])
def test_limits_that_are_none_are_refused(limit: object) -> None:
    with pytest.raises(ConfigError, match=r"resources\.visit_limit"):
        validate_config({"resources": {"visit_limit": limit}})


@pytest.mark.parametrize(
    ("settings", "decides"),
    [
        ({"resources": {"visit_limit": 60, "memory_per_client": 4}}, False),
        ({"safety": {"unfinished": "stop", "absurd": "name", "norm_multiple": 1000}}, False),
        ({"safety": {"unfinished": "leave_out"}}, True),
        ({"safety": {"absurd": "drop"}}, True),
    ],
)
def test_only_what_decides_a_result_makes_another_run(
    settings: dict[str, Any], decides: bool
) -> None:
    assert (validate_config(settings).digest != Config().digest) == decides
