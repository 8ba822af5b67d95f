"""Each trap breaks a promise, which is named, or has become harmless."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from rayfl.run.experiment import run
from rayfl.testing import QUICK, TOY, Candidate, check_method
from tests.testing import traps, traps_of_rounds, traps_of_states

MODULES = (traps, traps_of_rounds, traps_of_states)

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
    ("MeanOfTwoMaps", "runs", "or join maps: (a | b).mean(...)"),
    ("ServedReport", "runs", "phase left are none; got 'w'. Return it in Out"),
    ("LateSet", "runs", "got set"),
    ("TensorState", "runs", "got Tensor"),
    ("NumpyKeys", "runs", "np.int64"),
    ("NamedTupleState", "runs", "Pair"),
    ("NoState", "runs", "None"),
    ("ArrayForRef", "runs", "ArrayForRef.model gives references to weights; got ndarray"),
    ("LateBorrowedState", "runs", "Elsewhere"),
    ("HiddenState", "resumes", "differs from round"),
    ("ServerWithoutData", "runs", "The server owns none itself"),
    ("TeacherIsStudent", "learns", "the floor is 0.5"),
    ("ReturnsWhatItGot", "learns", "the last weights are the first ones"),
    ("TensorUpdate", "runs", "an update is a float32 vector"),
    ("YieldsWeights", "runs", "Fit"),
    ("WritesLabels", "runs", "is read-only: copy it before you change it"),
    ("WritesMemory", "inputs", "written to: input w"),
    ("LargeReport", "reports", "a report of 160,000 bytes"),
    ("FetchesCohort", "coordinator", "as many as 4 models"),
    ("RelatesSamples", "stacks", "apart"),
    ("LogsText", "runs", "stage"),
    ("MeanOfNobody", "runs", "weights of a mean have a positive sum"),
    ("TextIds", "runs", "clients are named by their numbers; got '0'"),
    ("UnknownClient", "runs", "clients have ids below 6; got 99"),
    ("MissingInput", "runs", "takes the inputs w, method, mu; got w, method (client 0, round 0)"),
    ("UnknownInput", "runs", "takes the inputs w, method; got weights, method (client 0, round 0)"),
    ("ExaminedUnderAnotherName", "runs", "takes the inputs w; got a, b (client "),
    ("WritesInput", "runs", "is read-only: copy it before you change it"),
    ("SomeWithoutUpdate", "runs", "client 1 left no update"),
    ("ForeignMemory", "runs", "an optimiser's memory is a vector of 1108 numbers"),
    ("ReturnsWeights", "runs", "a phase returns an Out(report, update, state); got ndarray"),
    ("SecondUnloaded", "runs", "given weights before it is used in a visit; got none for 'second'"),
    ("AssignedState", "runs", "in round\ndataclasses.FrozenInstanceError: cannot assign to field"),
    ("AddedReferences", "runs", "'Ref' and 'Ref'"),
    ("ServedForRef", "runs", "got Served at Global.model"),
    ("PersonalWithoutModels", "runs", ".model gives references to weights (client 0); got None"),
    ("ArrayToTest", "runs", ".further_models gives references to weights; got ndarray"),
    ("MisspeltNeed", "runs", "Did you mean 'labelled'?"),
    ("Undecorated", "runs", "declares least and lacks @component"),
    ("TwoAnswers", "runs", "must be Tensor, not tuple"),
]
HARMLESS = [
    "BorrowedState",
    "CumulativeNorm",
    "EmptyMap",
    "EmptySelection",
    "ExaminedByName",
    "ExaminedServer",
    "LeavesAnything",
    "LocalPhase",
    "NumpyIds",
    "NumpyInLoss",
    "PutState",
    "SecondFit",
    "SecondNetwork",
    "TwoMaps",
    "TwoSamples",
    "TwoTrainings",
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
