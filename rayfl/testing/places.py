"""The places where a candidate is run: this process in several guises.

All that the promises know of fleets and engines is here and in `actors`."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.config.schema import Config
from rayfl.errors import ConfigError
from rayfl.federation.scenario import open_federation
from rayfl.fleet.base import BaseFleet, Errand, Spec, WhenDone
from rayfl.fleet.executor import Done, Holdings, Task, count_bytes, map_leaves
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import ClientId, DataRef, Phase, Ref
from rayfl.run.assembly import build_holdings, build_spec, narrow_scenario, refuse_missing_sets
from rayfl.run.engine import Engine, Outcome, Record

Tasks = Mapping[ClientId, Task]
Executed = tuple[dict[ClientId, Done], dict[ClientId, Any]]
MakeFleet = Callable[[Spec, Holdings], BaseFleet]


STIRRED = 1000
"""Where the seeds begin that a `StirringFleet` leaves behind."""


class RefusedBeforehand(ConfigError):
    """A method, or the configuration, refused this federation before the first round."""


class ReversedFleet(InlineFleet):
    """Executes the clients of every map in the opposite order."""

    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Tasks,
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> Executed:
        # The order of a chain is the method's own.
        if not chain:
            tasks = {client: tasks[client] for client in sorted(tasks, reverse=True)}
        return super().execute(number, phase, tasks, shared, chain)


class LateFleet(InlineFleet):
    """Carries out an errand when somebody waits for it, and not before."""

    def start_errand(
        self,
        phase: Phase,
        each: Mapping[ClientId, Mapping[str, Any]],
        when_done: WhenDone,
        **shared: Any,
    ) -> Errand:
        start = super().start_errand
        return PostponedErrand(lambda: start(phase, each, when_done, **shared))


class PostponedErrand(Errand):
    """An errand that has not begun."""

    def __init__(self, begin: Callable[[], Errand]) -> None:
        self.begin: Callable[[], object] = begin

    def wait(self) -> None:
        begin = self.begin
        self.begin = lambda: None
        begin()


class StirringFleet(InlineFleet):
    """Leaves other numbers in the global streams after every map, as another process would have."""

    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Tasks,
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> Executed:
        executed = super().execute(number, phase, tasks, shared, chain)
        seed_globals(STIRRED + number)
        return executed


class RememberingFleet(InlineFleet):
    """Knows which rounds it has seen."""

    def __init__(self, spec: Spec, holdings: Holdings) -> None:
        super().__init__(spec, holdings)
        # What happens before the first round, such as encoding images, belongs to none.
        self.round = -1
        self.rounds: set[int] = set()

    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Tasks,
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> Executed:
        self.rounds.add(self.round)
        return super().execute(number, phase, tasks, shared, chain)


class AdverseFleet(ReversedFleet, LateFleet, StirringFleet):
    """Backwards, late and with other global streams at once."""


class WatchedFleet(InlineFleet):
    """Notes the largest report, and every input that a phase wrote to."""

    def __init__(self, spec: Spec, holdings: Holdings) -> None:
        super().__init__(spec, holdings)
        self.largest_report = 0
        self.written: list[str] = []
        self.holdings = holdings

    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Tasks,
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> Executed:
        before = self._input_sums(tasks, shared)
        done, stored = super().execute(number, phase, tasks, shared, chain)
        after = self._input_sums(tasks, shared)
        name = getattr(phase, "__qualname__", str(phase))
        self.written += [
            f"{what} (phase {name}, round {self.round})"
            for what in before
            if before[what] != after[what]
        ]
        sizes = [count_bytes(outcome.report, private=True) for outcome in done.values()]
        self.largest_report = max([self.largest_report, *sizes])
        return done, stored

    def _input_sums(self, tasks: Tasks, shared: Mapping[str, Any]) -> dict[str, int]:
        """A checksum of every array that this map's phases can reach, by what a reader calls it."""
        sums = sum_arrays(self._look_up(shared), "input ")
        for client, task in tasks.items():
            sums |= sum_arrays(self._look_up(task.inputs), f"client {client}'s input ")
            sums |= sum_arrays(self._look_up(task.state), f"client {client}'s state ")
        for name, shard in self.holdings.sets.items():
            sums |= sum_arrays({"x": shard.x, "y": shard.y}, f"the set {name}'s ")
        return sums

    def _look_up(self, value: Any) -> Any:
        """A value with its references looked up; named sets are summed by themselves."""

        def fetch(leaf: Any) -> Any:
            is_value = isinstance(leaf, Ref) and not isinstance(leaf, DataRef)
            return self.get(leaf) if is_value else leaf

        return map_leaves(value, fetch)


