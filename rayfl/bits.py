"""Which kernels compute: `fast`, those that suit the processor best, or `portable`, the same ones
on every x86-64 processor that has AVX2.

Libraries choose among their kernels by the instructions, and MKL by the maker, of the processor
that they find; kernels add up in different orders, and so round differently. Each library can be
told which ones to take, but by the environment, which it reads when it is loaded: a process is
portable from its start or not at all."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Literal

from rayfl.errors import ConfigError, ResourceError, broken

Bits = Literal["fast", "portable"]

PORTABLE: Mapping[str, str] = {
    # torch's own: softmax, sums, normalisations, functions of one value.
    "ATEN_CPU_CAPABILITY": "avx2",
    # torch's products and decompositions: the only branch that MKL has for all makers.
    "MKL_CBWR": "COMPATIBLE",
    # torch's convolutions.
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    # numpy's functions. X86_V4 is what numpy 2.4 calls most of the others.
    "NPY_DISABLE_CPU_FEATURES": (
        "X86_V4 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR"
    ),
    # numpy's and SciPy's products and decompositions.
    "OPENBLAS_CORETYPE": "Haswell",
    # Who shares a sum among threads adds it up by their number.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""The environment of a portable process."""
NEEDED = frozenset({"avx2", "fma"})


class BitsError(ConfigError):
    """Portable bits are wanted of a process that was not started for them."""


def hold_bits(wanted: Iterable[Bits]) -> None:
    """Refuse bits that this process cannot give.

    Parameters
    ----------
    wanted : iterable of str
        Of every run that is to take place in it.
    """
    kinds = set(wanted)
    if len(kinds) > 1:
        rule = "all runs of one command have the same bits"
        raise ConfigError(broken(rule, "fast and portable", "Run them by two commands."))
    if "portable" in kinds:
        _hold_portable()
    elif kinds and is_portable():
        rule = "bits: fast needs a process that was not started for portable ones"
        remedy = "Run it by a command of its own, or set bits: portable."
        raise ConfigError(broken(rule, "one that was", remedy))


def _hold_portable() -> None:
    if not _list_instructions() >= NEEDED:
        rule = "bits: portable needs Linux and an x86-64 processor with AVX2 and FMA"
        raise ResourceError(broken(rule, "another", "Set bits: fast."))
    if not is_portable():
        raise BitsError(_explain_start())


@cache
def is_portable() -> bool:
    """Whether this process computes portable bits."""
    started = _read_first_environment()
    return all(started.get(name) == value for name, value in PORTABLE.items())


def start_again() -> None:
    """Begin this process anew, with its own command line, as a portable one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(sys.executable, sys.orig_argv, {**os.environ, **PORTABLE})


def _explain_start() -> str:
    settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in PORTABLE.items())
    rule = "bits: portable is decided when Python starts"
    remedy = f"Use the command `rayfl`, or start this program by: env {settings} python ..."
    return broken(rule, "a process that was started without", remedy)


@cache
def _read_first_environment() -> Mapping[str, str]:
    """What this process was started with: what is set later comes too late for what is loaded."""
    path = Path("/proc/self/environ")
    entries = path.read_bytes().split(b"\0") if path.exists() else []
    pairs = (os.fsdecode(entry).partition("=") for entry in entries)
    return {name: value for name, _, value in pairs}


@cache
def _list_instructions() -> frozenset[str]:
    """What the processor can do, in Linux's words."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())
