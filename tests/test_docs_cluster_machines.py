"""What docs/cluster.md says that two machines can run, on two."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

import rayfl
from rayfl.config.schema import load_config
from tests.docs_cluster_toys import BATCH_FILES, COMMANDS, FILES, command, manifest
from tests.nodes import short_folder, surroundings, wait_for
from tests.reliability.drills import ROOT, descendants, title_of

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


def test_the_image_has_the_ray_of_the_manifest_and_the_tree_of_the_project() -> None:
    text = (FILES / "Dockerfile").read_text()
    steps = [
        line.split(maxsplit=1) for line in text.splitlines() if line and not line.startswith("#")
    ]
    assert [step for step, _ in steps] == ["ARG", "FROM", "WORKDIR", "COPY", "RUN"]
    version = manifest("rayjob.yaml")["spec"]["rayClusterSpec"]["rayVersion"]
    assert steps[0][1] == f"RAY={version}"
    assert steps[2][1] in manifest("rayjob.yaml")["spec"]["entrypoint"]
    assert command("git archive") == text.splitlines()[0].removeprefix("# ")


# -- two machines --------------------------------------------------------------------------------


HEAD, WORKER = "10.0.0.1", "10.0.0.2"


@dataclass(frozen=True)
class Machine:
    """A namespace with a network, processes and a Ray of its own; all in it ends with its first
    process."""

    address: str
    init: int
    env: dict[str, str]
    project: Path

    def entering(self) -> list[str]:
        return ["nsenter", "--target", str(self.init), "--net", "--mount", "--pid", "--"]

    def __call__(self, line: str, timeout: float = 240) -> str:
        """What a command of the page says, given in the project's folder; it must succeed."""
        words = [*self.entering(), "bash", "-c", f"cd {self.project} && {line}"]
        done = subprocess.run(words, env=self.env, capture_output=True, text=True, timeout=timeout)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def processes(self, title: str) -> int:
        return sum(title_of(pid).startswith(title) for pid in descendants(self.init))


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def networks(*addresses: str) -> Iterator[list[str]]:
    """Two network namespaces that a cable joins, under names of this process."""
    names = [f"rayfl{os.getpid()}-{i}" for i in range(len(addresses))]
    tools = all(shutil.which(tool) for tool in ("ip", "nsenter", "unshare", "bash"))
    if (
        not tools
        or os.geteuid()
        or subprocess.run(["ip", "netns", "add", names[0]], capture_output=True).returncode
    ):
        pytest.skip("network namespaces are not allowed here")
    try:
        ip("netns", "add", names[1])
        ip(
            "link",
            "add",
            "cable",
            "netns",
            names[0],
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            names[1],
        )
        for name, address in zip(names, addresses, strict=True):
            ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
            for device in ("lo", "cable"):
                ip("-n", name, "link", "set", device, "up")
            ip("-n", name, "route", "add", "default", "dev", "cable")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


@contextmanager
def booted(
    name: str, address: str, project: Path, home: Path, hidden: Path | None
) -> Iterator[Machine]:
    """A machine; where it is `hidden`, a folder of this one is empty."""
    Path("/tmp/ray").mkdir(exist_ok=True)
    mounts = " && ".join(f"mount -t tmpfs none {place}" for place in ("/tmp/ray", hidden) if place)
    apart = [
        "ip",
        "netns",
        "exec",
        name,
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    # A shell, because the first process inherits whatever is left behind and must bury it.
    sleeping = f"{mounts} && while :; do sleep 3600 & wait $!; done"
    outer = subprocess.Popen([*apart, "bash", "-c", sleeping], start_new_session=True)
    try:
        wait_for(
            lambda: any(title_of(pid).startswith("sleep") for pid in descendants(outer.pid)),
            "a machine",
        )
        init = next(pid for pid in descendants(outer.pid) if title_of(pid).startswith("bash"))
        env = surroundings(
            HOME=str(home), RAY_DISABLE_IMPORT_WARNING="1", RAY_USAGE_STATS_ENABLED="0"
        )
        yield Machine(
            address,
            init,
            {**env, "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": str(100 << 20)},
            project,
        )
    finally:
        outer.kill()
        outer.wait(20)


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[Machine, Machine, Path]]:
    """Two machines on one cable, and the folder of the head that the other one does not see."""
    with ExitStack() as stack:
        names = stack.enter_context(networks(HEAD, WORKER))
        folder = stack.enter_context(short_folder())
        project, home, shared = (folder / name for name in ("project", "home", "shared"))
        for place in (home, shared):
            place.mkdir()
        for room in ("jobs", "configs", "docs"):
            shutil.copytree(
                ROOT / room, project / room, ignore=shutil.ignore_patterns("__pycache__")
            )
        both = [
            stack.enter_context(booted(name, address, project, home, hidden))
            for name, address, hidden in zip(names, (HEAD, WORKER), (None, shared), strict=True)
        ]
        yield both[0], both[1], folder


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the page's run, in this process."""
    settings = {
        "output": str(tmp_path_factory.mktemp("inline")),
        "fleet": "inline",
        "tracking": {"enabled": False},
    }
    overrides = [
        "training.rounds=3",
        "fleet=inline",
        "tracking.enabled=false",
        f"output={settings['output']}",
    ]
    return rayfl.run(load_config(ROOT / "configs/quickstart.yaml", overrides)).sha256


