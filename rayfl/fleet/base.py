"""What every fleet does the same way: cohorts, visits, the table of client state, and the costs of
a real system."""

from __future__ import annotations

import itertools
import logging
import weakref
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.errors import ConfigError, PhaseError, broken
from rayfl.fleet.absences import Absences
from rayfl.fleet.absurd import Norms, clip_norms, find_absurd, say_absurd
from rayfl.fleet.accounts import Clock, Costs
from rayfl.fleet.executor import NOTHING, Done, Holdings, Task, count_bytes
from rayfl.fleet.refusals import read_ids
from rayfl.fleet.replies import (
    DIVERGED,
    FinishedMap,
    FleetReplies,
    Mean,
    describe_void,
    find_reasons,
)
from rayfl.fleet.safeguards import Safeguards, VisitTimes
from rayfl.fleet.server_phases import add_vectors, give_first_weights
from rayfl.fleet.streams import Streams
from rayfl.fleet.sums.updates import UpdateId
from rayfl.learn.training import Training
from rayfl.protocol import (
    SERVER,
    ClientId,
    DataRef,
    Fleet,
    NobodyLeft,
    Phase,
    Ref,
    Replies,
    Report,
    Served,
)

if TYPE_CHECKING:
    from rayfl.learn.learner import Learner

log = logging.getLogger("rayfl")

TEST_SET = "test"
"""The set that only the experiment's own evaluation sees."""
STAMPED_SET = "test_stamped"
"""Test images with a backdoor's trigger on them: the experiment's too."""


@dataclass(frozen=True)
class Spec:
    """Everything that a place needs to run phases; it travels to the actors."""

    make_learner: Callable[[], Learner]
    streams: Streams
    cohort: int
    threads: int = 1
    training: Training = field(default_factory=Training)
    safeguards: Safeguards = field(default_factory=Safeguards)


WhenDone = Callable[[Mapping[ClientId, Report], float], object]
"""Given the reports of an errand, and the seconds that it took."""


class Errand:
    """Work of the simulator's own, free of charge, that goes on beside the method's rounds. This
    one is over."""

    def wait(self) -> None:
        """Return when it is over."""


