"""Each trap breaks a promise, which is named, or has become harmless."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from rayfl.run.experiment import run
from rayfl.testing import QUICK, TOY, Candidate, check_method
from tests.testing import traps, traps_of_states

MODULES = (traps, traps_of_states)

BROKEN = [
    ("UnloadedTeacher", "runs", "given weights before it is used in a visit"),
    ("ChangedModule", "batchnorm", "differs from round"),
    ("KeptByPlace", "order", "differs from round 1 on"),
    ("OwnPlace", "order", "differs from round"),
    ("GlobalInPhase", "repeats", "differs from round 1 on"),
    ("GlobalInRound", "repeats", "differs from round 1 on"),
    ("Clock", "repeats", "differs from round 1 on"),
    ("NumpyInRound", "global streams", "differs from round"),
    ("NoLabels", "runs", "labels"),
    ("UndeclaredLabels", "runs", "labels"),
    ("TestLabels", "runs", "'test'"),
    ("MisalignedFeatures", "runs", "features of a client have a row for each of its images"),
    ("SoftLabels", "runs", "client 0"),
    ("ShortLabels", "runs", "client 0"),
    ("MeanWithoutKey", "runs", "a, b"),
    ("MeanOfTwoMaps", "runs", "mean takes clients that replied"),
    ("ServedReport", "runs", "the server's phase left the updates none"),
    ("LateSet", "runs", "got set"),
    ("TensorState", "runs", "got Tensor"),
    ("NumpyKeys", "runs", "np.int64"),
    ("NamedTupleState", "runs", "Pair"),
    ("NoState", "runs", "None"),
    ("ArrayForRef", "runs", "array"),
    ("LateBorrowedState", "runs", "Elsewhere"),
    ("HiddenState", "resumes", "differs from round"),
    ("ServerWithoutData", "runs", "The server owns none itself"),
    ("TeacherIsStudent", "learns", "the floor is 0.5"),
    ("ReturnsWhatItGot", "learns", "the last weights are the first ones"),
    ("TensorUpdate", "runs", "an update is a float32 vector"),
    ("YieldsWeights", "runs", "Fit"),
    ("WritesLabels", "runs", "read-only"),
    ("WritesMemory", "inputs", "written to: input w"),
    ("LargeReport", "reports", "a report of 160,000 bytes"),
    ("RelatesSamples", "stacks", "apart"),
    ("LogsText", "runs", "stage"),
]
HARMLESS = [
    "BorrowedState",
    "CumulativeNorm",
    "EmptySelection",
    "ExaminedByName",
    "ExaminedServer",
    "LeavesAnything",
    "NumpyInLoss",
    "SecondFit",
    "SecondNetwork",
    "TwoMaps",
    "TwoSamples",
]


def path_of(trap: str) -> str:
    """How a configuration names it."""
    home = next(module for module in MODULES if trap in vars(module))
    return f"{home.__name__}:{trap}"


@pytest.mark.parametrize(("trap", "promise", "said"), BROKEN, ids=[trap for trap, *_ in BROKEN])
def test_a_trap_breaks_the_promise_that_is_named(
    trap: str, promise: str, said: str, tmp_path: Path
) -> None:
    candidate = Candidate({"name": path_of(trap)})
    findings = check_method(candidate, tmp_path, names=[promise])
    broken = [finding for finding in findings if finding.status == "broken"]
    assert [finding.promise.name for finding in broken] == [promise]
    assert said in broken[0].detail


@pytest.mark.parametrize("trap", HARMLESS)
def test_a_trap_that_became_harmless_keeps_every_promise(trap: str, tmp_path: Path) -> None:
    candidate = Candidate({"name": path_of(trap)})
    findings = check_method(candidate, tmp_path, names=QUICK)
    assert {f.promise.name: f.detail for f in findings if f.status != "holds"} == {}


def test_every_trap_is_tried() -> None:
    methods = {
        name
        for module in MODULES
        for name, found in vars(module).items()
        if inspect.isclass(found)
        and hasattr(found, "round")
        and found.__module__ == module.__name__
    }
    assert methods - {"Mapped", "Noting"} == {*HARMLESS, *(trap for trap, *_ in BROKEN)}


def test_no_figure_ends_a_run(tmp_path: Path) -> None:
    """Whatever a method leaves to be drawn, of whatever kind."""
    settings = {
        **TOY,
        "method": path_of("LeavesAnything"),
        "output": str(tmp_path),
        "tracking": {"enabled": True},
    }
    result = run(settings)
    assert len(result.sha256) == 64
