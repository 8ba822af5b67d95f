"""What happens at one place: clients are assembled, phases run, updates are kept and summed.

The in-process fleet and every actor run this same code, which is why place cannot change a result.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayfl.errors import RayflError, broken, is_interruption
from rayfl.fleet.memory import MemoryLimit, is_out_of_memory
from rayfl.fleet.refusals import explain_error, refuse_misfit_inputs
from rayfl.fleet.safeguards import Unfinished, describe_late, describe_shortage, is_late
from rayfl.fleet.stacking import (
    StackingPolicy,
    Visit,
    begin_visit,
    carry_out_stackable,
)
from rayfl.fleet.streams import Streams, StreamsOfPlace
from rayfl.fleet.sums.peaks import find_peak
from rayfl.fleet.sums.updates import UpdateId, Updates
from rayfl.fleet.tampering import Tampering
from rayfl.fleet.watch import VisitWatch, say_overdue
from rayfl.protocol import (
    REPORT_LIMIT,
    SERVER,
    Client,
    ClientId,
    DataRef,
    Out,
    Phase,
    Ref,
    Report,
    Shard,
    Vector,
)

if TYPE_CHECKING:
    from rayfl.learn.learner import Learner


@dataclass(frozen=True)
class Holdings:
    """The federation's arrays as every place holds them: client k owns x[order[offsets[k] :
    offsets[k + 1]]]."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    order: NDArray[np.int64]
    offsets: NDArray[np.int64]
    sets: Mapping[str, Shard] = field(default_factory=dict)
    client_labels: bool = True
    classes: int = 0
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    """A hash of each named set's rows, for what is cached about it."""
    tampering: Tampering | None = None
    """Which clients are hostile, and what they send."""

    def size(self, client: ClientId) -> int:
        return 0 if client < 0 else int(self.offsets[client + 1] - self.offsets[client])

    def shard(self, client: ClientId) -> Shard:
        """The server owns nothing here: its sets are named ones."""
        rows = self.rows(client)
        x, y = self.x.take(rows, axis=0), self.y.take(rows)
        # What is written here would be gone at the next visit: it had better raise.
        x.setflags(write=False)
        y.setflags(write=False)
        return Shard(x, y if self.client_labels or client < 0 else None)

    def rows(self, client: ClientId) -> NDArray[np.int64]:
        """The rows of a client's samples in the training set."""
        return (
            self.order[:0]
            if client < 0
            else self.order[self.offsets[client] : self.offsets[client + 1]]
        )


class Task(NamedTuple):
    """One client's part of a map: its round, its own inputs and its stored state."""

    client: ClientId
    t: int
    inputs: Mapping[str, Any]
    state: Mapping[str, Any]
    visit: int = 0
    """How often this client was visited in this round before."""
    examined: bool = False
    """Whether it is the server that looks at this client's update."""


NOTHING: Mapping[str, Any] = {}
MAPPINGS = (dict, Mapping)
"""The commonest first: to ask an abstract class takes several times as long."""


class Done(NamedTuple):
    """What the fleet learns of one client's phase. `error` holds the traceback of one that raised,
    `refusal` what a person can mend."""

    client: ClientId
    report: Report = NOTHING
    state_bytes: Mapping[str, int] = NOTHING
    peaks: Mapping[str, float] = NOTHING
    update_bytes: Mapping[str, int] = NOTHING
    finite: bool = True
    up: int = 0
    """What the client sends, in bytes."""
    forward: int = 0
    backward: int = 0
    seconds: float = 0.0
    error: str | None = None
    refusal: RayflError | None = None
    unfinished: Unfinished | None = None