class ReceivingFleet(InlineFleet):
    """Notes what the coordinator may hold at once: all that it fetches in a round, and the reports
    of one map, since slices that are gathered one after another are forgotten in turn."""

    def __init__(self, spec: Spec, holdings: Holdings) -> None:
        super().__init__(spec, holdings)
        self.most_held = 0
        self._fetched = 0
        self._reported = 0

    def refuse_errors(self, done: Iterable[Done], lenient: bool = False) -> None:
        # The outcomes of every map and of every examination come by here.
        outcomes = list(done)
        super().refuse_errors(outcomes, lenient)
        size = sum(count_bytes(outcome.report, private=True) for outcome in outcomes)
        self._reported = max(self._reported, size)

    def get(self, ref: Ref) -> Any:
        value = super().get(ref)
        self._fetched += count_bytes(value, private=True)
        return value

    def take_logged(self) -> dict[str, float]:
        # The engine asks when the method's round is over: what is fetched once the last one is, the
        # outcome's models, is no round's.
        self.most_held = max(self.most_held, self._fetched + self._reported)
        self._fetched = self._reported = 0
        return super().take_logged()


def sum_arrays(value: Any, path: str) -> dict[str, int]:
    """Checksums of the arrays inside a value, by their paths."""
    if isinstance(value, np.ndarray):
        return {path: zlib.crc32(value.tobytes())}
    items: list[tuple[object, Any]] = []
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        items = list(enumerate(value))
    found: dict[str, int] = {}
    for key, item in items:
        inner = f"{path}{key}" if path.endswith(" ") else f"{path}.{key}"
        found |= sum_arrays(item, inner)
    return found


INLINE_PLACES: Mapping[str, MakeFleet] = {
    "inline": InlineFleet,
    "reversed": ReversedFleet,
    "late": LateFleet,
    "stirring": StirringFleet,
    "adverse": AdverseFleet,
    "watched": WatchedFleet,
    "receiving": ReceivingFleet,
}


def run_in(
    config: Config, make_fleet: MakeFleet = InlineFleet, features: Path | None = None
) -> tuple[Outcome, BaseFleet]:
    """Run on one fleet; a run that has left checkpoints is taken up again."""
    engine, fleet = _open_run(config, make_fleet, features)
    records: list[Record] = []
    try:
        return engine.run(fleet, records.append), fleet
    except ConfigError as refusal:
        # A round that begins has its number; before the first one it is -1.
        if fleet.round < 0:
            raise RefusedBeforehand(str(refusal)) from refusal
        raise
    finally:
        fleet.close()


class _RoundReached(BaseException):
    """Ends a run, as a signal would."""


def stop_after(config: Config, last: int) -> int:
    """Begin, or take up again, and stop after this round, as a run that is told to stop does; the
    first round that was played, or this one where none was seen."""
    fleet: RememberingFleet

    def make_fleet(spec: Spec, holdings: Holdings) -> BaseFleet:
        nonlocal fleet
        fleet = RememberingFleet(spec, holdings)
        return fleet

    engine, _ = _open_run(config, make_fleet, None)

    def emit(record: Record) -> None:
        if record.get("round") == last:
            raise _RoundReached

    try:
        engine.run(fleet, emit)
    except _RoundReached:
        engine.save()
    finally:
        fleet.close()
    return min((t + 1 for t in fleet.rounds if t >= 0), default=last)


def shorten(config: Config, rounds: int) -> Config:
    """The same run with fewer rounds."""
    training = config.training.model_copy(update={"rounds": rounds})
    return config.model_copy(update={"training": training})


@contextmanager
def copied_weights() -> Iterator[None]:
    """For a while, no network counts as large: weights are copied, never given away."""
    from rayfl.learn import resident

    usual = resident.LARGE
    resident.LARGE = 1 << 62
    try:
        yield
    finally:
        resident.LARGE = usual


def seed_globals(seed: int) -> None:
    """Let Python's, numpy's and torch's global streams begin here."""
    import torch

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


@contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Python's, numpy's and torch's global streams begin here, and are put back afterwards."""
    import torch

    python = random.getstate()
    numbers = np.random.get_state()  # noqa: NPY002
    tensors = torch.get_rng_state()
    seed_globals(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numbers)  # noqa: NPY002
        torch.set_rng_state(tensors)


def _open_run(
    config: Config, make_fleet: MakeFleet, features: Path | None
) -> tuple[Engine, BaseFleet]:
    """The engine and the fleet of a configuration."""
    dataset, scenario = open_federation(config, config.seeds_for("data"))
    holdings = build_holdings(config, dataset, narrow_scenario(config.method, scenario))
    refuse_missing_sets(config.method, holdings)
    fleet = make_fleet(build_spec(config, dataset, scenario, "cpu"), holdings)
    # Beside the runs of a bench, not in each of them: encoders look at the same images.
    kept = features or config.output.parent / "features"
    uri = config.checkpoint.uri or str(config.output / "checkpoints")
    return Engine(config, scenario, uri, {"run": "toy"}, dataset.shape, kept), fleet
