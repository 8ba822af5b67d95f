"""Tracking: a journal first, MLflow when it answers, nothing twice, nothing lost, no secrets."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import rayfl
from rayfl.errors import StorageError
from rayfl.tracking.carrier import Carrier
from rayfl.tracking.journal import Journal
from rayfl.tracking.store import artifact_root, open_client
from rayfl.tracking.tracker import Tracker
from tests.tracking.tracker_toys import steps_of, uri_of

# MLflow uses what SQLAlchemy is about to drop, and warns of type hints of its own when its models
# are imported.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]


def test_a_journal_keeps_what_was_written_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "new" / "run")
    journal.append("start", experiment="e", run_name="r", tags={}, params={"a": 1})
    journal.append("metrics", step=3, values={"loss": 0.5})
    assert [entry["kind"] for entry in journal.entries()] == ["start", "metrics"]
    assert [entry["step"] for entry in journal.entries(1)] == [3]
    assert all(abs(entry["time"] / 1000 - time.time()) < 60 for entry in journal.entries())
    assert (journal.last_round, Journal(journal.path.parent).last_round) == (0, 3)


def test_a_line_that_a_crash_cut_short_is_no_entry_and_does_not_spoil_the_next(
    tmp_path: Path,
) -> None:
    journal = Journal(tmp_path)
    journal.append("metrics", step=1, values={})
    with journal.path.open("a") as file:
        file.write('{"kind": "metr')
    assert [entry["step"] for entry in journal.entries()] == [1]
    Tracker(tmp_path, "unused", enabled=False).metrics(2, {"loss": 1.0})
    assert [entry["step"] for entry in journal.entries()] == [1, 2]


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.path.unlink()
    journal.path.mkdir()
    with pytest.raises(
        StorageError,
        match=r"the journal of a run must be writable; got .*journal\.jsonl .*directory",
    ):
        journal.append("metrics", step=2, values={})


def test_a_run_ends_though_its_end_cannot_be_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Tracker(tmp_path, "unused", enabled=False)
    tracker.journal.path.unlink()
    tracker.journal.path.mkdir()
    tracker.finish("FAILED")
    assert (
        "tracking: how the run ended is not recorded: the journal of a run must be writable"
        in caplog.text
    )


def test_how_far_a_journal_was_carried_is_noted_beside_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.noted() == {}
    journal.write_note(run_id="abc")
    journal.write_note(carried=3)
    assert Journal(tmp_path).noted() == {"run_id": "abc", "carried": 3}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["journal.jsonl", "tracking.json"]


def test_a_round_is_journalled_once(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path, "unused", enabled=False)
    for step in (1, 2, 2, 1, 3):
        tracker.metrics(step, {"loss": 1.0 / step})
    assert [entry["step"] for entry in tracker.journal.entries()] == [1, 2, 3]
    assert tracker.run_id is None


@pytest.mark.parametrize(
    ("uri", "root"),
    [
        ("sqlite:////data/out/mlflow.db", "file:///data/out/artifacts"),
        ("http://host:5000", None),
        ("postgresql://host/db", None),
    ],
)
def test_artifacts_of_a_sqlite_store_lie_beside_it(uri: str, root: str | None) -> None:
    assert artifact_root(uri) == root


# -- a sqlite store --------------------------------------------------------------------------------


class Counting:
    """A client that counts how often its store is asked."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.calls.append(name)
        return getattr(self.client, name)


@pytest.mark.parametrize(("rounds", "batches"), [(1, 1), (300, 1), (600, 2)])
def test_many_rounds_are_one_batch(tmp_path: Path, uri: str, rounds: int, batches: int) -> None:
    journal = Journal(tmp_path / "run")
    journal.append(
        "start", experiment="e", run_name="r", tags={}, params={f"p{i}": i for i in range(150)}
    )
    carrier = Carrier(journal, uri)
    carrier.carry()
    for step in range(1, rounds + 1):
        journal.append(
            "metrics", step=step, values={"loss": 1.0 / step, "accuracy": 0.5, "seconds": 0.1}
        )
    counting = Counting(carrier.client)
    carrier._client = counting
    assert carrier.carry() == rounds
    assert counting.calls.count("log_batch") == batches
    assert counting.calls.count("log_metric") == 0
    assert len(open_client(uri).get_run(carrier.run_id).data.params) == 150
    assert carrier.carry() == 0, "what is there already is not carried again"


