"""A mistake is told before anything exists: Ray has not started, there is no folder, no MLflow
run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import rayfl
from rayfl.config.schema import validate_config
from rayfl.errors import RayflError
from rayfl.run.directory import claim_directory, find_finished
from rayfl.run.experiment import run as run_experiment
from rayfl.run.preflight import PreparedRun, prepare_run
from tests.front.cli import invoked, invoked_json, refused

TINY: dict[str, Any] = {
    "data": {"name": "blobs", "samples": 100, "test_samples": 20, "classes": 3},
    "clients": 3,
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"rounds": 2},
    "tracking": {"enabled": False},
}

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"method": "fedpox"}, "Did you mean 'fedprox'"),
    ({"training": {"rounds": 2, "lr": -1}}, "training.lr: must be greater than or equal to 0"),
    ({"method": "fedds"}, "needs the set 'public'"),
    ({"method": "server_sl"}, "ServerSL needs the set 'labelled'"),
    ({"method": {"name": "fedprox", "mu": 100}}, "mu . training.lr of FedProx is below 1"),
    ({"clients": 500}, "clients is at most the 100 samples to deal out; got 500"),
    ({"data": {"name": "folder", "path": "/nowhere"}}, "must hold folders of images"),
    ({"data": "svhn", "data_root": "/nowhere"}, "svhn needs the file"),
    ({"scenario": "/nowhere"}, "a scenario is a directory"),
    ({"partition": "groups"}, "needs a dataset with group ids"),
    (
        {"training": {"rounds": 2, "clients_per_round": 4}},
        r"training.clients_per_round is at most clients \(3\); got 4. Lower it",
    ),
    ({"fleet": "inline", "device": "cuda"}, "fleet: inline runs on the CPU"),
]


@pytest.mark.parametrize(("changes", "said"), MISTAKES, ids=[str(each) for each, _ in MISTAKES])
def test_nothing_has_begun_where_something_is_wrong(
    home: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], said: str
) -> None:
    begun: list[object] = []
    monkeypatch.setattr("rayfl.fleet.on_ray.connection.EarlyStart.__init__", begun.append)
    monkeypatch.setattr("ray.init", lambda *a, **k: begun.append(a))
    with pytest.raises(RayflError, match=said):
        rayfl.run({**TINY, **changes})
    assert not begun
    assert list(home.iterdir()) == []


FROM_OUTSIDE = """
import sys
from rayfl import cli
try:
    cli.main(sys.argv[1:])
except SystemExit as left:
    print(left.code, sorted({"ray", "torch", "mlflow"} & set(sys.modules)))
"""


@pytest.mark.parametrize(
    "words",
    [
        ["method=fedpox"],
        ["round=5"],
        ["method=fedds"],
        ["method=fedprox", "method.mu=-1"],
        ["model.hiden=[3]"],
        ["clients=5000"],
        ["data=svhn", "data_root=/nowhere"],
        ["training.fraction=null", "training.clients_per_round=50"],
    ],
)
def test_what_is_told_first_needs_neither_torch_nor_ray_nor_mlflow(
    home: Path, words: list[str]
) -> None:
    command = [sys.executable, "-c", FROM_OUTSIDE, "run", "quickstart", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=home)
    code, _, imported = done.stdout.strip().partition(" ")
    assert (imported, done.stderr.startswith("error: ")) == ("[]", True), done.stderr
    assert code in ("2", "3")
    assert list(home.iterdir()) == []


ABSENT = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[1].split(","):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Absent())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: (
    None if name in sys.argv[1].split(",") else found(name, *rest)
)
from rayfl import cli
cli.main(sys.argv[2:])
"""