class BaseFleet(Fleet):
    """A fleet without a place: subclasses say how tasks are executed and where updates lie."""

    def __init__(self, spec: Spec, holdings: Holdings) -> None:
        self.spec = spec
        self.sizes = np.diff(holdings.offsets)
        # Asked for one by one, thousands of times a round, which a list answers sooner than an
        # array.
        self._sizes: list[int] = self.sizes.tolist()
        height, width, channels = holdings.x.shape[1:]
        self.shape = (height, width, channels)
        self.training = spec.training
        self.classes = holdings.classes
        self.clients: Sequence[ClientId] = [int(k) for k in np.flatnonzero(self.sizes)]
        self.cohort = min(spec.cohort, len(self.clients))
        self.sets = {name: len(shard) for name, shard in holdings.sets.items()}
        self.fingerprints = dict(holdings.fingerprints)
        self.owned = np.sort(holdings.order[holdings.offsets[0] :])
        self.costs = Costs()
        self.clock = Clock()
        self.diverged: list[ClientId] = []
        self.absurd: list[ClientId] = []
        self._named: set[ClientId] = set()
        self.absences = Absences()
        self.times = VisitTimes(spec.safeguards)
        self.table: dict[ClientId, dict[str, Ref]] = {}
        self.left: dict[str, NDArray[Any]] = {}
        self._cohort: tuple[int, list[ClientId]] = (-2, [])
        self._logged: dict[str, float] = {}
        self._estimates: dict[str, dict[ClientId, float]] = {}
        self._answers: dict[str, dict[ClientId, NDArray[Any]]] = {}
        self._numbers = itertools.count()
        self._visits: dict[tuple[ClientId, bool], int] = {}
        self._draws = 0
        self._round = 0

    @property
    def round(self) -> int:
        """The round that is under way."""
        return self._round

    @round.setter
    def round(self, t: int) -> None:
        self._round = t
        # Nobody has been visited in it yet.
        self._visits.clear()
        self._draws = 0

    def count_visit(self, client: ClientId, examined: bool = False) -> int:
        """How often this client was visited in this round before; it is now."""
        which = client, examined
        before = self._visits.get(which, 0)
        self._visits[which] = before + 1
        return before

    # -- what a method sees ------------------------------------------------------------------------

    def size(self, owner: ClientId | str) -> int:
        if isinstance(owner, str):
            return self.sets[self.data(owner).handle]
        return 0 if owner < 0 else self._sizes[owner]

    def sample(self, t: int, among: Iterable[ClientId] | None = None) -> list[ClientId]:
        if among is not None:
            draw = self._draws
            self._draws += 1
            return self._draw(t, sorted(set(among)), draw)
        ahead = self._cohort
        self._cohort = (t, ahead[1] if ahead[0] == t else self._draw(t, self.clients))
        return list(self._cohort[1])

    def _draw(self, t: int, pool: Sequence[ClientId], draw: int = 0) -> list[ClientId]:
        if not pool:
            rule = "a round needs at least one client to draw from"
            raise ConfigError(broken(rule, f"none in round {t}"))
        rng = self.rng(t, f"cohort {draw}" if draw else "cohort")
        drawn = rng.choice(len(pool), size=min(self.spec.cohort, len(pool)), replace=False)
        return sorted(pool[i] for i in drawn.tolist())

    def draw_ahead(self) -> None:
        """Draw the next round's cohort, where this round's was drawn: there is time while others
        work."""
        if self._cohort[0] == self.round:
            self._cohort = (self.round + 1, self._draw(self.round + 1, self.clients))

    def map(
        self,
        phase: Phase,
        clients: Iterable[ClientId],
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Replies:
        return self._map(phase, sorted(set(read_ids(clients))), each or {}, shared)

    def chain(
        self,
        phase: Phase,
        clients: Sequence[ClientId],
        w: Ref,
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Replies:
        order = read_ids(clients)
        if len(set(order)) < len(order):
            raise ConfigError(broken("a chain visits each client once", order))
        return self._map(phase, order, each or {}, {"w": w, **shared}, chain=True)

    def _map(
        self,
        phase: Phase,
        clients: Sequence[ClientId],
        each: Mapping[ClientId, Mapping[str, Any]],
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> FleetReplies:
        tasks = self._make_tasks(clients, each)
        wanted = self.absences.without_absent(tasks)
        number = next(self._numbers)
        try:
            done, stored = self.execute(number, phase, wanted, shared, chain)
            lenient = self.spec.safeguards.leave_out
            self.refuse_errors(done.values(), lenient)
            if lenient:
                self._leave_out_unfinished(wanted, done.values())
            self.times.note(phase, done.values())
            finite = {k: one for k, one in done.items() if one.finite and not one.unfinished}
            alive, clips = self._judge_norms(number, finite, chain)
        except BaseException:
            self.forget(number)
            raise
        gone = {} if len(alive) == len(tasks) else find_reasons(tasks, done, alive)
        self.diverged += [client for client, why in gone.items() if why == DIVERGED]
        # After the last client: nobody may see what another one left in the same map.
        self._commit({k: handle for k, handle in stored.items() if k in alive}, done)
        self._account([done.get(client) or Done(client) for client in tasks], tasks, shared)
        finished = FinishedMap(number, phase, wanted, shared, alive, chain, clips)
        # Even for a void round: whoever is left of it is freed.
        weakref.finalize(finished, self.forget, number)
        if tasks and not alive:
            raise NobodyLeft(f"round {self.round}: {describe_void(len(tasks), gone)}")
        return FleetReplies(self, dict.fromkeys(alive, finished), gone)

    def _leave_out_unfinished(self, tasks: Mapping[ClientId, Task], done: Iterable[Done]) -> None:
        """Decide that visits without an end are left out."""
        for outcome in done:
            if outcome.unfinished is not None:
                self.absences.decide(tasks[outcome.client], outcome.unfinished.why)
                log.warning("%s; it is left out of this round", outcome.unfinished.what)

    def _judge_norms(
        self, number: int, done: Mapping[ClientId, Done], chain: bool
    ) -> tuple[dict[ClientId, Done], Mapping[ClientId, Norms]]:
        """The outcomes that count, of finite updates, and which are clipped, to what."""
        rules = self.spec.safeguards
        absurd = find_absurd(done.values(), rules.norm_multiple)
        self.absurd += sorted(absurd)
        # The metrics of every round have it; once is enough of a warning.
        say_absurd(self.round, {k: absurd[k] for k in absurd if k not in self._named}, done, rules)
        self._named |= set(absurd)
        # In a chain the next client has begun with it: it is too late.
        if not absurd or chain or rules.absurd == "name":
            return dict(done), {}
        if rules.absurd == "drop":
            return {client: one for client, one in done.items() if client not in absurd}, {}
        self.clip(number, absurd)
        clipped = {client: clip_norms(done[client], most) for client, most in absurd.items()}
        return {**done, **clipped}, absurd

    def serve(self, phase: Phase, **inputs: Any) -> Served:
        got = self._map(phase, [SERVER], {}, inputs)
        return Served(got[SERVER], got.refs(SERVER))

    def combine(self, *terms: tuple[float, Ref]) -> Ref:
        factors = [float(factor) for factor, _ in terms]
        vectors = [ref for _, ref in terms]
        return self.serve(add_vectors, factors=factors, vectors=vectors)["w"]

    def initial(self, i: int = 0) -> Ref:
        return self.serve(give_first_weights, i=i)["w"]

    def state(self, client: ClientId, key: str) -> Ref | None:
        return self.table.get(client, {}).get(key)

    def data(self, name: str) -> DataRef:
        if name in (TEST_SET, STAMPED_SET):
            rule = "a method sees what a real federation has"
            remedy = "Test images are the experiment's; split.validation gives the server a set."
            raise ConfigError(broken(rule, f"the set '{name}'", remedy))
        if name not in self.sets:
            known = ", ".join(sorted(set(self.sets) - {TEST_SET, STAMPED_SET})) or "none"
            rule = f"this federation has the named sets {known}"
            raise ConfigError(broken(rule, f"'{name}'", f"Set split.{name}."))
        return DataRef(name)

    def log(self, **metrics: float) -> None:
        # What is no number is refused after the round, with its name: see the engine.
        self._logged.update(metrics)

    def estimate(self, name: str, values: Mapping[ClientId, float]) -> None:
        self._estimates[name] = {client: float(value) for client, value in sorted(values.items())}
        # What was said of a client stands until something else is.
        unknown = np.full(len(self.sizes), np.nan)
        latest = np.array(self.left.get(f"estimate/{name}", unknown))
        latest[list(self._estimates[name])] = list(self._estimates[name].values())
        self.left[f"estimate/{name}"] = latest

    def answered(self, held: str, labels: Mapping[ClientId, NDArray[Any]]) -> None:
        self._answers[held] = dict(labels)

    def leave(self, name: str, array: NDArray[Any]) -> None:
        # A copy: the method may go on with its own.
        self.left[name] = np.array(array)

    def rng(self, t: int, purpose: str) -> np.random.Generator:
        return np.random.default_rng([self.spec.streams.seed, t, zlib.crc32(purpose.encode())])

    # -- what the engine sees ----------------------------------------------------------------------

    def held_set(self, name: str) -> DataRef:
        """Any named set, the test set included: for the experiment alone."""
        return DataRef(name)

    def take_logged(self) -> dict[str, float]:
        """The method's measures since the last call."""
        logged = self._logged
        self._logged = {}
        return logged

    def take_estimates(self) -> dict[str, dict[ClientId, float]]:
        """What the method believed of clients since the last call."""
        estimates = self._estimates
        self._estimates = {}
        return estimates

    def take_answers(self) -> dict[str, dict[ClientId, NDArray[Any]]]:
        """What clients' models said of named sets since the last call."""
        answers = self._answers
        self._answers = {}
        return answers

    def take_diverged(self) -> list[ClientId]:
        """Whose updates were not finite since the last call."""
        diverged = self.diverged
        self.diverged = []
        return diverged

    def take_absurd(self) -> list[ClientId]:
        """Whose updates were absurd since the last call."""
        absurd = self.absurd
        self.absurd = []
        return absurd

    def start_errand(
        self,
        phase: Phase,
        each: Mapping[ClientId, Mapping[str, Any]],
        when_done: WhenDone,
        **shared: Any,
    ) -> Errand:
        """Run server tasks that no round waits for."""
        tasks = self._make_errand_tasks(each)
        # By default there is nobody to work beside, so it is done on the spot.
        done, _ = self.execute(next(self._numbers), phase, tasks, shared)
        self.end_errand(when_done, done.values())
        return Errand()

    def _make_errand_tasks(
        self, each: Mapping[ClientId, Mapping[str, Any]]
    ) -> dict[ClientId, Task]:
        """Tasks that do not count as visits: what goes on beside a round must not change its
        streams."""
        return {
            task: Task(task, self.round, dict(inputs), NOTHING) for task, inputs in each.items()
        }

    def end_errand(self, when_done: WhenDone, done: Iterable[Done]) -> None:
        """Hand over what an errand brought."""
        outcomes = list(done)
        self.refuse_errors(outcomes)
        reports = {outcome.client: outcome.report for outcome in outcomes}
        when_done(reports, sum(outcome.seconds for outcome in outcomes))

    # -- what a place provides ---------------------------------------------------------------------

    @abstractmethod
    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Mapping[ClientId, Task],
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> tuple[dict[ClientId, Done], dict[ClientId, Any]]:
        """Run all tasks; outcomes and handles of the stored state, by ascending client id. A chain
        runs in the order of its tasks, at one place."""
        raise NotImplementedError

    @abstractmethod
    def reduce(self, mean: Mean) -> Ref:
        """The weighted mean of updates, wherever they lie."""
        raise NotImplementedError

    @abstractmethod
    def examine(
        self,
        phase: Phase,
        tasks: Mapping[UpdateId, Task],
        shared: Mapping[str, Any],
        maps: Mapping[int, FinishedMap],
    ) -> list[Done]:
        """Run a phase of the server on updates, each where it lies."""
        raise NotImplementedError

    @abstractmethod
    def clip(self, number: int, limits: Mapping[ClientId, Norms]) -> None:
        """Scale updates of a map down where they lie, to these norms of their vectors."""
        raise NotImplementedError

    @abstractmethod
    def forget(self, number: int) -> None:
        """Free what a map left: nobody will ask for it."""
        raise NotImplementedError

    @abstractmethod
    def share_features(self, name: str, features: Mapping[str, NDArray[np.float32]]) -> None:
        """Give every place the features of the training set (under `train`) and of the named
        sets."""
        raise NotImplementedError

    def lost(self, error: Exception) -> bool:
        """Whether an error means that the place, not the method, failed."""
        return False

    def close(self) -> None:
        """Release every process that this fleet started."""

    # -- shared machinery --------------------------------------------------------------------------

    def refuse_errors(self, done: Iterable[Done], lenient: bool = False) -> None:
        """A phase that raised stops the run: nothing is aggregated from survivors. So does a visit
        without an end, unless such visits of clients may be left out."""
        for outcome in done:
            # What a person can mend is said as it is, without a traceback around it.
            if outcome.refusal is not None:
                raise outcome.refusal
            unfinished = outcome.unfinished
            if unfinished and not (lenient and unfinished.certain and outcome.client >= 0):
                raise PhaseError(unfinished.sentence)
            if outcome.error is not None:
                who = "the server" if outcome.client < 0 else f"client {outcome.client}"
                where = f"a phase raised on {who} in round {self.round}"
                raise PhaseError(f"{where}:\n{outcome.error.rstrip()}")

    def account_server(self, done: Iterable[Done]) -> None:
        """Charge the server for what it computed."""
        for outcome in done:
            self.costs.server_forward += outcome.forward
            self.costs.server_backward += outcome.backward
            self.clock.busy += outcome.seconds

    def _make_tasks(
        self, clients: Sequence[ClientId], each: Mapping[ClientId, Mapping[str, Any]]
    ) -> dict[ClientId, Task]:
        if max(clients, default=0) >= len(self.sizes):
            raise ConfigError(broken(f"clients have ids below {len(self.sizes)}", max(clients)))
        t = self.round
        table = self.table
        tasks = {}
        for client in clients:
            own = each.get(client)
            # Inputs are copied: lost work is done again later, when the method may have changed its
            # own.
            inputs = dict(own) if own else NOTHING
            state = table.get(client, NOTHING)
            tasks[client] = Task(client, t, inputs, state, self.count_visit(client))
        return tasks

    def _commit(self, stored: Mapping[ClientId, Any], done: Mapping[ClientId, Done]) -> None:
        for client, handle in stored.items():
            refs = {key: Ref(handle, key, size) for key, size in done[client].state_bytes.items()}
            known = self.table.get(client, NOTHING)
            if refs:
                # A client's entries are never changed in place: a snapshot of the table is a copy
                # of its outer mapping.
                self.table[client] = refs if list(known) == list(refs) else {**known, **refs}

    def _account(
        self, done: Iterable[Done], tasks: Mapping[ClientId, Task], shared: Mapping[str, Any]
    ) -> None:
        outcomes = list(done)
        clients = [outcome for outcome in outcomes if outcome.client >= 0]
        self.account_server(outcome for outcome in outcomes if outcome.client < 0)
        own = [inputs for outcome in clients if (inputs := tasks[outcome.client].inputs)]
        costs = self.costs
        # A client that is visited twice in a round takes part once.
        costs.participants += sum(not tasks[outcome.client].visit for outcome in clients)
        # Numbers among the inputs are settings, which a real client would have been told once.
        costs.down += len(clients) * count_bytes(shared, scalars=False) + count_bytes(
            own, scalars=False
        )
        costs.up += sum(outcome.up for outcome in clients)
        costs.forward += sum(outcome.forward for outcome in clients)
        costs.backward += sum(outcome.backward for outcome in clients)
        self.clock.busy += sum(outcome.seconds for outcome in clients)
