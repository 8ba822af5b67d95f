"""What every fleet does the same way: cohorts, streams, the table of client state, and the costs of
a real system."""

from __future__ import annotations

import itertools
import time
import weakref
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from rayfl.errors import ConfigError, PhaseError, broken
from rayfl.fleet.executor import NOTHING, Done, Holdings, Task, nbytes
from rayfl.fleet.replies import FinishedMap, HeldReplies, Mean
from rayfl.fleet.sums.updates import UpdateId
from rayfl.learn.training import Training
from rayfl.protocol import SERVER, ClientId, DataRef, Fleet, NobodyLeft, Phase, Ref, Replies, Report

if TYPE_CHECKING:
    from rayfl.learn.learner import Learner


class Key(ISeedSequence):
    """The key of a Philox generator, given as a seed: its own `key` would first ask the system for
    entropy."""

    def __init__(self, *words: int) -> None:
        self.words = np.array(words, np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:
        return self.words


@dataclass(frozen=True)
class Streams:
    """Random streams that depend on nothing but (seed, round, client)."""

    seed: int

    def __call__(self, t: int, client: ClientId) -> np.random.Generator:
        # Rounds begin at -1 and the server's ids are negative: shifted, each fills its half of one
        # word.
        key = Key(self.seed, ((t + 1) << 32) + client + (1 << 31))
        return np.random.Generator(np.random.Philox(key))  # type: ignore[arg-type]


@dataclass(frozen=True)
class Spec:
    """Everything that a place needs to run phases; it travels to the actors."""

    make_learner: Callable[[], Learner]
    streams: Streams
    cohort: int
    threads: int = 1
    training: Training = field(default_factory=Training)


@dataclass
class Costs:
    """What the real system would have sent and computed, since the last `take`."""

    participants: int = 0
    down: int = 0
    up: int = 0
    forward: int = 0
    backward: int = 0
    server_forward: int = 0
    server_backward: int = 0

    def take(self) -> dict[str, int]:
        taken = asdict(self)
        self.__init__()  # type: ignore[misc]
        return taken


@dataclass
class Clock:
    """Seconds since the last `take`: of phases, over all places; of sending them off; of adding up
    what they made."""

    busy: float = 0.0
    broadcast: float = 0.0
    reduce: float = 0.0

    @contextmanager
    def running(self, hand: Literal["broadcast", "reduce"]) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, hand, getattr(self, hand) + time.perf_counter() - started)

    def take(self) -> dict[str, float]:
        taken = {f"time/{hand}_s": seconds for hand, seconds in vars(self).items()}
        self.__init__()  # type: ignore[misc]
        return taken


