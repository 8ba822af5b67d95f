"""A job on a head that was started by hand: as the handbook says, it listens to this machine alone,
asks for a token, succeeds and is tracked."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from rayfl.tracking.store import open_client
from tests.commands import BIN, free_ports
from tests.reliability.drills import descendants
from tests.sockets import Listener, listeners_of, user_environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).parent.parent
PATIENCE = 180.0


TOKEN = secrets.token_hex(32)


def page_exports() -> dict[str, str]:
    """What the handbook has one export before a head is started that is alone."""
    page = (ROOT / "docs" / "cluster.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("export") and "OSX" in line]
    return dict(word.split("=") for word in line.split()[1:])


class Head(NamedTuple):
    """A cluster of one node: where it takes jobs, where drivers, its first process, and how to
    speak to it."""

    address: str
    drivers: str
    pid: int
    env: dict[str, str]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A head by hand, which ends with the test."""
    # Not pytest's folder: the path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="rj"))
    home = folder / "home"
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text(TOKEN)
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    env = {**user_environment(home), **page_exports(), "PATH": path}
    port, dashboard, agent, client = free_ports(4)
    words = ["--port", str(port), "--dashboard-port", str(dashboard)]
    words += ["--dashboard-agent-listen-port", str(agent), "--ray-client-server-port", str(client)]
    words += ["--temp-dir", str(folder), "--num-cpus", "2", "--disable-usage-stats"]
    with (folder / "head.log").open("wb") as log:
        command = [str(BIN / "ray"), "start", "--head", "--block", *words]
        process = subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
    try:
        address = f"http://127.0.0.1:{dashboard}"
        started = time.monotonic()
        while not answers(address):
            assert process.poll() is None, (folder / "head.log").read_text()
            assert time.monotonic() - started < PATIENCE, (folder / "head.log").read_text()
            time.sleep(0.2)
        yield Head(address, f"127.0.0.1:{port}", process.pid, env)
    finally:
        ours = descendants(process.pid)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            for pid in [*ours, process.pid]:
                if Path(f"/proc/{pid}").exists():
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def answers(address: str) -> bool:
    """Whether jobs are taken there. To listen is not enough: Ray tries a port before it uses it."""
    try:
        urlopen(f"{address}/api/version", timeout=PATIENCE).close()
    except HTTPError:
        return True  # it wants the token
    except OSError:
        return False
    return True


def submit(head: Head, *words: str, **env: str) -> subprocess.Popen[str]:
    """`ray job submit` of the project's folder."""
    command = [str(BIN / "ray"), "job", "submit", "--address", head.address, "--working-dir", "."]
    return subprocess.Popen(
        [*command, "--", *words],
        cwd=ROOT,
        env={**head.env, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_submitted_job_succeeds_and_its_run_is_in_mlflow(head: Head, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'jobs.db'}"
    places = [f"tracking.uri={uri}", f"output={tmp_path / 'out'}"]
    job = ["python", "jobs/run.py", "configs/quickstart.yaml", "training.rounds=3", *places]
    process = submit(head, *job)
    listening: set[Listener] = set()
    while process.poll() is None:
        listening |= listeners_of(head.pid)
        time.sleep(0.4)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert "succeeded" in said
    for name in ("jobs/run.py", "ClientActor", "Coordinator", "JobSupervisor", "DashboardAgent"):
        assert any(name in each.title for each in listening), f"{name} was not looked at"
    assert [each for each in sorted(listening) if not each.loopback] == []

    (directory,) = (tmp_path / "out" / "runs").iterdir()
    result = json.loads((directory / "result.json").read_text())
    assert f"model sha256               {result['sha256']}" in said
    client = open_client(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("rayfl").experiment_id])
    assert (run.info.status, run.data.tags["run"]) == ("FINISHED", directory.name)
    assert run.data.tags["ray_submission"] in said
    assert re.fullmatch(r"[0-9a-f]{8}", run.data.tags["ray_job"])
    assert run.data.tags["model_sha256"] == result["sha256"]
    history = client.get_metric_history(run.info.run_id, "test/accuracy")
    assert [point.step for point in history] == [1, 2, 3]

    stranger = submit(head, "true", HOME=str(tmp_path), RAY_AUTH_TOKEN="wrong")
    assert "authentication token is invalid" in stranger.communicate()[0]
    assert stranger.returncode != 0


@pytest.mark.long
def test_a_submitted_audit_leaves_its_page_and_is_in_mlflow(head: Head, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'audits.db'}"
    places = [f"tracking.uri={uri}", f"output={tmp_path / 'out'}"]
    noise = ["clients=4", "partition=iid", "noise.name=symmetric", "noise.rate=[0,0,0,0.7]"]
    job = ["python", "jobs/audit.py", "configs/quickstart.yaml", *noise, *places, "--folds", "2"]
    process = submit(head, *job)
    said = process.communicate()[0]
    assert process.returncode == 0, said
    assert "succeeded" in said
    (folder,) = (tmp_path / "out" / "audits").iterdir()
    assert (folder / "index.html").is_file()
    assert f"page   {folder / 'index.html'}" in said
    table = json.loads((folder / "clients.json").read_text())
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert [row["client"] for row in rows if row["verdict"] == "wrong labels"] == [3]
    client = open_client(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("rayfl").experiment_id])
    assert (run.info.status, run.data.tags["kind"]) == ("FINISHED", "audit")


@pytest.mark.long
def test_a_shell_that_knows_no_more_than_the_address_drives_a_run(
    head: Head, tmp_path: Path
) -> None:
    """The token lies in the home directory; that this head listens to its machine alone shows."""
    shell = {name: value for name, value in head.env.items() if name not in page_exports()}
    words = ["run", "quickstart", "training.rounds=1", "--address", head.drivers]
    words += ["tracking.enabled=false", f"output={tmp_path / 'out'}"]
    done = subprocess.run(
        [str(BIN / "rayfl"), *words], capture_output=True, text=True, cwd=tmp_path, env=shell
    )
    assert done.returncode == 0, done.stderr
    assert "model sha256" in done.stdout
