"""Tracking: a journal first, MLflow when it answers, nothing twice, nothing lost, no secrets."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import rayfl
from rayfl import cli
from rayfl.errors import StorageError
from rayfl.tracking import tracker as tracking
from rayfl.tracking.carrier import Carrier, sync_journals
from rayfl.tracking.journal import Journal
from rayfl.tracking.store import artifact_root, default_uri, open_client
from rayfl.tracking.tracker import Tracker

# MLflow uses what SQLAlchemy is about to drop, and warns of type hints of its own when its models
# are imported.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]

SECRET = "hunter2"
PATIENCE = 120.0
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "clients": 4,
    "noise": {"name": "symmetric", "rate": 0.3},
    "model": {"name": "mlp", "hidden": [8]},
    "training": {"rounds": 3, "batch_size": 64},
    "fleet": "inline",
    "checkpoint": {"uri": None, "min_seconds": 0},
}


def await_that(seen: Callable[[], object], what: str) -> None:
    started = time.monotonic()
    while not seen():
        assert time.monotonic() - started < PATIENCE, f"no {what} within {PATIENCE} s"
        time.sleep(0.05)


def steps_of(uri: str, run_id: str, metric: str = "loss") -> list[int]:
    """The rounds of a metric's history, in order and with whatever is there twice."""
    return sorted(point.step for point in open_client(uri).get_metric_history(run_id, metric))