Then = Callable[[Mapping[ClientId, Report], float], object]


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
        self.shape, self.training = (height, width, channels), spec.training
        self.clients: Sequence[ClientId] = [int(k) for k in np.flatnonzero(self.sizes)]
        self.sets = {name: len(shard) for name, shard in holdings.sets.items()}
        self.fingerprints = dict(holdings.fingerprints)
        self.owned = np.sort(holdings.order[holdings.offsets[0] :])
        self.costs = Costs()
        self.clock = Clock()
        self.round = 0
        self.diverged: list[ClientId] = []
        self.table: dict[ClientId, dict[str, Ref]] = {}
        self.left: dict[str, NDArray[Any]] = {}
        self._cohort: tuple[int, list[ClientId]] = (-2, [])
        self._logged: dict[str, float] = {}
        self._estimates: dict[str, dict[ClientId, float]] = {}
        self._answers: dict[str, dict[ClientId, NDArray[Any]]] = {}
        self._numbers = itertools.count()

    # -- what a method sees ------------------------------------------------------------------------

    def size(self, client: ClientId) -> int:
        return 0 if client < 0 else self._sizes[client]

    def sample(self, t: int, among: Iterable[ClientId] | None = None) -> list[ClientId]:
        if among is not None:
            return self._drawn(t, sorted(set(among)))
        ahead = self._cohort
        self._cohort = (t, ahead[1] if ahead[0] == t else self._drawn(t, self.clients))
        return list(self._cohort[1])

    def _drawn(self, t: int, pool: Sequence[ClientId]) -> list[ClientId]:
        if not pool:
            raise ConfigError(
                broken("a round needs at least one client to draw from", f"none in round {t}")
            )
        drawn = self.rng(t, "cohort").choice(
            len(pool), size=min(self.spec.cohort, len(pool)), replace=False
        )
        return sorted(pool[i] for i in drawn.tolist())

    def draw_ahead(self) -> None:
        """Draw the next round's cohort, where this round's was drawn: there is time while others
        work."""
        if self._cohort[0] == self.round:
            self._cohort = (self.round + 1, self._drawn(self.round + 1, self.clients))

    def map(
        self,
        phase: Phase,
        clients: Iterable[ClientId],
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Replies:
        tasks = self._tasks(sorted(set(clients)), each or {})
        number = next(self._numbers)
        try:
            done, stored = self.execute(number, phase, tasks, shared)
            self.refuse_errors(done.values())
        except BaseException:
            self.forget(number)
            raise
        diverged = tuple(client for client, outcome in done.items() if not outcome.finite)
        self.diverged += diverged
        # After the last client: nobody may see what another one left in the same map.
        self._commit(
            {client: handle for client, handle in stored.items() if client not in diverged}, done
        )
        self._account(done.values(), tasks, shared)
        alive = {client: outcome for client, outcome in done.items() if client not in diverged}
        finished = FinishedMap(number, phase, tasks, shared, alive)
        # Even that of a void round: this is how its updates are freed.
        weakref.finalize(finished, self.forget, number)
        replies = HeldReplies(self, finished)
        if tasks and not alive:
            raise NobodyLeft(f"round {self.round}: every one of {len(tasks)} updates diverged")
        replies.diverged = diverged
        return replies

    def serve(self, phase: Phase, **inputs: Any) -> Ref:
        # The mean of one is that one, bit for bit.
        return self.map(phase, [SERVER], **inputs).mean({SERVER: 1.0})

    def state(self, client: ClientId, key: str) -> Ref | None:
        return self.table.get(client, {}).get(key)

    def data(self, name: str) -> DataRef:
        if name not in self.sets:
            known = ", ".join(sorted(self.sets)) or "none"
            raise ConfigError(
                broken(
                    f"this federation has the named sets {known}", f"'{name}'", f"Set split.{name}."
                )
            )
        return DataRef(name)

    def log(self, **metrics: float) -> None:
        self._logged.update(metrics)

    def estimate(self, name: str, values: Mapping[ClientId, float]) -> None:
        self._estimates[name] = {client: float(value) for client, value in sorted(values.items())}
        # What was said of a client stands until something else is.
        latest = np.array(self.left.get(f"estimate/{name}", np.full(len(self.sizes), np.nan)))
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

    def take_logged(self) -> dict[str, float]:
        logged, self._logged = self._logged, {}
        return logged

    def take_estimates(self) -> dict[str, dict[ClientId, float]]:
        estimates, self._estimates = self._estimates, {}
        return estimates

    def take_answers(self) -> dict[str, dict[ClientId, NDArray[Any]]]:
        answers, self._answers = self._answers, {}
        return answers

    def take_diverged(self) -> list[ClientId]:
        diverged, self.diverged = self.diverged, []
        return diverged

    def start_errand(
        self,
        phase: Phase,
        each: Mapping[ClientId, Mapping[str, Any]],
        when_done: Then,
        **shared: Any,
    ) -> Errand:
        """Run server tasks that no round waits for; `when_done` is given their reports, and the
        seconds that they took."""
        tasks = self._tasks(list(each), each)
        # By default there is nobody to work beside, so it is done on the spot.
        done, _ = self.execute(next(self._numbers), phase, tasks, shared)
        self.tell(when_done, done.values())
        return Errand()

    def tell(self, then: Then, done: Iterable[Done]) -> None:
        """End an errand."""
        outcomes = list(done)
        self.refuse_errors(outcomes)
        reports = {outcome.client: outcome.report for outcome in outcomes}
        then(reports, sum(outcome.seconds for outcome in outcomes))

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
        is run in the order of its tasks at one place."""
        raise NotImplementedError

    @abstractmethod
    def reduce(self, mean: Mean) -> Ref:
        """One mean, of updates wherever they lie."""
        raise NotImplementedError

    @abstractmethod
    def examine(
        self,
        phase: Phase,
        tasks: Mapping[UpdateId, Task],
        shared: Mapping[str, Any],
        maps: Mapping[int, FinishedMap],
    ) -> list[Done]:
        """Run a server's phase on updates where they lie; outcomes under the clients that made
        them."""
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

    def refuse_errors(self, done: Iterable[Done]) -> None:
        """A phase that raised stops the run: nothing is aggregated from survivors."""
        for outcome in done:
            # What a person can mend is said as it is, without a traceback around it.
            if outcome.refusal is not None:
                raise outcome.refusal
            if outcome.error is not None:
                who = "the server" if outcome.client < 0 else f"client {outcome.client}"
                raise PhaseError(
                    f"a phase raised on {who} in round {self.round}:\n{outcome.error.rstrip()}"
                )

    def account_server(self, done: Iterable[Done]) -> None:
        for outcome in done:
            self.costs.server_forward += outcome.forward
            self.costs.server_backward += outcome.backward
            self.clock.busy += outcome.seconds

    def _tasks(
        self, clients: Sequence[ClientId], each: Mapping[ClientId, Mapping[str, Any]]
    ) -> dict[ClientId, Task]:
        if max(clients, default=0) >= len(self.sizes):
            raise ConfigError(broken(f"clients have ids below {len(self.sizes)}", max(clients)))
        t, table = self.round, self.table
        # Inputs are copied: lost work is done again later, when the method may have changed its
        # own.
        return {
            client: Task(
                client,
                t,
                dict(own) if (own := each.get(client)) else NOTHING,
                table.get(client, NOTHING),
            )
            for client in clients
        }

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
        costs.participants += len(clients)
        # Numbers among the inputs are settings, which a real client would have been told once.
        costs.down += len(clients) * nbytes(shared, scalars=False) + nbytes(own, scalars=False)
        costs.up += sum(outcome.up for outcome in clients)
        costs.forward += sum(outcome.forward for outcome in clients)
        costs.backward += sum(outcome.backward for outcome in clients)
        self.clock.busy += sum(outcome.seconds for outcome in clients)
