"""Jobs that are stopped in the middle and submitted again, on a head node that somebody started by
hand."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

import rayfl
from rayfl.tracking.store import default_uri, open_client
from tests.commands import BIN, free_ports
from tests.nodes import Node, short_folder, surroundings, wait_for
from tests.reliability.drills import ROOT, SETTINGS, comparable, noted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(600),
]

METHOD = '''"""A method of the user's own, beside the configuration, that waits to be stopped."""

import time
from pathlib import Path

from rayfl.algorithms.fedavg import FedAvg
from rayfl.component import Natural, component


@component
class Slow(FedAvg):
    """Federated averaging that waits in a round until there is a file."""

    waits: Natural = 0

    def round(self, state, fleet, t):
        while t == self.waits and not Path.home().joinpath("go").exists():
            time.sleep(0.05)
        return super().round(state, fleet, t)
'''
ROUNDS = 12
TRAINING = {**SETTINGS["training"], "rounds": ROUNDS}
CONFIG = {
    **{key: value for key, value in SETTINGS.items() if key not in {"tracking", "checkpoint"}},
    "method": {"name": "slow:Slow", "waits": 5},
    "training": TRAINING,
    "resources": {"cpus_per_client": 0.5, "actors": 2},
    "checkpoint": {"min_seconds": 1000},
}
STUDY = {
    "title": "Two methods",
    "base": "drill.yaml",
    "axes": {
        "method": {
            "slow": {"title": "Slow", "set": {}},
            "fedavg": {"title": "FedAvg", "set": {"method": "fedavg"}},
        }
    },
    "seeds": [0],
    "scores": {"accuracy": {"title": "accuracy (%)", "percent": True}},
    "table": {"rows": ["method"], "columns": []},
}


@dataclass(frozen=True)
class Desk:
    """A head node for jobs, a folder that is submitted, and the home directory of whoever started
    the node."""

    address: str
    folder: Path
    home: Path
    env: Mapping[str, str]

    def ray_job(self, verb: str, *words: str) -> str:
        command = [str(BIN / "ray"), "job", verb, "--address", self.address, *words]
        done = subprocess.run(
            command, cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=300
        )
        said = done.stdout + done.stderr
        assert done.returncode == 0, said
        return said

    def submit(self, name: str, *job: str, wait: bool) -> str:
        way = () if wait else ("--no-wait",)
        return self.ray_job(
            "submit", *way, "--submission-id", name, "--working-dir", ".", "--", "python", *job
        )

    def runs(self) -> list[Path]:
        return sorted((self.home / "rayfl-outputs" / "runs").glob("*"))

    def await_round(self, number: int) -> None:
        """Wait until the newest run has noted this round."""
        wait_for(lambda: any(steps(run)[-1:] >= [number] for run in self.runs()), f"round {number}")

    def stop(self, name: str) -> str:
        """Stop a job; what it said."""
        said = self.ray_job("stop", name)
        assert "was stopped" in said, said
        (self.home / "go").touch()
        return self.ray_job("logs", name)


def steps(run: Path) -> list[int]:
    """The rounds that a run has noted, in the order in which it noted them."""
    journal = run / "journal.jsonl"
    return (
        [entry["step"] for entry in noted(journal) if entry["kind"] == "metrics"]
        if journal.exists()
        else []
    )


@pytest.fixture(scope="module")
def head() -> Iterator[tuple[str, Path, Mapping[str, str]]]:
    """A head node of two CPUs: its address for jobs, its owner's home, its environment."""
    port, dashboard, agent, client = map(str, free_ports(4))
    # What others make this machine do meanwhile stretches the three seconds that a stopped job is
    # given.
    busy = math.ceil(3 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))
    with short_folder() as folder:
        env = surroundings(HOME=str(folder / "home"), RAY_JOB_STOP_WAIT_TIME_S=str(busy))
        env.pop("RAYFL_OUTPUT", None)
        places = ["--head", "--port", port, "--temp-dir", str(folder / "h")]
        ports = ["--dashboard-port", dashboard, "--dashboard-agent-listen-port", agent]
        ports += ["--ray-client-server-port", client, "--num-cpus", "2"]
        node = Node(folder, *places, *ports, env=env)
        try:
            address = f"http://127.0.0.1:{dashboard}"
            node.await_answer(f"{address}/api/version")
            yield address, folder / "home", env
        finally:
            node.end()


@pytest.fixture
def desk(head: tuple[str, Path, Mapping[str, str]], tmp_path: Path) -> Iterator[Desk]:
    address, home, env = head
    (home / "go").unlink(missing_ok=True)
    folder = tmp_path / "project"
    folder.mkdir()
    shutil.copytree(ROOT / "jobs", folder / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "slow.py").write_text(METHOD)
    (folder / "drill.yaml").write_text(yaml.safe_dump(CONFIG))
    (folder / "study.yaml").write_text(yaml.safe_dump(STUDY, sort_keys=False))
    yield Desk(address, folder, home, env)
    shutil.rmtree(home / "rayfl-outputs", ignore_errors=True)


def undisturbed(folder: Path, method: Any) -> str:
    """The hash of the same run in this process; a pause does not change it."""
    settings = {**CONFIG, "method": method, "output": folder, "tracking": {"enabled": False}}
    return rayfl.run({**settings, "fleet": "inline"}).sha256


def assert_tracked_once(desk: Desk, run: Path) -> None:
    """One finished run in the store beside it, with every round once."""
    client = open_client(default_uri(desk.home / "rayfl-outputs"))
    experiment = client.get_experiment_by_name("rayfl")
    (found,) = client.search_runs([experiment.experiment_id], f"tags.run = '{run.name}'")
    assert found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "test/accuracy")
    assert [point.step for point in history] == list(range(1, ROUNDS + 1))


@pytest.mark.long
def test_a_stopped_job_goes_on_when_it_is_submitted_again(desk: Desk, tmp_path: Path) -> None:
    desk.submit("first", "jobs/run.py", "drill.yaml", wait=False)
    desk.await_round(3)
    said = desk.stop("first")
    (run,) = desk.runs()
    assert f"stopped by SIGTERM; go on with the same command and --resume {run.name}" in said
    assert "Traceback" not in said
    reached = steps(run)[-1]
    assert 3 <= reached < ROUNDS
    saved = max(
        int(path.stem.partition("-")[2]) for path in (run / "checkpoints").glob("round-*.json")
    )
    assert saved >= reached, "what was told of was saved before the job ended"

    said = desk.submit("second", "jobs/run.py", "drill.yaml", "--resume", "auto", wait=True)
    assert "succeeded" in said
    assert desk.runs() == [run], "the same run, not another one"
    digest = undisturbed(tmp_path / "inline", "fedavg")
    assert comparable(run)[0] == digest
    assert f"model sha256               {digest}" in said
    assert steps(run) == list(range(1, ROUNDS + 1)), "every round is noted once"
    assert_tracked_once(desk, run)


@pytest.mark.alone
def test_a_stopped_study_goes_on_when_it_is_submitted_again(desk: Desk, tmp_path: Path) -> None:
    job = ("jobs/study.py", "study.yaml", "--seeds", "1")
    desk.submit("study-1", *job, wait=False)
    desk.await_round(3)
    said = desk.stop("study-1")
    assert "stopped; nothing is lost. Go on with the same command" in said, said
    (begun,) = desk.runs()
    reached = steps(begun)[-1]
    assert reached < ROUNDS

    said = desk.submit("study-2", *job, wait=True)
    assert "Two methods" in said
    runs = desk.runs()
    assert begun in runs
    assert len(runs) == 2
    assert steps(begun) == list(range(1, ROUNDS + 1))
    hashes = {json.loads((run / "result.json").read_text())["sha256"] for run in runs}
    assert hashes == {undisturbed(tmp_path / "inline", "fedavg")}, (
        "both cells are the same training"
    )