@pytest.mark.alone
def test_several_machines_as_the_page_has_it(
    machines: tuple[Machine, Machine, Path], expected: str
) -> None:
    head, worker, folder = machines
    token = head(command("ray get-auth-token")) and head("cat ~/.ray/auth_token")
    assert token
    head(command("chmod"))
    (line,) = [line for line in COMMANDS if line == "export RAY_AUTH_MODE=token"]
    secured = dict([line.removeprefix("export ").split("=")])
    head, worker = (
        Machine(m.address, m.init, {**m.env, **secured}, m.project) for m in (head, worker)
    )
    head(command("ray start --head", "--node-ip-address"))
    worker(command("ray start --address"))
    wait_for(lambda: head(command("ray status")).count(" 1 node_") == 2, "second node")
    assert "2 nodes, 2 CPUs" in head(command("rayfl doctor"))

    # The worker does not see /shared: what it needs comes through Ray.
    said = head(
        command("ray job submit", "RAYFL_OUTPUT").replace("/shared", str(folder / "shared"))
    )
    assert f"model sha256               {expected}" in said
    (run,) = (folder / "shared" / "outputs" / "runs").iterdir()
    assert json.loads((run / "result.json").read_text())["sha256"] == expected
    assert list((run / "checkpoints").glob("round-000003.json")), "checkpoints lie beside the run"

    head(command("ray job submit", "--submission-id mine"))
    journals = folder / "home" / "rayfl-outputs" / "runs"
    wait_for(
        lambda: any("metrics" in path.read_text() for path in journals.glob("*/journal.jsonl")),
        "a first round",
    )
    assert [machine.processes("ray::ClientActor") for machine in (head, worker)] == [1, 1]
    assert [machine.processes("ray::Coordinator") for machine in (head, worker)] == [1, 0]
    head(command("ray job stop"))
    assert "stopped by SIGTERM; go on with the same command" in head(command("ray job logs"))
    assert "STOPPED" in head(command("ray job list"))
    with pytest.raises(AssertionError, match=r"(?i)authenticat"):
        Machine(head.address, head.init, {**head.env, "RAY_AUTH_MODE": "disabled"}, head.project)(
            "ray job list"
        )
    for machine in (worker, head):
        machine(command("ray stop"))
    assert [machine.processes("ray::") for machine in (head, worker)] == [0, 0]


SRUN = """#!/bin/bash
# A stand-in: runs a step on the node that -w names, or on all.
nodes=({addresses})
while [[ $1 == -* ]]; do
    if [[ $1 == -w ]]; then nodes=("$2"); shift; fi
    shift
done
pids=()
for node in "${{nodes[@]}}"; do
    nsenter --target "$(cat "{folder}/$node")" --net --mount --pid -- \\
        bash -c 'cd "$0" && exec "$@"' "$PWD" "$@" &
    pids+=($!)
done
status=0
for pid in "${{pids[@]}}"; do wait "$pid" || status=$?; done
exit $status
"""


SCONTROL = """#!/bin/bash
# A stand-in for `scontrol show hostnames LIST`.
[[ "$1 $2" == "show hostnames" ]] && tr ',' '\\n' <<< "$3"
"""


@pytest.fixture(scope="module")
def slurm(machines: tuple[Machine, Machine, Path]) -> dict[str, str]:
    """The environment of a batch job on both machines, with stand-ins for Slurm's own commands."""
    *nodes, folder = machines
    tools = folder / "slurm"
    tools.mkdir()
    for node in nodes:
        (tools / node.address).write_text(str(node.init))
    stand_ins = {
        "srun": SRUN.format(addresses=f"{HEAD} {WORKER}", folder=tools),
        "scontrol": SCONTROL,
    }
    for name, text in stand_ins.items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    job = {
        "SLURM_JOB_NODELIST": f"{HEAD},{WORKER}",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
    }
    return {**nodes[0].env, **job, "PATH": f"{tools}:{nodes[0].env['PATH']}"}


@pytest.mark.alone
@pytest.mark.parametrize("name", BATCH_FILES)
def test_a_batch_file_runs_on_two_machines(
    machines: tuple[Machine, Machine, Path], slurm: dict[str, str], expected: str, name: str
) -> None:
    head, worker, _ = machines
    words = shlex.split(command(f"sbatch docs/cluster/{name}", "training.rounds"))[1:]
    started = time.time()
    done = subprocess.run(
        ["bash", *words], cwd=head.project, env=slurm, capture_output=True, text=True, timeout=400
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert f"model sha256               {expected}" in said, said
    newest = max(
        (head.project / "outputs" / "runs").iterdir(), key=lambda path: path.stat().st_mtime
    )
    assert newest.stat().st_mtime >= started - 1
    assert '"actors": "2"' in (newest / "journal.jsonl").read_text()
    assert "2 nodes, 2 CPUs" in (newest / "journal.jsonl").read_text()
    assert [machine.processes("ray::") for machine in (head, worker)] == [0, 0]
