"""The command line: quick help, listings, exit codes, and messages without tracebacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from rayfl import cli
from rayfl.commands.doctor import check_store
from rayfl.commands.listings import LISTINGS
from rayfl.commands.registries import find_registry
from rayfl.commands.run import choose_metrics
from rayfl.errors import DataError, PhaseError, RayflError, StorageError
from rayfl.run.signals import STOPPING
from rayfl.tracking.sqlite_store import prepare_store
from rayfl.version import __version__

ROOT = Path(__file__).parent.parent
RAYFL = Path(sys.executable).with_name("rayfl")
TINY = {
    "data": {"name": "blobs", "samples": 100, "test_samples": 20, "classes": 3},
    "clients": 3,
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"rounds": 2},
    "fleet": "inline",
    "tracking": {"enabled": False},
}


def invoked(*words: str) -> str:
    """What a command prints that succeeds."""
    result = CliRunner().invoke(cli.rayfl, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and standard error of a command that fails."""
    before = {number: signal.getsignal(number) for number in STOPPING}
    with pytest.raises(SystemExit) as left:
        cli.main(list(words))
    for number, handler in before.items():
        # A command leaves its signals ignored: its process ends with it.
        signal.signal(number, handler)
    assert isinstance(left.value.code, int)
    return left.value.code, capsys.readouterr().err


