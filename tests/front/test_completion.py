"""What shells are offered; asked of a real bash, as its readline asks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.front.cli import invoked

BIN = Path(sys.executable).parent

PRESS = r"""
eval "$(rayfl completion bash)"
COMP_LINE="$1"
COMP_POINT=${#COMP_LINE}
compopt() { :; }
_rayfl_completion rayfl
printf '%s\n' "${COMPREPLY[@]}"
"""


def offered(line: str, where: Path | None = None) -> list[str]:
    """What bash is offered when the tabulator is pressed at the end of a line."""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    words = ["bash", "--norc", "-c", PRESS, "bash", line]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=where)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("rayfl ru", ["run"]),
        ("rayfl run quick", ["quickstart"]),
        ("rayfl run quickstart method=fedp", ["fedprox"]),
        ("rayfl run quickstart training.lr", ["training.lr="]),
        ("rayfl run quickstart method=fedprox method.m", ["method.mu="]),
        ("rayfl run methods/fedprox method.m", ["method.mu="]),
        ("rayfl run quickstart method.loss=sym", ["symce"]),
        ("rayfl run quickstart split.public.f", ["split.public.fraction="]),
        ("rayfl run quickstart training.precision=", ["fp32", "bf16"]),
        ("rayfl run quickstart training.drop_last=", ["true", "false"]),
        ("rayfl run -m method=fedavg,fedr", ["fedavg,fedrn"]),
        ("rayfl methods fedpr", ["fedprox"]),
        ("rayfl data get fash", ["fashion-mnist"]),
        ("rayfl study fedds_table", ["fedds_table4", "fedds_table5"]),
        ("rayfl study fedds_table4 --only dataset=mn", ["mnist"]),
        ("rayfl sweep as", ["asha"]),
        ("rayfl config quickstart noise=sym", ["symmetric"]),
        ("rayfl run quickstart --res", ["--resume"]),
        ("rayfl run quickstart nonsense.", [""]),
    ],
)
def test_bash_is_offered_what_can_come_next(line: str, first: list[str]) -> None:
    assert offered(line) == first


def test_files_and_runs_of_ones_own_are_offered(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("clients: 3")
    (tmp_path / "more").mkdir()
    run = tmp_path / "outputs" / "runs" / "20260101-000000-fedavg-abcdef"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("clients: 3")
    assert {"mine.yaml", "more/"} <= set(offered("rayfl run m", tmp_path))
    found = offered("rayfl run mine.yaml --resume ", tmp_path)
    assert found == ["auto", run.name]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(shell: str) -> None:
    script = invoked("completion", shell)
    assert f"_RAYFL_COMPLETE={shell}_complete" in script
    assert f"rayfl completion {shell}" in invoked("completion", "--help")
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
        assert (checked.returncode, checked.stderr) == (0, "")
