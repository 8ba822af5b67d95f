"""docs/cluster.md: every command is one that its program takes, and what two machines can run is
run on two.

The machines are namespaces of this one, with networks, processes and file systems of their own, so
that addresses, ports and `ray stop` are as the page says. Slurm, Kubernetes and Docker are not
here: their files are read, and the batch files run with a stand-in for `srun` that starts its steps
on those machines."""

from __future__ import annotations

import re
import shlex
import subprocess
import warnings
import zipfile
from pathlib import Path

import click
import pytest

from rayfl.config.schema import load_config
from tests.commands import environment
from tests.docs_cluster_toys import BATCH_FILES, BLOCKS, COMMANDS, FILES, PAGE, command, manifest
from tests.reliability.drills import ROOT

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::DeprecationWarning")]


OVERRIDE = re.compile(r"[a-z_.]+=")


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
    attached = {(ROOT / "docs" / link).name for link in links if not link.endswith(".md")}
    assert attached == {path.name for path in FILES.iterdir()} - {"storage.yaml"}
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
