"""The rounds of one run: transactions, records, checkpoints, resumption."""

from __future__ import annotations

import hashlib
import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.config.schema import Config
from rayfl.errors import ConfigError, PhaseError, StorageError
from rayfl.federation.scenario import open_federation
from rayfl.fleet.base import BaseFleet
from rayfl.protocol import Ref
from rayfl.run.checkpoint import seal_manifest
from rayfl.run.engine import (
    Engine,
    Outcome,
    count_clients,
    find_changed,
    plain_metrics,
)
from rayfl.run.environment import library_versions
from tests.algorithms.conformance import Row, facts, run_toy, shortened, toy_config


def odd(folder: Path, method: dict[str, Any] | None = None, **more: Any) -> Config:
    row = Row("odd", {"name": "tests.methods:Odd", **(method or {})})
    training = {
        "rounds": 4,
        "clients_per_round": 4,
        "epochs": 1,
        "batch_size": 16,
        "lr": 0.1,
        **more.pop("training", {}),
    }
    return toy_config(row, folder, training=training, **more)


def saved(folder: Path) -> list[int]:
    return sorted(int(path.stem[6:]) for path in (folder / "checkpoints").glob("round-*.json"))


# -- a round is a transaction ----------------------------------------------------------------------


def test_if_all_diverge_the_model_stays_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    void = odd(tmp_path, {"wrong": "all diverge", "at": 2})
    with caplog.at_level(logging.WARNING, "rayfl"):
        after, fleet = run_toy(shortened(void, 3), directory="a")
    before, _ = run_toy(shortened(void, 2), directory="b")
    assert after.sha256 == before.sha256
    assert after.history[2]["metrics"]["clients/diverged"] == 4
    assert "round 2: every one of 4 updates diverged; the model stays as it was" in caplog.text
    whole, _ = run_toy(void, directory="c")
    assert whole.rounds == 4
    assert whole.sha256 != after.sha256
    # What the void round had stored before it failed is undone.
    assert all(int(fleet.get(entries["seen"])[0]) < 2 for entries in fleet.table.values())


def test_a_diverged_client_is_counted_and_named(tmp_path: Path) -> None:
    outcome, _ = run_toy(odd(tmp_path, {"bad": [1]}, training={"clients_per_round": 6}))
    for record in outcome.history:
        named = {
            name: value
            for name, value in record["metrics"].items()
            if name.startswith("clients/diverged")
        }
        assert named == {"clients/diverged": 1.0, "clients/diverged/1": 1.0}
    assert all(np.isfinite(vector).all() for vector in outcome.models.values())


def test_a_method_that_raises_is_named_with_its_round(tmp_path: Path) -> None:
    with pytest.raises(
        PhaseError,
        match=r"(?s)Odd\.round raised at the coordinator in round 2:.*methods\.py.*KeyError",
    ):
        run_toy(odd(tmp_path, {"wrong": "round"}))
    assert saved(tmp_path)[-1] == 2


def test_a_method_that_would_end_the_process_is_an_error_like_any_other(tmp_path: Path) -> None:
    match = r"(?s)Odd\.round raised at the coordinator in round 2:.*SystemExit: 3"
    with pytest.raises(PhaseError, match=match):
        run_toy(odd(tmp_path, {"wrong": "exit"}))


@pytest.mark.parametrize("place", ["inline", "late"])
def test_a_phase_that_raises_stops_the_run_and_leaves_what_was_reached(
    place: str, tmp_path: Path
) -> None:
    """Even where the round before is still being evaluated."""
    with pytest.raises(
        PhaseError, match=r"(?s)a phase raised on client 1 in round 2:.*phase of round 2"
    ):
        run_toy(odd(tmp_path, {"wrong": "phase"}), place)
    assert saved(tmp_path)[-1] == 2


@pytest.mark.parametrize(
    ("wrong", "match"),
    [("refusal", "^not in this round$"), ("check", "^this federation will not do$")],
)
def test_refusals_pass_as_they_are(wrong: str, match: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=match):
        run_toy(odd(tmp_path, {"wrong": wrong}))


def test_a_state_that_cannot_be_kept_is_refused(tmp_path: Path) -> None:
    rule = r"a method's state is made of arrays.*; got set at Kept\.rounds\. Keep"
    with pytest.raises(StorageError, match=rule):
        run_toy(odd(tmp_path, {"wrong": "unfit state"}))


# -- records ---------------------------------------------------------------------------------------