class Executor:
    """One place: the data it can see, its learner, and the updates that it holds until they are
    freed."""

    def __init__(
        self,
        holdings: Holdings,
        learner: Learner,
        streams: Streams,
        memory_bytes: int | None = None,
    ) -> None:
        locked_sets = {name: lock_shard(shard) for name, shard in holdings.sets.items()}
        self.holdings = replace(holdings, sets=locked_sets)
        self.learner = learner
        self.streams = StreamsOfPlace(streams)
        self.policy = StackingPolicy(learner)
        self.updates = Updates()
        self.features: dict[str, NDArray[np.float32]] = {}
        self.watch = VisitWatch(say_overdue)
        # Last of all: what this place has taken by now is not a visit's.
        self.memory = MemoryLimit(memory_bytes) if memory_bytes else None

    def add_features(self, name: str, features: Mapping[str, NDArray[np.float32]]) -> None:
        """Take an encoder's view of the training set and of the named sets."""
        self.features[name] = features["train"]
        sets = {
            known: replace(shard, features={**shard.features, name: freeze_array(features[known])})
            if known in features
            else shard
            for known, shard in self.holdings.sets.items()
        }
        self.holdings = replace(self.holdings, sets=sets)

    def run(
        self,
        number: int,
        phase: Phase,
        tasks: Sequence[Task],
        shared: Mapping[str, Any],
        chain: bool = False,
        limit: float | None = None,
    ) -> Iterator[tuple[Done, Mapping[str, Any]]]:
        """Each client's outcome and state, in the order of `tasks`; updates stay here under the
        map's number. In a chain every client begins with the update before its own. `limit` are
        the seconds that a visit of a client may take."""
        inputs = {name: self.resolve(value) for name, value in shared.items()}
        start = 0
        while start < len(tasks):
            self.streams.take_back()
            count = 0 if chain else self.policy.count_together(phase, len(tasks) - start)
            group = tasks[start : start + max(count, 1)]
            visited = (
                self._visit_together(phase, group, inputs, limit)
                if count
                else self._visit(phase, group[0], inputs, limit)
            )
            for done, left in visited:
                if left.update:
                    self.updates.keep(UpdateId(number, done.client), left.update)
                yield done, left.state
                # The whole map is void: nobody will ask for what is left of it.
                if done.error is not None:
                    return
                if chain and done.finite and left.update:
                    inputs["w"] = freeze_array(lone_vector(left.update))
            start += len(group)

    def _visit(
        self, phase: Phase, task: Task, inputs: Mapping[str, Any], limit: float | None = None
    ) -> list[tuple[Done, Left]]:
        """One client, all by itself."""
        started = time.perf_counter()
        try:
            with self._guard([task], limit):
                visit = self._begin(phase, task, inputs)
                while visit.wish is not None:
                    visit.carry_out_alone()
            seconds = self.policy.measure("alone" if visit.trains else None, started)
            if is_late(task, seconds, limit):
                return [(end_late(phase, task, seconds, limit), Left())]
            return [end_visit(visit, seconds)]
        except BaseException as error:
            # As text, for it crosses processes, and not every exception can be pickled.
            return [(fail_visit(phase, task, error), Left())]

    def _visit_together(
        self,
        phase: Phase,
        tasks: Sequence[Task],
        inputs: Mapping[str, Any],
        limit: float | None = None,
    ) -> list[tuple[Done, Left]]:
        """Several clients, trained in lockstep. If one raises, the run stops: no other's work
        counts."""
        started = time.perf_counter()
        at = tasks[0]
        try:
            with self._guard(tasks, limit):
                visits = []
                for task in tasks:
                    at = task
                    visit = self._begin(phase, task, inputs)
                    visit.carry_out_until_stackable()
                    visits.append(visit)
                # A step in lockstep belongs to no single client: the first stands for all.
                at = tasks[0]
                waiting = [visit for visit in visits if visit.wish is not None]
                while waiting:
                    waiting = carry_out_stackable(self.learner, waiting)
            seconds = self.policy.measure("together", started, len(tasks))
            if not is_late(at, seconds, limit):
                return [end_visit(visit, seconds) for visit in visits]
            failed = end_late(phase, at, seconds, limit)
        except BaseException as error:
            failed = fail_visit(phase, at, error)
        if failed.unfinished is None or len(tasks) == 1:
            return [(failed, Left())]
        # What together took too much tells nothing of any one of them.
        alone = [self._visit_together(phase, [task], inputs, limit) for task in tasks]
        return [visited for (visited,) in alone]

    def _guard(self, tasks: Sequence[Task], limit: float | None) -> AbstractContextManager[object]:
        """The limits that visits are held to."""
        watched = limit is not None and tasks[0].client >= 0
        if not watched and self.memory is None:
            return _UNGUARDED
        guards = ExitStack()
        if self.memory is not None:
            guards.enter_context(self.memory.hold())
        if watched and limit is not None:
            guards.enter_context(self.watch.over([task.client for task in tasks], limit))
        return guards

    def _begin(self, phase: Phase, task: Task, inputs: Mapping[str, Any]) -> Visit:
        """A client's phase up to the first training that it wishes for, or to its end."""
        rng = self.streams.lend(task)
        seed = self.learner.begin_visit(rng)
        client = self._client(task, rng)
        if task.inputs:
            own = {key: self.resolve(value) for key, value in task.inputs.items()}
            inputs = {**inputs, **own}
        try:
            visit = begin_visit(client, seed, phase(client, **inputs))
        except TypeError:
            who = "the server" if task.client < 0 else f"client {task.client}"
            refuse_misfit_inputs(phase, inputs, f"{who}, round {task.t}")
            raise
        if self.holdings.tampering is not None:
            visit.tamper = self.holdings.tampering.begin(task, inputs)
        return visit

    def _client(self, task: Task, rng: np.random.Generator) -> Client:
        """Whom a phase sees: an examined client's update is looked at by the server, which has none
        of its data."""
        owner = SERVER if task.examined else task.client
        shard = self.holdings.shard(owner)
        # Of ten thousand clients with neither state nor features, each would be asked for both.
        state = self.resolve(task.state) if task.state else {}
        features = self._features_of(owner) if self.features else {}
        classes = self.holdings.classes
        return Client(owner, shard.x, shard.y, state, rng, self.learner, features, classes)

    def _features_of(self, client: ClientId) -> dict[str, NDArray[np.float32]]:
        rows = self.holdings.rows(client)
        return {name: freeze_array(values[rows]) for name, values in self.features.items()}

    def resolve(self, value: Any) -> Any:
        """An input as a phase sees it: named sets looked up, arrays read-only, containers
        walked."""
        return map_leaves(
            value,
            lambda leaf: (
                self.holdings.sets[leaf.handle] if isinstance(leaf, DataRef) else freeze_array(leaf)
            ),
        )

    def examine(
        self, phase: Phase, tasks: Mapping[UpdateId, Task], shared: Mapping[str, Any]
    ) -> list[Done]:
        """Run a server's phase on updates that lie here, which it gets under their names; the
        reports it leaves."""
        inputs = {name: self.resolve(value) for name, value in shared.items()}
        results = []
        for which, task in tasks.items():
            self.streams.take_back()
            own = {**self.updates.vectors(which), **task.inputs}
            ((done, _),) = self._visit(phase, task._replace(inputs=own), inputs)
            # Under the client's number, which names the update.
            results.append(done._replace(client=which.client))
        return results


