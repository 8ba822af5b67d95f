"""A wheel carries all configurations, and works where there is no checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("rayfl", "configs", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, for a build leaves traces."""
    source = tmp_path_factory.mktemp("source")
    for name in PARTS:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    # What an earlier build left behind is not shipped.
    stale = source / "build" / "lib" / "rayfl" / "configs" / "gone.yaml"
    stale.parent.mkdir(parents=True)
    stale.write_text("clients: 3")
    words = ["wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    words += ["--disable-pip-version-check", "--wheel-dir", str(source / "dist"), str(source)]
    done = subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [built] = (source / "dist").glob("*.whl")
    return built


@pytest.mark.rest
def test_the_wheel_has_the_configurations_as_they_are(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        start = "rayfl/configs/"
        carried = {
            name.removeprefix(start): archive.read(name)
            for name in archive.namelist()
            if name.startswith(start)
        }
    kept = ROOT / "configs"
    files = [path for path in kept.rglob("*") if path.is_file()]
    assert carried == {path.relative_to(kept).as_posix(): path.read_bytes() for path in files}


@pytest.mark.rest
def test_an_installed_wheel_runs_by_name_away_from_the_checkout(
    wheel: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    where = tmp_path / "elsewhere"
    where.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def call(*words: str) -> str:
        command = [sys.executable, "-m", "rayfl.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=where)
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = call("config", "fedds")
    assert "name: fedds" in found
    call("run", "quickstart", "fleet=inline", "training.rounds=1", "tracking.enabled=false")
    assert call("study", "fedds_table4", "--plan", "--ledger", "none").startswith("FedDS, Table 4")
    call("init")
    assert (where / "configs" / "paper" / "printed" / "fedds.csv").is_file()