def test_records_say_what_happened(tmp_path: Path) -> None:
    outcome, _ = run_toy(odd(tmp_path))
    assert [record["round"] for record in outcome.history] == [1, 2, 3, 4]
    metrics, clock = outcome.history[-1]["metrics"], outcome.history[-1]["clock"]
    # Whoever is visited twice takes part once.
    assert metrics["cohort"] == metrics["clients/participants"] == 4
    assert metrics["test/accuracy"] > 0.5
    assert -1 <= metrics["trust/noise_correlation"] < -0.9
    assert {
        "test/loss",
        "test/macro_f1",
        "test/recall/class 0",
        "cost/forward",
        "cost/up_mb",
    } <= set(metrics)
    parts = ("train", "elapsed", "evaluate", "busy", "broadcast", "reduce", "track")
    assert set(clock) == {f"time/{part}_s" for part in parts}
    assert clock["time/reduce_s"] > 0
    assert clock["time/track_s"] > 0
    assert all(
        isinstance(value, float) and np.isfinite(value)
        for value in (*metrics.values(), *clock.values())
    )
    json.dumps(outcome.history)
    assert outcome.left["rounds"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("every", "evaluated"), [(1, [1, 2, 3, 4]), (3, [3, 4]), (9, [4])])
def test_evaluation_comes_every_so_often_and_at_the_end(
    every: int, evaluated: list[int], tmp_path: Path
) -> None:
    outcome, _ = run_toy(odd(tmp_path, evaluation={"every": every}))
    assert [r["round"] for r in outcome.history if "test/accuracy" in r["metrics"]] == evaluated


def test_an_evaluation_that_ends_late_changes_nothing(tmp_path: Path) -> None:
    late, _ = run_toy(odd(tmp_path), "late", directory="late")
    soon, _ = run_toy(odd(tmp_path), directory="soon")
    assert facts(late) == facts(soon)


def test_evaluation_does_not_change_the_run(tmp_path: Path) -> None:
    often, _ = run_toy(odd(tmp_path), directory="often")
    rarely, _ = run_toy(odd(tmp_path, evaluation={"every": 4}), directory="rarely")
    assert often.sha256 == rarely.sha256
    for one, other in zip(often.history, rarely.history, strict=True):
        costs = [
            {k: v for k, v in r["metrics"].items() if k.startswith("cost/")} for r in (one, other)
        ]
        assert costs[0] == costs[1]


def test_the_hash_is_that_of_the_models(tmp_path: Path) -> None:
    outcome, _ = run_toy(odd(tmp_path))
    ((client, vector),) = outcome.models.items()
    assert client is None
    assert outcome.sha256 == hashlib.sha256(b"None" + vector.astype("<f4").tobytes()).hexdigest()


def test_personal_models_are_all_in_the_hash(tmp_path: Path) -> None:
    row = Row("personal", {"name": "tests.methods:Personal"})
    outcome, _ = run_toy(toy_config(row, tmp_path, training={"rounds": 1, "lr": 0.2}))
    assert sorted(outcome.models) == list(range(6))  # type: ignore[type-var]
    metrics = outcome.history[-1]["metrics"]
    assert 0 <= metrics["test/worst_client"] < metrics["test/accuracy"] <= 1


# -- checkpoints -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"every": 1, "min_seconds": 0}, [3, 4]),
        ({"every": 3, "min_seconds": 0}, [3, 4]),
        ({"every": 0, "min_seconds": 0}, [4]),
        ({"every": 1, "min_seconds": 3600}, [1, 4]),
    ],
    ids=str,
)
def test_checkpoints_come_when_they_are_due(
    rules: dict[str, Any], expected: list[int], tmp_path: Path
) -> None:
    run_toy(odd(tmp_path, checkpoint=rules))
    assert saved(tmp_path) == expected


@pytest.mark.parametrize("stop", [0, 1, 3, 4])
def test_a_resumed_run_equals_an_uninterrupted_one(stop: int, tmp_path: Path) -> None:
    config = odd(tmp_path, {"wrong": "stored at the start", "at": 99})
    whole, one = run_toy(config, directory="whole")
    run_toy(shortened(config, stop), directory="parts")
    resumed, other = run_toy(config, directory="parts")
    assert facts(resumed) == facts(whole)
    assert resumed.left.keys() == whole.left.keys()
    assert resumed.left["rounds"].tolist() == whole.left["rounds"].tolist()
    seen = [{c: int(f.get(e["seen"])[0]) for c, e in f.table.items()} for f in (one, other)]
    assert seen[0] == seen[1]


def test_a_resumed_run_tells_its_history_again(tmp_path: Path) -> None:
    config = odd(tmp_path)
    first, _ = run_toy(shortened(config, 2))
    resumed, _ = run_toy(config)
    assert resumed.history[:2] == first.history
    passed = [record["clock"]["time/elapsed_s"] for record in resumed.history]
    assert passed == sorted(passed), "a resumed run's time goes on where it stopped"
    assert passed[-1] >= sum(record["clock"]["time/train_s"] for record in resumed.history)


def test_a_finished_run_is_only_read(tmp_path: Path) -> None:
    config = odd(tmp_path)
    once, _ = run_toy(config)
    before = stamps(tmp_path / "checkpoints")
    again, _ = run_toy(config)
    assert facts(again) == facts(once)
    assert stamps(tmp_path / "checkpoints") == before