def test_what_a_crash_kept_from_being_noted_is_not_there_twice(tmp_path: Path, uri: str) -> None:
    journal = Journal(tmp_path / "run")
    journal.append("start", experiment="e", run_name="r", tags={}, params={"lr": 0.1})
    for step in (1, 2, 3):
        journal.append("metrics", step=step, values={"loss": 1.0})
    carrier = Carrier(journal, uri)
    assert carrier.carry() == 4
    journal.write_note(carried=1)
    assert Carrier(Journal(journal.path.parent), uri).carry() == 3
    assert steps_of(uri, carrier.run_id) == [1, 2, 3]


def test_metrics_of_a_round_keep_the_time_when_they_were_made(tmp_path: Path, uri: str) -> None:
    journal = Journal(tmp_path / "run")
    journal.append("start", experiment="e", run_name="r", tags={}, params={})
    journal.append("metrics", step=1, values={"loss": 1.0})
    made = [entry["time"] for entry in journal.entries()][-1]
    time.sleep(0.02)
    carrier = Carrier(journal, uri)
    carrier.carry()
    (point,) = open_client(uri).get_metric_history(carrier.run_id, "loss")
    assert point.timestamp == made


# -- a whole run -----------------------------------------------------------------------------------


def run_of(result: rayfl.Result) -> Any:
    return open_client(uri_of(result)).get_run(result.mlflow_run_id)


def test_a_run_is_an_mlflow_run(tracked: rayfl.Result) -> None:
    client = open_client(uri_of(tracked))
    run = run_of(tracked)
    assert run.info.status == "FINISHED"
    assert run.info.run_name.startswith("fedavg s0 0.3 symmetric iid digits ")
    assert run.data.tags["run"] == tracked.directory.name
    assert run.info.end_time >= run.info.start_time
    assert client.get_experiment(run.info.experiment_id).name == "mine"


@pytest.mark.parametrize(
    "metric", ["test/accuracy", "test/loss", "cost/up_mb", "clients/participants", "time/train_s"]
)
def test_a_resumed_run_has_every_round_once(tracked: rayfl.Result, metric: str) -> None:
    assert tracked.mlflow_run_id is not None
    assert steps_of(uri_of(tracked), tracked.mlflow_run_id, metric) == [1, 2, 3, 4, 5]


def test_the_metrics_are_those_of_the_result(tracked: rayfl.Result) -> None:
    found = run_of(tracked).data.metrics
    assert {name: found[name] for name in tracked.metrics} == pytest.approx(
        tracked.metrics, rel=1e-12
    )


@pytest.mark.parametrize(
    ("param", "value"),
    [
        ("training.lr", "0.05"),
        ("noise.name", "symmetric"),
        ("model.hidden", "[8]"),
        ("clients", "4"),
        ("tracking.tags.see", "http://***@example.org"),
    ],
)
def test_the_resolved_configuration_is_flattened_into_params(
    tracked: rayfl.Result, param: str, value: str
) -> None:
    assert run_of(tracked).data.params[param] == value


@pytest.mark.parametrize(
    ("tag", "value"),
    [
        ("method", "fedavg"),
        ("dataset", "digits"),
        ("noise", "symmetric"),
        ("partition", "iid"),
        ("seed", "0"),
        ("rayfl", rayfl.__version__),
        ("fleet", "inline"),
        ("noise_rate", "0.299"),
        ("clients", "4"),
        ("rounds", "5"),
        ("lr", "0.05"),
        ("team", "a"),
        ("see", "http://***@example.org"),
    ],
)
def test_tags_say_what_a_run_was(tracked: rayfl.Result, tag: str, value: str) -> None:
    assert run_of(tracked).data.tags[tag] == value


def test_tags_hold_the_hashes(tracked: rayfl.Result) -> None:
    tags = run_of(tracked).data.tags
    assert tags["model_sha256"] == tracked.sha256
    assert tags["scenario"] == tracked.scenario_sha256
    assert tags["config"] == tracked.config.digest
    assert {"git", "machine", "host"} <= set(tags)
