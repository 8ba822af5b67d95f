"""docs/cluster.md: every command is one that its program takes, and what two machines can run is
run on two.

The machines are namespaces of this one, with networks, processes and file systems of their own, so
that addresses, ports and `ray stop` are as the page says. Slurm, Kubernetes and Docker are not
here: their files are read, and the batch files run with a stand-in for `srun` that starts its steps
on those machines."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import time
import warnings
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import rayfl
from rayfl.config.schema import load_config
from tests.nodes import short_folder, surroundings, wait_for
from tests.reliability.drills import ROOT, descendants, title_of
from tests.test_job import environment

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

PAGE = (ROOT / "docs" / "cluster.md").read_text()
FILES = ROOT / "docs" / "cluster"
BLOCKS = re.findall(r"^```bash\n(# .*)\n((?:.*\n)*?)```$", PAGE, re.MULTILINE)
COMMANDS = [line for _, body in BLOCKS for line in body.splitlines()]
OVERRIDE = re.compile(r"[a-z_.]+=")


def command(*beginning: str) -> str:
    """The command of the page that begins so and says this."""
    first, *rest = beginning
    (found,) = [
        str(line)
        for line in COMMANDS
        if line.startswith(first) and all(part in line for part in rest)
    ]
    return found


# -- what the programs take ----------------------------------------------------------------------


def refuse_unknown(group: click.Command, words: list[str]) -> None:
    """Parse a command line by the program's own parser, without running it."""
    context = group.make_context("program", words, resilient_parsing=False)
    while isinstance(context.command, click.Group):
        name, inner, rest = context.command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert inner is not None
        context = inner.make_context(name, rest, parent=context)


def check_ray(words: list[str]) -> None:
    from ray.scripts.scripts import cli

    words, entry = (
        (words[: words.index("--")], words[words.index("--") + 1 :])
        if "--" in words
        else (words, [])
    )
    refuse_unknown(cli, [*words, *(["--", "true"] if entry else [])])
    if entry:
        assert words[:2] == ["job", "submit"]
        check_python(entry[1:])


def check_python(words: list[str]) -> None:
    """`jobs/run.py` and the like take what their commands take."""
    name, *rest = words
    assert (ROOT / name).is_file()
    check_rayfl([Path(name).stem, *rest])


def check_rayfl(words: list[str]) -> None:
    from rayfl.cli import rayfl as group

    refuse_unknown(group, words)
    if words[0] in {"run", "config"}:
        load_config(ROOT / words[1], [word for word in words[2:] if OVERRIDE.match(word)])
    elif words[0] in {"study", "sweep"}:
        assert (ROOT / words[1]).is_file()


