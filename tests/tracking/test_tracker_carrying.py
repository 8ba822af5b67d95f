"""What the tracker carries to MLflow, and when."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import rayfl
from rayfl import cli
from rayfl.tracking import tracker as tracking
from rayfl.tracking.carrier import sync_journals
from rayfl.tracking.journal import Journal
from rayfl.tracking.store import open_client
from rayfl.tracking.tracker import Tracker
from tests.mlflow_server import MlflowServer
from tests.tracking.tracker_toys import SECRET, SETTINGS, steps_of, uri_of

# MLflow uses what SQLAlchemy is about to drop, and warns of type hints of its own when its models
# are imported.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]


PATIENCE = 120.0


def await_that(seen: Callable[[], object], what: str) -> None:
    started = time.monotonic()
    while not seen():
        assert time.monotonic() - started < PATIENCE, f"no {what} within {PATIENCE} s"
        time.sleep(0.05)


@pytest.mark.parametrize("folder", ["", "figures"])
def test_artifacts_are_there(tracked: rayfl.Result, folder: str) -> None:
    wanted = {
        "": {"config.yaml", "scenario.txt", "clients.json"},
        "figures": {"figures/learning_curve.png", "figures/confusion.png"},
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
    place = f"models:/{Journal(tracked.directory).noted()['model_id']}"
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


class Server(MlflowServer):
    """One whose address has a password."""

    @property
    def uri(self) -> str:
        return f"http://me:{SECRET}@127.0.0.1:{self.port}"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "server")
    made.start()
    yield made
    made.kill()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_dead_server_is_said_once_and_gets_everything_when_it_is_back(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(tracking, "RETRY_SECONDS", 0.1)
    # By itself MLflow's client tries for minutes before it says that nobody answers.
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
    # Nobody answers before it returns: a run does not wait for a dead server.
    late.finish("FINISHED")
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
