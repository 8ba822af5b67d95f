"""The promises that every method keeps: the table, and how it is gone through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rayfl.testing.bench import Bench, Candidate
from rayfl.testing.examinations import (
    examine_coordinator,
    examine_cumulative_statistics,
    examine_global_streams,
    examine_inputs,
    examine_killed_actor,
    examine_large_network,
    examine_late_evaluation,
    examine_odd_federation,
    examine_one_actor,
    examine_order,
    examine_repetition,
    examine_reports,
    examine_resumption,
    examine_run,
    examine_running_statistics,
    examine_stacking,
    examine_three_actors,
    examine_training,
)
from rayfl.testing.findings import Finding, Promise, try_promise

if TYPE_CHECKING:
    from rayfl.testing.actors import ActorReserve

RUNS, REPEATS, STREAMS, ORDER = "runs", "repeats", "global streams", "order"
SAME_BITS = (RUNS, REPEATS, STREAMS)
"""What must hold before a difference of bits means anything."""

ANY_ORDER = (*SAME_BITS, ORDER)
"""What must hold before two orders, or two places, are compared once more."""

PROMISES: Sequence[Promise] = (
    Promise(
        RUNS,
        "runs to the end on a toy federation, with a finite model",
        "Read the message; nothing else was tried.",
        examine_run,
    ),
    Promise(
        "learns",
        "moves the model from its first weights and tells separable classes apart",
        "Is what is returned what was trained? Do its clients see labels? Raise --rounds if it is "
        "slow, or set --floor.",
        examine_training,
        after=(RUNS,),
    ),
    Promise(
        REPEATS,
        "a second run gives the same bits",
        "Look for the time, id(), hash() of text, and sets that are iterated.",
        examine_repetition,
        after=(RUNS,),
    ),
    Promise(
        STREAMS,
        "Python's, numpy's and torch's global random streams decide nothing",
        "Draw from client.rng in a phase and from fleet.rng(t, purpose) in a round.",
        examine_global_streams,
        after=(RUNS, REPEATS),
    ),
    Promise(
        "inputs",
        "phases never write to what they are given",
        "Copy before you write: np.array(w).",
        examine_inputs,
        after=(RUNS,),
    ),
    Promise(
        "reports",
        "reports stay far under their limit",
        "Put weights and per-sample values into update or state.",
        examine_reports,
        after=(RUNS,),
    ),
    Promise(
        ORDER,
        "the order in which clients are visited changes no bit",
        "Something lives on at the place from client to client: a network that is not loaded at "
        "every visit, a changed module, a value kept by learner.keep, a global.",
        examine_order,
        after=SAME_BITS,
    ),
    Promise(
        "late evaluation",
        "an evaluation that ends later changes no bit",
        "Something that model() hands out is changed by the next round.",
        examine_late_evaluation,
        after=ANY_ORDER,
    ),
    Promise(
        "resumes",
        "stopped after every round and resumed, it gives the same bits",
        "All that a round hands to the next belongs into the state that it returns, made of "
        "dataclasses, containers, arrays, numbers and Refs; the method itself keeps nothing.",
        examine_resumption,
        after=ANY_ORDER,
    ),
    Promise(
        "stacks",
        "clients trained in lockstep end where single ones do, but for rounding",
        "The loss must treat every sample by itself, and not read the module's own state.",
        examine_stacking,
        after=ANY_ORDER,
    ),
    Promise(
        "large network",
        "a network above 2^18 numbers gives the same bits, copied or given away",
        "Weights that a visit has returned are no longer the network's: keep no view of them.",
        examine_large_network,
        after=ANY_ORDER,
    ),
    Promise(
        "coordinator",
        "the coordinator holds reports and references: never a cohort of models",
        "Leave models where they are: got.mean, got.examine and fleet.combine work on references; "
        "exchange answers and centroids in reports or states.",
        examine_coordinator,
        after=(RUNS, "large network"),
    ),
    Promise(
        "batchnorm",
        "with running statistics, the order of clients changes no bit",
        "Load the network at every visit; leave its modules as they were.",
        examine_running_statistics,
        after=ANY_ORDER,
    ),
    Promise(
        "cumulative batchnorm",
        "BatchNorm of momentum=None does not count on from client to client",
        "Load the network at every visit: that sets its counters back.",
        examine_cumulative_statistics,
        after=ANY_ORDER,
    ),
    Promise(
        "odd federation",
        "one sample, one class, no sample, all labels wrong: finite, and the same in any order",
        "Look for means of nothing, variances of one sample, and classes that nobody has.",
        examine_odd_federation,
        after=ANY_ORDER,
    ),
    Promise(
        "one actor",
        "one actor on Ray gives the bits of this process",
        "Another process has other globals: whatever a phase needs must come as an input.",
        examine_one_actor,
        on_ray=True,
        after=ANY_ORDER,
    ),
    Promise(
        "three actors",
        "three actors on Ray give the bits of this process, also of a large network and BatchNorm",
        "See `order`: with three places, clients meet other predecessors.",
        examine_three_actors,
        on_ray=True,
        after=ANY_ORDER,
    ),
    Promise(
        "killed actor",
        "an actor killed in a round (kill -9) changes no bit",
        "A visit is done again where an actor died: it must depend on nothing but its inputs.",
        examine_killed_actor,
        on_ray=True,
        after=(*ANY_ORDER, "three actors"),
    ),
)
"""In the order in which they are tried: the first that is broken often explains the others."""

QUICK = tuple(promise.name for promise in PROMISES if not promise.on_ray)
ON_RAY = tuple(promise.name for promise in PROMISES if promise.on_ray)


def iterate_findings(bench: Bench, names: Sequence[str] | None = None) -> Iterator[Finding]:
    """Try promises, each when it is asked for.

    Parameters
    ----------
    bench
        Where the candidate is run.
    names
        Which promises; by default all. That the method runs is tried in any case.
    """
    wanted = {RUNS, *([promise.name for promise in PROMISES] if names is None else names)}
    chosen = [promise for promise in PROMISES if promise.name in wanted]
    failed: list[str] = []
    for promise in chosen:
        explained = next((name for name in promise.after if name in failed), None)
        if explained is not None:
            yield Finding(promise, "untried", f"first mend `{explained}`")
            continue
        finding = try_promise(promise, bench)
        if finding.status == "broken":
            failed.append(promise.name)
        yield finding


def check_method(
    candidate: Candidate,
    folder: Path,
    actors: ActorReserve | None = None,
    names: Sequence[str] | None = None,
) -> list[Finding]:
    """Try a method's promises.

    Parameters
    ----------
    candidate
        The method, and what it is tried on.
    folder
        Where its runs may write.
    actors
        Lends actors of a Ray that is connected; without it, what needs Ray is left out.
    names
        Which promises; by default all that can be tried.
    """
    if names is None:
        names = QUICK if actors is None else (*QUICK, *ON_RAY)
    return list(iterate_findings(Bench(candidate, folder, actors), names))
