"""Bits on processors of other kinds: portable ones are the same, and fast ones are not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rayfl.bits import NEEDED, PORTABLE
from tests.nodes import head_node
from tests.reliability.portable_bits import AS_INTEL, PLAIN, ROOT, compute_there, list_parted
from tests.reliability.pretended_maker import can_pretend

FLAGS = Path("/proc/cpuinfo").read_text().split() if Path("/proc/cpuinfo").exists() else []
OTHER = {"ATEN_CPU_CAPABILITY": "avx2"}
"""A processor like this one, without AVX-512."""
SETTINGS = (
    "quickstart",
    "fleet=inline",
    "device=cpu",
    "training.rounds=1",
    "tracking.enabled=false",
    "output=out",
)

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not set(FLAGS) >= NEEDED, reason="portable bits need AVX2"),
]
has_avx512 = pytest.mark.skipif("avx512f" not in FLAGS, reason="fast bits differ with AVX-512")
has_mkl = pytest.mark.skipif(
    not can_pretend(), reason=f"torch {torch.__version__} asks for the maker in another way"
)


def start_command(desk: Path, environment: Mapping[str, str], *words: str) -> str:
    """What a command of a user's prints, whose shell has these variables."""
    own = {name: value for name, value in os.environ.items() if name not in PORTABLE}
    said = subprocess.run(
        [sys.executable, "-m", "rayfl.cli", *words],
        cwd=desk,
        env={**own, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 0, said.stderr
    return said.stdout


def run_command(
    desk: Path, environment: Mapping[str, str], bits: str, *words: str
) -> dict[str, Any]:
    """What a run came to."""
    desk.mkdir()
    settings = (*SETTINGS, f"bits={bits}", *words)
    found: dict[str, Any] = json.loads(start_command(desk, environment, "run", *settings, "--json"))
    return found


def test_a_command_makes_its_process_portable(tmp_path: Path) -> None:
    here = run_command(tmp_path / "here", {}, "portable")
    there = run_command(tmp_path / "there", OTHER, "portable")
    assert here["model_sha256"] == there["model_sha256"]
    result = json.loads((tmp_path / "here" / here["run"] / "result.json").read_text())
    assert result["facts"]["capability"] == "AVX2, portable"


@pytest.mark.long
@has_avx512
def test_fast_bits_are_of_the_processor(tmp_path: Path) -> None:
    here = run_command(tmp_path / "here", {}, "fast")
    there = run_command(tmp_path / "there", OTHER, "fast")
    assert here["scenario_sha256"] == there["scenario_sha256"]
    assert here["model_sha256"] != there["model_sha256"]


@pytest.mark.long
@has_mkl
def test_portable_bits_are_the_same_for_all_makers() -> None:
    names = ["mlp, adam", "mnist_cnn", "cnn4"]
    wanted = compute_there(PLAIN, "portable", names)
    assert list_parted(compute_there(AS_INTEL, "portable", names), wanted) == {
        "runs": [],
        "operators": [],
    }


@pytest.mark.long
@has_mkl
@pytest.mark.skipif("GenuineIntel" in FLAGS, reason="this processor is Intel's")
def test_fast_bits_are_of_the_maker() -> None:
    names = ["mlp, adam"]
    wanted = compute_there(PLAIN, "fast", names)
    parted = list_parted(compute_there(AS_INTEL, "fast", names), wanted)
    assert parted["runs"] == names
    assert "mm" in parted["operators"]


@pytest.mark.alone
def test_a_cluster_that_is_there_is_told(tmp_path: Path) -> None:
    wanted = run_command(tmp_path / "inline", {}, "portable")
    with head_node("--num-cpus", "2") as (_, address, _):
        found = run_command(tmp_path / "ray", {"RAY_ADDRESS": address}, "portable", "fleet=ray")
    assert found["model_sha256"] == wanted["model_sha256"]


def test_a_study_makes_its_process_portable(tmp_path: Path) -> None:
    study = {
        "title": "One run",
        "set": {
            "data": "digits",
            "clients": 3,
            "training": {"rounds": 1},
            "fleet": "inline",
            "device": "cpu",
            "bits": "portable",
            "tracking": {"enabled": False},
        },
        "axes": {"lr": {"usual": {"title": "usual", "set": {"training.lr": 0.1}}}},
        "seeds": [0],
        "scores": {"s": {"title": "S", "metric": "test/accuracy"}},
        "table": {"rows": ["lr"], "columns": ["score"]},
    }
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
    start_command(tmp_path, {}, "study", "study.yaml", "-o", "out", "--ledger", "none", "--yes")
    (ended,) = tmp_path.glob("out/**/result.json")
    assert json.loads(ended.read_text())["facts"]["capability"] == "AVX2, portable"