# -- the journal -----------------------------------------------------------------------------------


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


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store for the runs of several tests: to make one takes MLflow seconds."""
    return default_uri(tmp_path_factory.mktemp("store"))


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


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> rayfl.Result:
    """A run of three rounds that was then taken up again for two more, with secrets in its
    configuration."""
    output = tmp_path_factory.mktemp("tracked")
    see = f"http://me:{SECRET}@example.org"
    settings = {
        **SETTINGS,
        "output": output,
        "tracking": {"experiment": "mine", "tags": {"see": see, "team": "a"}},
    }
    first = rayfl.run(settings)
    longer = {**SETTINGS["training"], "rounds": 5}
    second = rayfl.run({**settings, "training": longer}, resume=first.directory)
    assert second.mlflow_run_id == first.mlflow_run_id
    return second


def uri_of(result: rayfl.Result) -> str:
    return default_uri(result.config.output)


def run_of(result: rayfl.Result) -> Any:
    return open_client(uri_of(result)).get_run(result.mlflow_run_id)


def test_a_run_is_an_mlflow_run(tracked: rayfl.Result) -> None:
    client = open_client(uri_of(tracked))
    run = run_of(tracked)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == tracked.directory.name
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


@pytest.mark.parametrize("folder", ["", "figures", "model"])
def test_artifacts_are_there(tracked: rayfl.Result, folder: str) -> None:
    wanted = {
        "": {"config.yaml", "scenario.txt"},
        "figures": {"figures/learning_curve.png", "figures/confusion.png"},
        "model": {"model/MLmodel"},
    }
    found = open_client(uri_of(tracked)).list_artifacts(tracked.mlflow_run_id, folder)
    assert wanted[folder] <= {item.path for item in found}
    for item in found:
        assert item.is_dir or item.file_size > 0


def test_figures_are_pictures(tracked: rayfl.Result) -> None:
    from PIL import Image

    for path in (tracked.directory / "figures").glob("*.png"):
        with Image.open(path) as picture:
            assert min(picture.size) > 200


@pytest.mark.filterwarnings("ignore")  # MLflow's and torch's own, when a model is read
def test_the_logged_model_can_be_loaded_and_answers_as_the_result_s(
    tracked: rayfl.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow
    import torch

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri_of(tracked))
    place = f"runs:/{tracked.mlflow_run_id}/model"
    model = mlflow.pytorch.load_model(place)
    images = torch.from_numpy(np.random.default_rng(0).random((5, 1, 8, 8), dtype=np.float32))
    with torch.no_grad():
        assert torch.equal(model.eval()(images), tracked.model.eval()(images))
    signature = mlflow.models.get_model_info(place).signature
    assert signature.inputs.to_dict()[0]["tensor-spec"] == {
        "dtype": "float32",
        "shape": (-1, 1, 8, 8),
    }
    assert signature.outputs.to_dict()[0]["tensor-spec"] == {"dtype": "float32", "shape": (-1, 10)}


def holding(folder: Path, secret: str) -> list[Path]:
    """The files below a folder that hold a text."""
    return [
        path
        for path in folder.rglob("*")
        if path.is_file() and secret.encode() in path.read_bytes()
    ]


def test_no_file_of_a_run_or_its_store_holds_a_secret(tracked: rayfl.Result) -> None:
    assert holding(tracked.config.output, "***@example.org") != []
    assert holding(tracked.config.output, SECRET) == []


def test_a_run_that_fails_is_marked_so(tmp_path: Path, uri: str) -> None:
    method = "tests.reliability.methods:Raising"
    place = {"output": tmp_path, "tracking": {"uri": uri}}
    with pytest.raises(rayfl.errors.PhaseError, match="client 3 in round 2"):
        rayfl.run({**SETTINGS, **place, "method": method, "checkpoint": {"every": 0}})
    (directory,) = (tmp_path / "runs").iterdir()
    sync_journals(tmp_path, uri)
    run_id = json.loads((directory / "tracking.json").read_text())["run_id"]
    assert open_client(uri).get_run(run_id).info.status == "FAILED"
    assert steps_of(uri, run_id, "test/accuracy") == [1, 2]


def test_a_run_that_is_not_tracked_leaves_no_store(tmp_path: Path) -> None:
    result = rayfl.run({**SETTINGS, "output": tmp_path, "tracking": {"enabled": False}})
    assert result.mlflow_run_id is None
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}


# -- a server that dies ----------------------------------------------------------------------------


class Server:
    """An MLflow server on loopback, in a session of its own so that all its workers end with it."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"http://me:{SECRET}@127.0.0.1:{self.port}"

    def start(self) -> None:
        store = f"sqlite:///{self.folder / 'server.db'}"
        place = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        files = [
            "--backend-store-uri",
            store,
            "--artifacts-destination",
            str(self.folder / "files"),
        ]
        with (self.folder / "server.log").open("ab") as log:
            command = [sys.executable, "-m", "mlflow", "server", *place, *files]
            self.process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, cwd=self.folder
            )
        await_that(self.answers, "answer of the server")

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/health", timeout=5
            ) as response:
                return bool(response.status == 200)
        except (OSError, urllib.error.URLError):
            return False

    def kill(self) -> None:
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    folder = tmp_path / "server"
    folder.mkdir()
    made = Server(folder)
    made.start()
    yield made
    made.kill()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_dead_server_is_said_once_and_gets_everything_when_it_is_back(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tracking, "RETRY_SECONDS", 0.1)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    caplog.set_level(logging.WARNING)
    output = tmp_path / "out"
    live = Tracker(output / "runs" / "live", server.uri)
    live.start("drill", "live", {"see": server.uri}, {"uri": server.uri, "lr": 0.1})
    for step in (1, 2, 3):
        live.metrics(step, {"loss": 1.0 / step})
    await_that(lambda: live.journal.noted().get("carried") == 4, "first rounds at the server")

    server.kill()
    for step in (4, 5, 6):
        live.metrics(step, {"loss": 1.0 / step})
    await_that(lambda: "does not answer" in caplog.text, "word of the dead server")
    late = Tracker(output / "runs" / "late", server.uri)
    late.start("drill", "late", {}, {"lr": 0.2})
    late.metrics(1, {"loss": 0.5})
    await_that(
        lambda: caplog.text.count("does not answer") == 2,
        "word of the dead server from the other run",
    )
    started = time.monotonic()
    late.finish("FINISHED")
    assert time.monotonic() - started < 30, "a run does not wait for a dead server"
    assert "`rayfl sync` will carry the rest" in caplog.text
    time.sleep(1.0)
    assert caplog.text.count("does not answer") == 2, (
        "said once by each run, however often it is tried"
    )

    server.start()
    await_that(lambda: live.journal.noted().get("carried") == 7, "kept rounds at the server")
    live.finish("FINISHED")
    assert caplog.text.count("is back, nothing was lost") == 1
    assert live.run_id is not None
    assert steps_of(server.uri, live.run_id) == [1, 2, 3, 4, 5, 6]

    done = CliRunner().invoke(
        cli.rayfl, ["sync", "-o", str(output), "--uri", server.uri], catch_exceptions=False
    )
    assert done.output.splitlines() == [
        "late: 3 entries",
        f"3 entries carried to http://***@127.0.0.1:{server.port}",
    ]
    assert late.run_id is not None
    assert steps_of(server.uri, late.run_id) == [1]
    assert {
        open_client(server.uri).get_run(run).info.status for run in (live.run_id, late.run_id)
    } == {"FINISHED"}
    again = CliRunner().invoke(
        cli.rayfl, ["sync", "-o", str(output), "--uri", server.uri], catch_exceptions=False
    )
    assert again.output.startswith("0 entries carried")
    assert SECRET not in caplog.text + done.output
    assert holding(output, SECRET) == holding(server.folder, SECRET) == []


def test_sync_with_a_dead_server_says_so_and_keeps_everything(tmp_path: Path) -> None:
    Journal(tmp_path / "runs" / "a").append(
        "start", experiment="e", run_name="r", tags={}, params={}
    )
    words = ["sync", "-o", str(tmp_path), "--uri", f"http://me:{SECRET}@127.0.0.1:9"]
    with pytest.raises(
        rayfl.errors.RayflError, match=r"^http://\*\*\*@127\.0\.0\.1:9 does not answer"
    ):
        CliRunner().invoke(cli.rayfl, words, catch_exceptions=False)
    assert Journal(tmp_path / "runs" / "a").noted() == {}


@pytest.mark.parametrize(
    "wrong", [f"http://me:{SECRET}@127.0.0.1:9", "bogus://nowhere", "sqlite:////proc/nowhere/x.db"]
)
def test_no_store_is_so_broken_that_it_ends_a_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, wrong: str
) -> None:
    result = rayfl.run({**SETTINGS, "output": tmp_path, "tracking": {"uri": wrong}})
    assert len(result.history) == 3
    assert result.mlflow_run_id is None
    assert "`rayfl sync` will carry the rest" in caplog.text
    assert SECRET not in caplog.text
    assert [e["step"] for e in Journal(result.directory).entries() if e["kind"] == "metrics"] == [
        1,
        2,
        3,
    ]