def stamps(folder: Path) -> dict[Path, int]:
    """When each file changed; of the lock, that says nothing."""
    files = [path for path in folder.rglob("*") if path.name != "lock"]
    return {path: path.stat().st_mtime_ns for path in files}


@pytest.mark.parametrize(
    ("other", "match"),
    [
        (
            {"training": {"lr": 0.2}},
            r"round 4: a checkpoint belongs to this run's configuration \(\w{12}\); got \w{12}",
        ),
        ({"seed": 5}, "belongs to this run's configuration"),
    ],
    ids=["lr", "seed"],
)
def test_checkpoints_of_another_configuration_are_refused(
    other: dict[str, Any], match: str, tmp_path: Path
) -> None:
    run_toy(odd(tmp_path))
    with pytest.raises(StorageError, match=match):
        run_toy(odd(tmp_path, **other))


def test_checkpoints_of_another_scenario_are_refused(tmp_path: Path) -> None:
    run_toy(odd(tmp_path))
    tampered(tmp_path, lambda meta: meta.update(scenario="0" * 64))
    with pytest.raises(
        StorageError, match=r"belongs to this run's scenario \(\w{12}\); got 000000000000"
    ):
        run_toy(odd(tmp_path))


def test_other_library_versions_are_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_toy(odd(tmp_path))
    tampered(tmp_path, lambda meta: meta["versions"].update(torch="0.0"))
    with caplog.at_level(logging.WARNING, "rayfl"):
        run_toy(odd(tmp_path))
    assert "library versions changed since the checkpoint: bits may differ" in caplog.text
    assert set(library_versions()) == {"python", "numpy", "torch"}


def tampered(folder: Path, change: Any) -> None:
    for path in (folder / "checkpoints").glob("round-*.json"):
        manifest = json.loads(path.read_text())
        change(manifest["meta"])
        path.write_text(json.dumps(seal_manifest(manifest)))


def test_a_place_that_cannot_be_written_is_refused_before_the_first_round(tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    with pytest.raises(
        StorageError, match=r"checkpoints need a writable place.*Set checkpoint\.uri"
    ):
        run_toy(odd(tmp_path), directory="taken/below")


def test_a_checkpoint_on_demand_is_of_the_last_whole_round(tmp_path: Path) -> None:
    config = odd(tmp_path, checkpoint={"every": 0})
    engine, fleet = engine_of(config, tmp_path)
    assert engine.save() == -1
    asked: list[tuple[int, int]] = []

    def emit(record: dict[str, Any]) -> None:
        asked.append((record["round"], engine.save()))

    engine.run(fleet, emit)
    assert asked == [(1, 1), (2, 2), (3, 3), (4, 4)]
    assert saved(tmp_path) == [3, 4]


def test_an_engine_travels_before_it_runs(tmp_path: Path) -> None:
    engine, fleet = engine_of(odd(tmp_path), tmp_path)
    outcome: Outcome = pickle.loads(pickle.dumps(engine)).run(fleet, lambda record: None)
    assert outcome.sha256 == run_toy(odd(tmp_path), directory="again")[0].sha256


def engine_of(config: Config, folder: Path) -> tuple[Engine, BaseFleet]:
    from rayfl.fleet.inline import InlineFleet
    from rayfl.run.assembly import build_holdings, build_spec

    dataset, scenario = open_federation(config, 0)
    fleet = InlineFleet(
        build_spec(config, dataset, scenario, "cpu"), build_holdings(config, dataset, scenario)
    )
    return Engine(
        config, scenario, str(folder / "checkpoints"), {}, dataset.shape, folder / "features"
    ), fleet


# -- helpers ---------------------------------------------------------------------------------------


def test_changed_entries_are_those_with_another_reference() -> None:
    old, new = Ref(1), Ref(1)
    before = {0: {"w": old, "y": old}, 1: {"w": old}}
    after = {0: {"w": old, "y": new}, 1: {"w": old}, 2: {"w": new}}
    assert find_changed(before, after) == {0: {"y": new}, 2: {"w": new}}
    assert find_changed({}, after) == after
    assert find_changed(after, after) == {}


@pytest.mark.parametrize(
    ("diverged", "metrics"),
    [([], {"clients/diverged": 0.0}), ([4], {"clients/diverged": 1.0, "clients/diverged/4": 1.0})],
)
def test_diverged_clients_as_metrics(diverged: list[int], metrics: dict[str, float]) -> None:
    assert count_clients("diverged", diverged) == metrics


def test_measures_without_a_value_are_absent() -> None:
    found = plain_metrics({"a": np.float32(0.5), "b": float("nan"), "c": float("inf"), "d": 3})
    assert found == {"a": 0.5, "d": 3.0}
    lost = plain_metrics({"test/loss": np.float32("nan"), "train/loss_wrong": float("inf")})
    assert str(lost) == "{'test/loss': nan, 'train/loss_wrong': inf}"
    assert all(type(value) is float for value in found.values())
