"""Names that another package adds: a real one, built from the template and installed into a
folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import rayfl
from rayfl.component import Registry
from rayfl.errors import ConfigError
from rayfl.plugins import Plugin, find_plugin, read_plugins

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "templates" / "rayfl-something"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the template's package is installed in."""
    place = tmp_path_factory.mktemp("plugin")
    # A build leaves traces beside what it builds.
    source = place / "source"
    shutil.copytree(TEMPLATE, source)
    target = place / "site"
    words = ["install", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    words += ["--disable-pip-version-check", "--target", str(target), str(source)]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def called(installed: Path, where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line where the package is installed."""
    paths = [str(installed), str(Path(rayfl.__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "rayfl.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=where)


@pytest.mark.rest
@pytest.mark.parametrize("fleet", ["inline", "ray"])
def test_what_it_adds_runs_by_its_name(installed: Path, tmp_path: Path, fleet: str) -> None:
    words = ["method=my_average", "noise={name: my_noise, rate: 0.3}", f"fleet={fleet}"]
    words += ["training.rounds=1", "tracking.enabled=false", "resources.actors=1", "--quiet"]
    done = called(installed, tmp_path, "run", "quickstart", *words)
    assert done.returncode == 0, done.stderr
    [saved] = tmp_path.glob("outputs/runs/*/config.yaml")
    assert "name: my_average" in saved.read_text()


@pytest.mark.rest
def test_its_names_are_listed_completed_and_in_the_schema(installed: Path, tmp_path: Path) -> None:
    assert "my_average" in called(installed, tmp_path, "methods").stdout
    shown = called(installed, tmp_path, "noises", "my_noise").stdout
    assert "  rate = required" in shown
    assert '"const": "my_noise"' in called(installed, tmp_path, "schema").stdout
    mistyped = called(installed, tmp_path, "run", "quickstart", "method=my_averege")
    assert "Did you mean 'my_average'?" in mistyped.stderr


def test_without_it_there_is_no_such_name() -> None:
    assert find_plugin("rayfl.methods", "my_average") is None


def test_a_name_of_rayfl_is_not_replaced_and_two_packages_do_not_share_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    entries = {
        "fedavg": [Plugin("other:Other", "rayfl-other")],
        "ours": [Plugin("a:Ours", "rayfl-a"), Plugin("b:Ours", "rayfl-b")],
    }
    monkeypatch.setattr("rayfl.component.read_plugins", lambda group: entries)
    monkeypatch.setattr("rayfl.plugins.read_plugins", lambda group: entries)
    methods: Registry[object] = Registry("method", {"fedavg": "rayfl.x:FedAvg"}, "rayfl.methods")
    assert methods.path_of("fedavg") == "rayfl.x:FedAvg"
    assert methods.names() == ["fedavg", "ours"]
    rule = "one package adds the name 'ours' to rayfl.methods; got rayfl-a and rayfl-b. Write an im"
    with pytest.raises(ConfigError, match=rule):
        methods.path_of("ours")


@pytest.mark.parametrize(
    "group", ["methods", "datasets", "noises", "partitions", "models", "losses", "weightings"]
)
def test_each_kind_has_its_group(group: str) -> None:
    from rayfl.commands.registries import find_registry

    assert find_registry(group).plugins == f"rayfl.{group}"
    assert isinstance(read_plugins(f"rayfl.{group}"), dict)