@pytest.fixture
def tiny(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration of a second, in a directory of its own."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = home / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


# -- help and version ------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--version"], ["run", "--help"], []])
def test_help_takes_less_than_half_a_second_of_processor_time(words: list[str]) -> None:
    process = subprocess.Popen(
        [str(RAYFL), *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    text = process.stdout.read().decode()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    process.stdout.close()
    assert used.ru_utime + used.ru_stime < 0.5
    assert text.startswith(("Usage: rayfl", "rayfl, version"))


def test_the_version_is_the_package_s() -> None:
    assert invoked("--version") == f"rayfl, version {__version__}\n"


@pytest.mark.parametrize("name", sorted([*cli.GROUPS, *cli.rayfl.commands]))
def test_every_command_is_listed_and_has_help(name: str) -> None:
    assert f"\n  {name} " in invoked("--help")
    assert f"Usage: rayfl {name}" in invoked(name, "--help").replace("root", "rayfl")


def test_the_groups_have_their_commands() -> None:
    assert "describe" in invoked("data", "--help")
    assert "build" in invoked("scenario", "--help")


# -- listings --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plural", sorted(LISTINGS))
def test_a_registry_is_listed_a_line_each(plural: str) -> None:
    lines = invoked(plural).splitlines()
    assert [line.split()[0] for line in lines] == find_registry(plural).names()
    assert all(len(line.split(maxsplit=1)) == 2 for line in lines), (
        "every name comes with what it is"
    )


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (
            ["methods", "fedavg"],
            ["fedavg", "from: McMahan et al., AISTATS 2017", "  weighting = ", "the paper's"],
        ),
        (["noises", "symmetric"], ["settings:", "  rate = required"]),
        (["models", "mlp"], ["  hidden = "]),
        (["datasets", "digits"], ["1,797 handwritten digits", "settings:\n  none"]),
        (["partitions", "dirichlet"], ["  alpha = ", "  min_size = "]),
        (
            ["methods", "tests.reliability.methods:Stateful"],
            ["Federated averaging whose clients remember.", "pause = 0"],
        ),
    ],
)
def test_a_component_is_shown_with_its_settings(words: list[str], parts: list[str]) -> None:
    text = invoked(*words)
    for part in parts:
        assert part in text


@pytest.mark.parametrize("name", find_registry("methods").names())
def test_every_method_says_what_it_is_and_where_it_is_from(name: str) -> None:
    text = invoked("methods", name)
    assert len(text.splitlines()[2]) > 10
    assert "settings:" in text


def test_an_unknown_component_is_refused_with_the_nearest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = refused(capsys, "methods", "fedavgg")
    assert code == 2
    assert said.startswith("error: unknown method 'fedavgg'. Did you mean 'fedavg'? Known: ")


# -- config ----------------------------------------------------------------------------------------


def test_the_resolved_configuration_is_yaml_with_overrides_and_without_secrets(tiny: Path) -> None:
    text = invoked("config", str(tiny), "training.lr=1e-2", "tracking.uri=http://me:hunter2@host")
    found = yaml.safe_load(text)
    assert (found["training"]["lr"], found["training"]["rounds"]) == (0.01, 2)
    assert found["tracking"]["uri"] == "http://***@host"
    assert found["partition"]["name"] == "iid"


# -- running ---------------------------------------------------------------------------------------


def test_a_run_ends_with_its_metrics_and_hashes(tiny: Path) -> None:
    lines = dict(
        line.rsplit(maxsplit=1) for line in invoked("run", str(tiny), "--quiet").splitlines()
    )
    assert set(lines) >= {
        "test/accuracy",
        "test/loss",
        "run",
        "mlflow run",
        "scenario sha256",
        "model sha256",
    }
    assert (Path(lines["run"]) / "result.json").is_file()
    assert len(lines["model sha256"]) == len(lines["scenario sha256"]) == 64
    assert lines["mlflow run"] == "none"


def test_a_log_gets_a_line_for_the_last_round(tiny: Path) -> None:
    assert "round 2/2  accuracy " in invoked("run", str(tiny))


# -- failures --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "nowhere.yaml"], 2, "error: a configuration is a readable YAML file; got "),
        (["config", "nowhere.yaml"], 2, "error: a configuration is a readable YAML file; got "),
        (
            ["run", "tiny.yaml", "training.lrr=1"],
            2,
            "training.lrr is not a known key. Did you mean 'lr'?",
        ),
        (["run", "tiny.yaml", "training.lr"], 2, "error: an override has the form key.sub=value"),
        (
            ["run", "tiny.yaml", "clients=0"],
            2,
            "clients: must be greater than or equal to 1; got 0",
        ),
        (
            ["run", "tiny.yaml", "--resume", "nothing"],
            2,
            "--resume takes a run below the output folder, or auto",
        ),
        (["run", "tiny.yaml", "device=cuda"], 2, "fleet: inline runs on the CPU; got device: cuda"),
        (["run", "tiny.yaml", "data={name: folder, path: /nowhere}"], None, "error: "),
        (
            ["run", "tiny.yaml", "scenario=/nowhere"],
            3,
            "error: a scenario is a directory with a scenario.json",
        ),
        (
            ["run", "tiny.yaml", "output=tiny.yaml"],
            5,
            "error: the output folder must be writable; got ",
        ),
        (["run"], 2, "Missing argument 'CONFIG'"),
        (["runn"], 2, "No such command 'runn'"),
        (["run", "tiny.yaml", "--bogus"], 2, "No such option"),
        (["ui", "--port", "0"], 2, "0 is not in the range"),
    ],
)
def test_what_a_person_got_wrong_is_one_message_and_an_exit_code(
    tiny: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int | None, message: str
) -> None:
    found, said = refused(capsys, *words)
    assert found == code if code is not None else found != 0
    assert message in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("kind", "code"), [(RayflError, 1), (DataError, 3), (PhaseError, 4), (StorageError, 5)]
)
def test_each_kind_of_failure_has_its_exit_code(
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    kind: type[RayflError],
    code: int,
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise kind("http://me:hunter2@host is gone")

    monkeypatch.setattr("rayfl.run.experiment.run", failing)
    assert refused(capsys, "run", str(tiny)) == (code, "error: http://***@host is gone\n")


def test_nothing_is_written_for_a_run_that_is_refused(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, "run", str(tiny), "clients=0")
    assert list(tiny.parent.iterdir()) == [tiny]


@pytest.mark.parametrize("debug", [True, False])
def test_only_debug_shows_a_traceback(tiny: Path, debug: bool) -> None:
    words = [str(RAYFL), *(["--debug"] if debug else []), "config", str(tiny), "clients=0"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert ("Traceback (most recent call last)" in done.stderr) is debug
    assert "clients: must be greater than or equal to 1; got 0" in done.stderr
    assert done.returncode == (1 if debug else 2)
    assert done.stdout == ""


# -- sync ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_sync_of_nothing_carries_nothing(home: Path) -> None:
    assert (
        invoked("sync", "-o", str(home / "out"))
        == f"0 entries carried to sqlite:///{home / 'out' / 'mlflow.db'}\n"
    )


def test_ui_shows_this_project_s_store_on_loopback(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []

    def serve(words: list[str], _: object) -> int:
        started.append(words)
        return 0

    monkeypatch.setattr("rayfl.tracking.ui_server.serve_until_stopped", serve)
    uri = f"sqlite:///{home / 'out' / 'mlflow.db'}"
    prepare_store(home / "out" / "mlflow.db")
    assert invoked("ui", "-o", "out", "--port", "5123") == f"http://127.0.0.1:5123  ({uri})\n"
    command = " ".join(started[0])
    assert f"--backend-store-uri {uri}" in command
    assert "--host 127.0.0.1 --port 5123" in command


# -- what belongs to whom --------------------------------------------------------------------------


@pytest.mark.slow
def test_sync_ui_and_doctor_look_where_runs_are_written(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYFL_OUTPUT", str(home / "elsewhere"))
    monkeypatch.setattr("rayfl.tracking.ui_server.serve_until_stopped", lambda *_: 0)
    prepare_store(home / "elsewhere" / "mlflow.db")
    looked: list[Path] = []

    def look(output: Path, _: object) -> list[object]:
        looked.append(output)
        return []

    monkeypatch.setattr("rayfl.commands.doctor.run_checks", look)
    uri = f"sqlite:///{home / 'elsewhere' / 'mlflow.db'}"
    assert uri in invoked("ui")
    assert uri in invoked("sync")
    invoked("doctor")
    assert looked == [home / "elsewhere"]
    assert not (home / "outputs").exists()


def test_a_run_ends_with_what_people_want_in_this_order() -> None:
    metrics = {
        "cost/up_mb": 1.0,
        "labels/kept": 0.5,
        "reliability/mean": 0.6,
        "clusters/count": 3.0,
        "test/recall/7": 0.1,
        "test/loss": 1.5,
        "test/worst_client": 0.2,
        "test/top5_accuracy": 0.9,
        "test/macro_f1": 0.4,
        "test/accuracy": 0.5,
    }
    names = [name for name, _ in choose_metrics(metrics)]
    assert names == [
        "test/accuracy",
        "test/top5_accuracy",
        "test/worst_client",
        "test/macro_f1",
        "test/loss",
        "clusters/count",
        "reliability/mean",
        "labels/kept",
    ]


MINE = '''
from rayfl.algorithms.fedavg import FedAvg
from rayfl.component import component


@component
class Mine(FedAvg):
    """My own."""
'''


@pytest.mark.slow
@pytest.mark.parametrize("fleet", ["inline", pytest.param("ray", marks=pytest.mark.long)])
def test_a_method_lies_beside_the_configuration_wherever_one_stands(
    fleet: str, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "project" / "my_own_method.py").write_text(MINE)
    settings = {**TINY, "method": "my_own_method:Mine", "fleet": fleet, "output": "out"}
    (tmp_path / "project" / "mine.yaml").write_text(yaml.safe_dump(settings))
    words = [str(RAYFL), "run", "../project/mine.yaml", "--quiet", "resources.actors=1"]
    done = subprocess.run(words, cwd=tmp_path / "elsewhere", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "elsewhere" / "out" / "runs").glob("*-Mine-*/result.json"))


def test_a_method_that_is_in_neither_folder_is_refused_with_both(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tiny.parent / "configs_of_mine").mkdir()
    config = tiny.rename(tiny.parent / "configs_of_mine" / "tiny.yaml")
    code, said = refused(capsys, "config", str(config), "method=nowhere_at_all:Mine")
    assert code == 2
    both = f"in {config.parent} or in the working directory {tiny.parent}"
    assert both in said


@pytest.mark.slow
def test_quickstart_and_the_methods_come_with_the_package(home: Path) -> None:
    invoked("config", "configs/methods/fedds.yaml")
    invoked("quickstart", "--quiet", "fleet=inline", "training.rounds=1", "tracking.enabled=false")
    assert len(list(home.glob("outputs/runs/*/result.json"))) == 2


def test_configurations_of_ones_own_come_before_those_of_the_package(home: Path) -> None:
    (home / "configs").mkdir()
    (home / "configs" / "quickstart.yaml").write_text("clients: 3")
    assert yaml.safe_load(invoked("config", "configs/quickstart.yaml"))["clients"] == 3


@pytest.mark.slow
def test_every_command_looks_at_the_store_that_the_environment_names(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = f"sqlite:///{home / 'store' / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setattr("rayfl.tracking.ui_server.serve_until_stopped", lambda *_: 0)
    prepare_store(home / "store" / "mlflow.db")
    assert uri in invoked("ui")
    assert uri in invoked("sync")
    assert uri in check_store(home / "outputs")
    assert not (home / "outputs").exists()


def test_a_key_that_is_written_as_an_option_is_told_how_it_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, said = refused(capsys, "run", "quickstart", "--rounds", "5")
    assert code == 2
    assert "Settings are written without dashes: training.rounds=VALUE." in said