def check_mlflow(words: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.cli import cli

    refuse_unknown(cli, words)


def check_files(words: list[str]) -> None:
    """For programs that are not here: the files that they are given are."""
    assert all((ROOT / word).is_file() for word in words if word.startswith("docs/"))


CHECKS = {"ray": check_ray, "rayfl": check_rayfl, "mlflow": check_mlflow}
ELSEWHERE = {"sbatch", "kubectl", "git", "docker", "ssh", "chmod", "export"}


def test_every_block_says_where_it_is_given() -> None:
    assert len(BLOCKS) == PAGE.count("```bash") > 10
    assert PAGE.count("```") == 2 * len(BLOCKS)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_one_that_its_program_takes(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(line)
    assert program in CHECKS or program in ELSEWHERE
    CHECKS.get(program, check_files)(words)


@pytest.mark.parametrize(
    "line",
    ["ray start --heads", "rayfl run configs/quickstart.yaml --adress x", "mlflow server --hots x"],
)
def test_a_command_that_its_program_does_not_take_is_found(
    line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    program, *words = shlex.split(line)
    with pytest.raises(click.NoSuchOption):
        CHECKS[program](words)


def test_settings_that_the_page_names_exist() -> None:
    named = set(re.findall(r"`((?:resources|checkpoint|tracking|training)\.\w+)[=`]", PAGE))
    assert len(named) >= 7
    config = load_config(ROOT / "configs/quickstart.yaml").resolved()
    for name in named:
        section, key = name.split(".")
        assert key in config[section], name


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", PAGE)
    assert {(ROOT / "docs" / link).name for link in links} == {
        path.name for path in FILES.iterdir()
    } - {"storage.yaml"}
    assert all((ROOT / "docs" / link).is_file() for link in links)


def test_the_upload_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ray._private.runtime_env.packaging import create_package

    monkeypatch.chdir(ROOT)
    create_package(".", tmp_path / "upload.zip", include_gitignore=True)
    rooms = {name.partition("/")[0] for name in zipfile.ZipFile(tmp_path / "upload.zip").namelist()}
    assert {"rayfl", "jobs", "configs", "pyproject.toml"} <= rooms
    assert not {"tests", "docs", "benchmarks", "outputs", "data", ".venv", ".mypy_cache"} & rooms
    assert (tmp_path / "upload.zip").stat().st_size < 20 << 20


# -- Slurm and Kubernetes, as far as they can be read --------------------------------------------

SBATCH = {
    "job-name",
    "nodes",
    "ntasks-per-node",
    "cpus-per-task",
    "exclusive",
    "time",
    "requeue",
    "open-mode",
    "output",
}
BATCH_FILES = ["symmetric.sbatch", "classic.sbatch"]


@pytest.mark.parametrize("name", BATCH_FILES)
def test_a_batch_file_is_one(name: str) -> None:
    text = (FILES / name).read_text()
    subprocess.run(["bash", "-n", str(FILES / name)], check=True)
    head, _, body = text.partition("set -euo pipefail")
    assert head.startswith("#!/bin/bash\n")
    assert set(re.findall(r"^#SBATCH --([a-z-]+)", head, re.MULTILINE)) == SBATCH
    assert "#SBATCH" not in body, "Slurm reads its options before the first command"


@pytest.mark.parametrize("name", BATCH_FILES)
def test_a_batch_file_makes_a_token_before_it_starts_ray(name: str) -> None:
    text = (FILES / name).read_text()
    (line,) = re.findall(r"^RAY_AUTH_TOKEN=.*$", text, re.MULTILINE)
    show = f'{line}; export RAY_AUTH_TOKEN; bash -c "echo \\$RAY_AUTH_TOKEN"'
    done = subprocess.run(
        ["bash", "-c", show], env=environment(), capture_output=True, text=True, check=True
    )
    assert re.fullmatch(r"[0-9a-f]{64}\n", done.stdout)
    export = text.index("export RAY_AUTH_MODE=token RAY_AUTH_TOKEN\n")
    assert text.index(line) < export < text.index("ray s")


def test_symmetric_run_takes_what_the_batch_file_gives_it() -> None:
    from ray.scripts.symmetric_run import curate_and_validate_ray_start_args

    text = (
        (FILES / "symmetric.sbatch")
        .read_text()
        .replace("\\\n", " ")
        .replace("$SLURM_JOB_NUM_NODES", "2")
    )
    (line,) = re.findall(r"ray symmetric-run (.*)", text)
    own, _, job = line.partition(" -- ")
    handed_on = curate_and_validate_ray_start_args(shlex.split(own))
    assert [word.partition("=")[0] for word in handed_on] == ["--num-cpus", "--num-gpus"]
    assert job.startswith("python jobs/run.py ")


def manifest(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FILES / name).read_text())
    return found


def test_the_job_of_kubernetes_is_consistent() -> None:
    job, claim = manifest("rayjob.yaml"), manifest("storage.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    program, *words = shlex.split(job["spec"]["entrypoint"].replace("/home/ray/rayfl/", ""))
    assert program == "python"
    check_python(words)
    cluster = job["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        pod = group["template"]["spec"]
        (container,) = pod["containers"]
        claims = {
            volume["name"]: volume["persistentVolumeClaim"]["claimName"]
            for volume in pod["volumes"]
        }
        assert {claims[mount["name"]] for mount in container["volumeMounts"]} == {
            claim["metadata"]["name"]
        }
        mounted = tuple(mount["mountPath"] for mount in container["volumeMounts"])
        assert all(
            v["value"].startswith(mounted)
            for v in container["env"]
            if v["name"].startswith("RAYFL_")
        )
        assert container["resources"]["requests"] == container["resources"]["limits"]
        assert container["image"] in command("docker push")
        refuse_unknown_start(group["rayStartParams"])
    gpus = [
        group["template"]["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu")
        for group in groups
    ]
    assert gpus == [None, "1"]


def refuse_unknown_start(params: dict[str, str]) -> None:
    from ray.scripts.scripts import cli

    refuse_unknown(cli, ["start", *(f"--{key}={value}" for key, value in params.items())])


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
