"""The same runs with the kernels of other processors: what parts company, and what does not.

    python -m tests.reliability.portable_bits
    python -m tests.reliability.portable_bits --other-torch OTHER/bin/python
    python -m tests.reliability.portable_bits --emulator qemu-x86_64

A situation is an environment in which a process computes small runs and single operators. Without
`bits: portable` it is seen what each situation changes; with it nothing may change. Another version
of torch is no part of the promise: the operators that part company are named. An emulator lets a
processor without AVX-512 be tried where there is none; operators alone, for it is slow."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rayfl.bits import PORTABLE
from rayfl.fleet.on_ray.connection import connect_ray
from tests.reliability.tally import write_tally

ROOT = Path(__file__).parents[2]
PATIENCE = 3600.0
DIGITS = {"data": "digits", "model": {"name": "mlp", "hidden": [32]}}
IMAGES = {"name": "blobs", "samples": 160, "test_samples": 40, "side": 28, "spread": 0.4}
COLOURS = {**IMAGES, "side": 32, "channels": 3}
COMMON: dict[str, Any] = {
    "clients": 4,
    "partition": {"name": "dirichlet", "alpha": 1.0, "min_size": 10},
    "noise": {"name": "symmetric", "rate": 0.3},
    "training": {"rounds": 2, "clients_per_round": 4, "batch_size": 16, "lr": 0.05},
    "resources": {"cpus_per_client": 0.5, "actors": 2},
    "tracking": {"enabled": False},
    "fleet": "inline",
    "device": "cpu",
}
RUNS: Mapping[str, Mapping[str, Any]] = {
    "linear": {**DIGITS, "model": "linear"},
    "mlp": DIGITS,
    "mlp, adam": {**DIGITS, "training.optimizer": "adam", "training.lr": 0.001},
    "mnist_cnn": {"data": IMAGES, "model": "mnist_cnn"},
    "cnn4": {"data": COLOURS, "model": "cnn4"},
    "fedcorr": {
        **DIGITS,
        "method": {"name": "fedcorr", "iterations": 1, "finetuning": 1},
        "training.rounds": 3,
    },
}
"""What is run; names with dots lie within sections."""


@dataclass(frozen=True)
class Situation:
    """Where a process computes."""

    title: str
    environment: Mapping[str, str] = field(default_factory=dict)
    intel: bool = False
    """MKL is told that the processor is Intel's."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    names: Sequence[str] = tuple(RUNS)
    """Of the runs that are made there."""


PLAIN = Situation("as it is")
TWO_THREADS = Situation("two threads", settings={"resources.cpus_per_client": 2})
AS_INTEL = Situation("MKL on Intel's", intel=True)
INTEL_AVX2 = Situation("MKL on Intel's, AVX2", {"MKL_ENABLE_INSTRUCTIONS": "AVX2"}, intel=True)
FAST = (
    PLAIN,
    Situation("as it is, again"),
    Situation("torch's own kernels, AVX2", {"ATEN_CPU_CAPABILITY": "avx2"}),
    Situation("torch's own kernels, no AVX", {"ATEN_CPU_CAPABILITY": "default"}),
    Situation("oneDNN, AVX2", {"ONEDNN_MAX_CPU_ISA": "AVX2"}),
    AS_INTEL,
    INTEL_AVX2,
    Situation("MKL_CBWR=COMPATIBLE", {"MKL_CBWR": "COMPATIBLE"}),
    Situation("MKL_CBWR=AVX2", {"MKL_CBWR": "AVX2"}),
    Situation("MKL_CBWR=AVX2 on Intel's", {"MKL_CBWR": "AVX2"}, intel=True),
    Situation("numpy, AVX2", {"NPY_DISABLE_CPU_FEATURES": PORTABLE["NPY_DISABLE_CPU_FEATURES"]}),
    Situation("OpenBLAS, Haswell", {"OPENBLAS_CORETYPE": "Haswell"}),
    Situation("OpenBLAS, SkylakeX", {"OPENBLAS_CORETYPE": "SkylakeX"}),
    TWO_THREADS,
)
STEADY = (
    PLAIN,
    Situation("as it is, again"),
    AS_INTEL,
    INTEL_AVX2,
    TWO_THREADS,
    Situation("on Ray", settings={"fleet": "ray"}, names=("mlp", "cnn4", "fedcorr")),
)
"""What portable bits must not notice."""
BEGINNING = "computed: "


