"""A job on a cluster that was there before: submitted as the handbook says, it succeeds and is
tracked."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rayfl.tracking.tracker import quiet_client
from tests.commands import BIN, answers, environment, free_ports
from tests.reliability.drills import descendants

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(600),
]

ROOT = Path(__file__).parent.parent
PATIENCE = 180.0


@pytest.fixture
def head() -> Iterator[str]:
    """The address for jobs of a cluster of one node on loopback, which ends with the test."""
    # Not pytest's folder: the path of a socket must be short.
    folder = Path(tempfile.mkdtemp(prefix="rj"))
    port, dashboard, agent, client = free_ports(4)
    places = ["--node-ip-address", "127.0.0.1", "--port", str(port), "--temp-dir", str(folder)]
    ports = ["--dashboard-port", str(dashboard), "--dashboard-agent-listen-port", str(agent)]
    words = [
        *places,
        *ports,
        "--ray-client-server-port",
        str(client),
        "--num-cpus",
        "2",
        "--disable-usage-stats",
    ]
    with (folder / "head.log").open("wb") as log:
        command = [str(BIN / "ray"), "start", "--head", "--block", *words]
        process = subprocess.Popen(
            command, stdout=log, stderr=log, env=environment(), start_new_session=True
        )
    try:
        address = f"http://127.0.0.1:{dashboard}"
        started = time.monotonic()
        while not answers(f"{address}/api/version"):
            assert process.poll() is None, (folder / "head.log").read_text()
            assert time.monotonic() - started < PATIENCE, (folder / "head.log").read_text()
            time.sleep(0.2)
        yield address
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


def test_a_submitted_job_succeeds_and_its_run_is_in_mlflow(head: str, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'jobs.db'}"
    places = [f"tracking.uri={uri}", f"output={tmp_path / 'out'}"]
    job = ["python", "jobs/run.py", "configs/quickstart.yaml", "training.rounds=3", *places]
    submit = [
        str(BIN / "ray"),
        "job",
        "submit",
        "--address",
        head,
        "--working-dir",
        ".",
        "--",
        *job,
    ]
    done = subprocess.run(
        submit, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=400
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "succeeded" in said

    (directory,) = (tmp_path / "out" / "runs").iterdir()
    result = json.loads((directory / "result.json").read_text())
    assert f"model sha256               {result['sha256']}" in said
    client = quiet_client(uri)
    (run,) = client.search_runs([client.get_experiment_by_name("rayfl").experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", directory.name)
    assert run.data.tags["model_sha256"] == result["sha256"]
    assert [
        point.step for point in client.get_metric_history(run.info.run_id, "test/accuracy")
    ] == [1, 2, 3]
