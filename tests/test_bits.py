"""Portable bits: who can give them, and who is told that it cannot."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rayfl import bits
from rayfl.bits import PORTABLE, BitsError, hold_bits, is_portable
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError, ResourceError


@pytest.fixture
def capable(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that has what is needed."""
    monkeypatch.setattr(bits, "_list_instructions", lambda: frozenset({"avx2", "fma", "sse2"}))


def test_fast_bits_are_anybodys() -> None:
    hold_bits(["fast", "fast"])


@pytest.mark.usefixtures("capable")
def test_a_process_that_was_not_started_for_them_refuses() -> None:
    assert not is_portable()
    with pytest.raises(BitsError, match=r"bits: portable is decided when Python starts.* env ATEN"):
        hold_bits(["portable"])


@pytest.mark.usefixtures("capable")
def test_to_set_the_environment_later_is_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PORTABLE.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BitsError, match="a process that was started without"):
        hold_bits(["portable"])


@pytest.mark.parametrize("missing", [None, *PORTABLE])
def test_a_process_is_portable_that_was_started_with_all_of_it(missing: str | None) -> None:
    started = {name: value for name, value in PORTABLE.items() if name != missing}
    own = {name: value for name, value in os.environ.items() if name not in PORTABLE}
    ask = "from rayfl.bits import is_portable; print(is_portable())"
    said = subprocess.run(
        [sys.executable, "-c", ask], env={**own, **started}, capture_output=True, check=True
    )
    assert said.stdout.split() == [str(missing is None).encode()]


def test_a_processor_without_avx2_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "_list_instructions", lambda: frozenset({"sse2"}))
    with pytest.raises(ResourceError, match="processor with AVX2 and FMA; got another"):
        hold_bits(["portable"])


@pytest.mark.usefixtures("capable")
def test_the_runs_of_one_command_are_of_one_kind() -> None:
    with pytest.raises(ConfigError, match="all runs of one command have the same bits"):
        hold_bits(["portable", "fast"])


def test_fast_bits_are_not_made_of_portable_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bits, "is_portable", lambda: True)
    with pytest.raises(ConfigError, match="bits: fast needs a process that was not started for"):
        hold_bits(["fast"])


# -- the setting -----------------------------------------------------------------------------------


def test_portable_bits_are_another_run_and_fast_ones_are_not() -> None:
    usual = Config(device="cpu")
    assert Config(device="cpu", bits="fast").digest == usual.digest
    assert Config(device="cpu", bits="portable").digest != usual.digest


@pytest.mark.parametrize(("kind", "threads"), [("fast", 3), ("portable", 1)])
def test_portable_bits_are_of_one_thread(kind: str, threads: int) -> None:
    settings = {"bits": kind, "device": "cpu", "resources": {"cpus_per_client": 3}}
    assert validate_config(settings).threads == threads


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"device": "auto"}, "portable needs device: cpu; got 'auto'. Set device: cpu"),
        ({"device": "cuda"}, "portable needs device: cpu; got 'cuda'"),
        ({"training": {"precision": "bf16"}}, "needs training.precision: fp32; got 'bf16'"),
        ({"training": {"stack": "always"}}, "needs training.stack: never; got 'always'"),
        ({"training": {"compile": "default"}}, "needs training.compile: never; got 'default'"),
    ],
)
def test_what_is_a_machines_own_is_refused_beside_them(
    settings: dict[str, object], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        validate_config({"bits": "portable", "device": "cpu", **settings})