def compute_here(
    situation: Situation, bits: str, names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Hashes of some runs' models and of what operators make, in this process."""
    from tests.reliability.operators import hash_operators

    if situation.intel:
        from tests.reliability.pretended_maker import pretend_intel

        pretend_intel()
    # One Ray for all runs, if any.
    with ExitStack() as while_running:
        if "fleet" in situation.settings:
            while_running.enter_context(connect_ray(None))
        runs = {name: hash_run(RUNS[name], situation, bits) for name in names}
    return {"runs": runs, "operators": hash_operators()}


def hash_run(settings: Mapping[str, Any], situation: Situation, bits: str) -> str:
    """The model that a run ends with."""
    import rayfl

    with tempfile.TemporaryDirectory() as output:
        given = {**settings, **situation.settings, "bits": bits, "output": output}
        return rayfl.run(COMMON, progress=False, **given).sha256


def compute_there(
    situation: Situation,
    bits: str,
    names: Sequence[str] = tuple(RUNS),
    python: Sequence[str] = (sys.executable,),
) -> dict[str, dict[str, str]]:
    """The same by a process of its own, which is started in the situation.

    Parameters
    ----------
    situation : Situation
        Its environment comes on top of this process's own, without what decides bits.
    bits : str
        As the setting.
    names : sequence of str
        Of `RUNS`.
    python : sequence of str
        What is started: another torch's Python, for example.
    """
    own = {name: value for name, value in os.environ.items() if name not in PORTABLE}
    chosen = PORTABLE if bits == "portable" else {}
    told = json.dumps([situation.title, bits, names])
    ended = subprocess.run(
        [*python, "-m", __spec__.name, "--compute", told],
        cwd=ROOT,
        env={**own, **situation.environment, **chosen, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith(BEGINNING)]
    assert lines, f"{situation.title}, {bits}: {ended.stderr[-2000:]}"
    found: dict[str, dict[str, str]] = json.loads(lines[-1].removeprefix(BEGINNING))
    return found


def find_situation(title: str) -> Situation:
    """By its title."""
    return next(one for one in (*FAST, *STEADY) if one.title == title)


def list_parted(
    found: Mapping[str, Mapping[str, str]], wanted: Mapping[str, Mapping[str, str]]
) -> dict[str, list[str]]:
    """The runs and the operators that were found and came to something else."""
    return {
        kind: [name for name in found[kind] if found[kind][name] != wanted[kind][name]]
        for kind in found
    }


def compare(
    bits: str, situations: Sequence[Situation], at_once: int
) -> dict[str, dict[str, list[str]]]:
    """What parts company in each situation with the first one."""

    def compute(situation: Situation) -> dict[str, dict[str, str]]:
        return compute_there(situation, bits, situation.names)

    parted = {}
    with ThreadPoolExecutor(at_once) as pool:
        wanted, *found = pool.map(compute, situations)
    for situation, there in zip(situations[1:], found, strict=True):
        parted[situation.title] = list_parted(there, wanted)
        print(bits, situation.title, json.dumps(parted[situation.title]), flush=True)
    return parted


def emulate(emulator: str) -> dict[str, list[str]]:
    """The operators that part company on a processor that is emulated."""
    command = [sys.executable, "-m", "tests.reliability.operators"]
    environment = {**os.environ, **PORTABLE}
    answers = [
        subprocess.run(
            [*before, *command], cwd=ROOT, env=environment, capture_output=True, check=True
        ).stdout
        for before in ([], emulator.split())
    ]
    here, there = ({"operators": json.loads(answer)} for answer in answers)
    return list_parted(there, here)


def main() -> None:
    """All situations, and the tally."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--compute", help=argparse.SUPPRESS)
    parser.add_argument("--other-torch", help="a Python with another torch")
    parser.add_argument("--emulator", help="a command that runs programs on another processor")
    parser.add_argument("--at-once", type=int, default=1, help="processes")
    told = parser.parse_args()
    if told.compute is not None:
        title, bits, names = json.loads(told.compute)
        print(BEGINNING + json.dumps(compute_here(find_situation(title), bits, names)))
        return
    details: dict[str, Any] = {"settings": dict(PORTABLE), "runs": list(RUNS)}
    details["portable, parted"] = parted = compare("portable", STEADY, told.at_once)
    details["fast, parted"] = compare("fast", FAST, told.at_once)
    if told.other_torch is not None:
        details["other torch"] = _compare_torch(told.other_torch)
    if told.emulator is not None:
        details["emulated"] = {"command": told.emulator, **emulate(told.emulator)}
    _write(parted, details)


def _compare_torch(python: str) -> dict[str, Any]:
    """Which operators another version of torch rounds otherwise, portable as they are."""
    ask = "import torch; print(torch.__version__)"
    version = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=True)
    there = compute_there(PLAIN, "portable", python=(python,))
    return {
        "version": version.stdout.strip(),
        **list_parted(there, compute_there(PLAIN, "portable")),
    }


def _write(parted: Mapping[str, Mapping[str, Sequence[str]]], details: dict[str, Any]) -> None:
    tried = sum(len(one.names) for one in STEADY[1:])
    lost = sum(len(found["runs"]) for found in parted.values())
    write_tally(
        "portable_bits",
        "with bits: portable a run is the same with the kernels of other processors (tried on one)",
        f"python -m {__spec__.name}",
        tried,
        tried - lost,
        details,
    )
    sys.exit(f"{lost} of {tried} runs came to other bits" if lost else 0)


if __name__ == "__main__":
    main()