def without(packages: str, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line where some packages are not installed."""
    command = [sys.executable, "-c", ABSENT, packages, *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=home)


@pytest.mark.slow
def test_a_run_in_this_process_needs_neither_ray_nor_mlflow_nor_matplotlib(home: Path) -> None:
    words = ["fleet=inline", "training.rounds=1", "tracking.enabled=false", "--quiet"]
    done = without("ray,mlflow,matplotlib", home, "run", "quickstart", *words)
    assert done.returncode == 0, done.stderr
    assert list(home.glob("outputs/runs/*/result.json"))


@pytest.mark.parametrize(
    ("package", "words", "said"),
    [
        ("ray", ["run", "quickstart"], "pip install ray, or set fleet=inline."),
        ("mlflow", ["run", "quickstart", "fleet=inline"], "or set tracking.enabled=false."),
        ("ray", ["sweep", "quickstart"], "pip install ray"),
        ("matplotlib", ["data", "describe", "digits"], "pip install matplotlib."),
        ("mlflow", ["report", "rayfl", "--uri", "http://127.0.0.1:9"], "pip install mlflow"),
    ],
)
def test_what_is_not_installed_is_told_in_a_line(
    home: Path, package: str, words: list[str], said: str
) -> None:
    done = without(package, home, *words)
    assert done.returncode == 6
    [line] = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert said in line


# -- taken up again --------------------------------------------------------------------------------


@pytest.fixture
def tiny(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = home / "tiny.yaml"
    path.write_text(yaml.safe_dump({**TINY, "fleet": "inline"}))
    return path


def test_a_run_that_begins_anew_says_so(tiny: Path, caplog: pytest.LogCaptureFixture) -> None:
    invoked("run", "tiny.yaml", "--quiet", "--resume", "auto")
    runs = tiny.parent / "outputs" / "runs"
    told = f"no unfinished run like this one lies below {runs}: a new one begins"
    assert [record.getMessage() for record in caplog.records] == [told]


def test_a_finished_run_is_told_and_not_begun_again(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = invoked_json("run", "tiny.yaml")
    name = Path(first["run"]).name
    monkeypatch.setattr("rayfl.run.experiment.run", lambda *a, **k: pytest.fail("it was run"))
    said = invoked("run", "tiny.yaml", "--resume", name).splitlines()
    assert said[0] == f"{name} is finished: 2 rounds. It came to"
    assert f"{'model sha256':26} {first['model_sha256']}" in said
    again = invoked_json("run", "tiny.yaml", "--resume", name)
    assert {key: again[key] for key in first if key != "config"} == {
        key: first[key] for key in first if key != "config"
    }


def test_a_finished_run_can_be_taken_further(tiny: Path) -> None:
    name = Path(invoked_json("run", "tiny.yaml")["run"]).name
    longer = {**TINY, "fleet": "inline", "training": {"rounds": 3}}
    assert find_finished(validate_config(TINY), name) is not None
    assert find_finished(validate_config(longer), name) is None
    assert find_finished(validate_config(TINY), None) is None


def test_a_run_that_was_refused_before_it_began_leaves_no_folder(home: Path) -> None:
    config = validate_config(TINY)
    with claim_directory(config, None, None) as folder:
        assert folder.is_dir()
    assert not folder.exists()


def test_a_prepared_run_is_run_as_it_is(home: Path) -> None:
    settings = {**TINY, "fleet": "inline"}
    with prepare_run(settings) as prepared:
        assert isinstance(prepared, PreparedRun)
        result = run_experiment(prepared)
    assert result.sha256 == rayfl.run(settings).sha256


def test_a_report_of_nothing_is_refused_and_writes_nothing(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = refused(capsys, "report", "fedrn_table2", "--ledger", "none")
    assert code == 2
    assert "a report is of runs that have been made" in said
    assert "Run `rayfl study fedrn_table2 ...` first." in said
    assert list(home.iterdir()) == []


def test_what_takes_a_while_before_a_run_is_said(home: Path) -> None:
    said: list[str] = []

    @contextmanager
    def note(text: str) -> Iterator[None]:
        said.append(text)
        yield
        said.append(f"{text}: done")

    with prepare_run({**TINY, "fleet": "inline"}, doing=note):
        assert "loading data" in said
        # Each is over before the next begins, and all of it before the run.
        assert said[1::2] == [f"{text}: done" for text in said[::2]]


REPORTS = [
    (["nosuch"], "has the experiment; got nosuch. It has none: run something first"),
    (["fedrn_table2"], "a report is of runs that have been made; got none of fedrn_table2"),
]


@pytest.mark.parametrize(("words", "said"), REPORTS, ids=["experiment", "study"])
def test_a_report_of_nothing_is_refused_before_torch_and_mlflow_are_imported(
    home: Path, words: list[str], said: str
) -> None:
    command = [sys.executable, "-c", FROM_OUTSIDE, "report", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=home)
    assert (done.stdout.strip(), said in done.stderr) == ("2 []", True), done.stderr
    assert list(home.iterdir()) == []