class Left(NamedTuple):
    """What a visit leaves behind at its place."""

    update: Mapping[str, Vector] = NOTHING
    state: Mapping[str, Any] = NOTHING


def end_visit(visit: Visit, seconds: float) -> tuple[Done, Left]:
    """What the fleet learns of a visit that is over, and what stays here."""
    out = visit.out
    up = count_report(out)
    if out.state:
        check_label_entries(visit.client, out.state)
    update = NOTHING if out.update is None else name_update(out.update)
    if visit.tamper is not None:
        update = visit.tamper(update)
    peaks = {name: find_peak(vector) for name, vector in update.items()}
    sizes = {name: vector.nbytes for name, vector in update.items()}
    state_bytes = (
        {name: count_bytes(value) for name, value in out.state.items()} if out.state else NOTHING
    )
    finite = all(map(math.isfinite, peaks.values()))
    up += sum(sizes.values()) - out.unsent
    # By position, which takes half as long for a tuple of so many.
    done = Done(
        visit.client.id,
        out.report,
        state_bytes,
        peaks,
        sizes,
        finite,
        up,
        visit.forward,
        visit.backward,
        seconds,
    )
    return done, Left(update, out.state)


def count_report(out: object) -> int:
    """What sending a phase's report costs; refused if the phase returned something else, or a
    report that is none."""
    if not isinstance(out, Out):
        raise TypeError(broken("a phase returns an Out(report, update, state)", type(out).__name__))
    size = count_bytes(out.report, private=True)
    if size > REPORT_LIMIT:
        remedy = "Put weights into update and what the client needs again into state."
        raise ValueError(broken("a report stays under 1 MB", f"{size:,} bytes", remedy))
    return count_bytes(out.report) if size else 0


def lone_vector(update: Mapping[str, Vector]) -> Vector:
    """The one vector of an update, or that which is called `w`."""
    return update["w"] if "w" in update else next(iter(update.values()))


def fail_visit(phase: Phase, task: Task, error: BaseException) -> Done:
    """The outcome of a phase that raised; called where the exception is being handled. What asks
    this process to end is nobody's outcome."""
    if is_interruption(error):
        raise
    told = traceback.format_exc()
    if is_out_of_memory(error):
        return Done(task.client, unfinished=describe_shortage(phase, task, told))
    refusal = error if isinstance(error, RayflError) else None
    return Done(task.client, error=explain_error(error, told), refusal=refusal)


