"""The command line, called in this process."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from rayfl import cli


def invoked(*words: str) -> str:
    """What a command prints that succeeds."""
    result = CliRunner().invoke(cli.rayfl, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def invoked_json(*words: str) -> Any:
    """What it prints for programs: one value, and nothing else."""
    return json.loads(invoked(*words, "--json"))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    """Exit code and standard error of a command that fails."""
    with pytest.raises(SystemExit) as left:
        cli.main(list(words))
    assert isinstance(left.value.code, int)
    return left.value.code, capsys.readouterr().err