def end_late(phase: Phase, task: Task, seconds: float, limit: float | None) -> Done:
    """The outcome of a visit that came to its end too late."""
    late = describe_late(phase, task, limit, f"it took {seconds:.3g} s")
    return Done(task.client, unfinished=late)


_UNGUARDED = nullcontext()


def check_label_entries(client: Client, state: Mapping[str, Any]) -> None:
    """The two entries of a state that others read, `y` and `kept`, fit the client's samples."""
    if client.id < 0:
        return
    size = len(client.x)
    if "y" in state:
        y = np.asarray(state["y"])
        rule = f"state['y'] is one integer label below {client.classes} for each of {size} samples"
        if y.shape != (size,) or not np.issubdtype(y.dtype, np.integer):
            raise RayflError(broken(rule, f"{y.dtype} of shape {y.shape} (client {client.id})"))
        if size and not (y.min() >= 0 and (not client.classes or y.max() < client.classes)):
            raise RayflError(broken(rule, f"{y.min()} to {y.max()} (client {client.id})"))
    if "kept" in state:
        kept = np.asarray(state["kept"])
        if kept.dtype != np.bool_ or kept.shape[-1:] != (size,):
            rule = f"state['kept'] is a mask of {size} samples, or a row of them an epoch"
            got = f"{kept.dtype} of shape {kept.shape} (client {client.id})"
            raise RayflError(broken(rule, got))


def name_update(update: Any) -> Mapping[str, Vector]:
    """An update as named vectors; a bare vector is called `w`."""
    if isinstance(update, np.ndarray):
        return {"w": as_vector("w", update)}
    if not isinstance(update, Mapping):
        rule = "an update is a float32 vector of numpy's, or several by name"
        remedy = "Take trained.weights, or tensor.cpu().numpy()."
        raise RayflError(broken(rule, type(update).__name__, remedy))
    return {name: as_vector(name, vector) for name, vector in update.items()}


def as_vector(name: str, vector: Any) -> Vector:
    # Sums read memory as it lies: float32 without gaps.
    if isinstance(vector, np.ndarray):
        return np.ascontiguousarray(vector, dtype=np.float32)
    rule = f"the update '{name}' is a float32 vector of numpy's"
    raise RayflError(broken(rule, type(vector).__name__, "Take tensor.cpu().numpy()."))


def count_bytes(value: Any, *, scalars: bool = True, private: bool = False) -> int:
    """What a value costs on the wire: arrays and references by size, floats four bytes, text by
    length.

    Integers are bookkeeping and names that begin with an underscore are the simulator's own: both
    are free."""
    # The commonest first: a cohort of thousands asks this of every report.
    if isinstance(value, int):
        return 0
    if isinstance(value, np.ndarray):
        return int(value.nbytes)
    if isinstance(value, Ref):
        return value.nbytes
    if isinstance(value, MAPPINGS):
        counted = [item for key, item in value.items() if private or not str(key).startswith("_")]
        return sum(count_bytes(item, scalars=scalars, private=private) for item in counted)
    if isinstance(value, (list, tuple)):
        return sum(count_bytes(item, scalars=scalars, private=private) for item in value)
    if isinstance(value, (str, bytes)):
        return len(value) if scalars else 0
    return 4 if scalars and isinstance(value, (float, np.floating)) else 0


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """Mappings, lists and tuples built anew, with every leaf changed."""
    if isinstance(value, (np.ndarray, Ref)):
        return change(value)
    if isinstance(value, MAPPINGS):
        return {key: map_leaves(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [map_leaves(item, change) for item in value]
        # Named tuples take their items one by one.
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return change(value)


def lock_shard(shard: Shard) -> Shard:
    """A named set that no phase can write to."""
    features = map_leaves(shard.features, freeze_array)
    return Shard(freeze_array(shard.x), freeze_array(shard.y), features)


def copy_array(value: Any) -> Any:
    """An array as it is now, which nobody can change."""
    return freeze_array(np.array(value)) if isinstance(value, np.ndarray) else value


def freeze_array(value: Any) -> Any:
    """An array as a view that cannot be written; anything else as it is."""
    if isinstance(value, np.ndarray) and value.flags.writeable:
        value = value.view()
        value.flags.writeable = False
    return value
