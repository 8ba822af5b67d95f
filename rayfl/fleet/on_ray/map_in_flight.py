"""One map from its first call to the last mean of its updates: what is still to do, which calls are
out, what has come back, and where the updates lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rayfl.fleet.executor import Done, Task
from rayfl.fleet.on_ray.calls import Answer, Call, Inputs, split_at_limit
from rayfl.fleet.on_ray.placement import HandOutPlan
from rayfl.fleet.on_ray.pool import Place
from rayfl.fleet.on_ray.suspects import Suspects
from rayfl.fleet.on_ray.transport import Pending, PlaceDied
from rayfl.fleet.on_ray.values import Handle, Packed
from rayfl.fleet.safeguards import Unfinished, describe_late
from rayfl.fleet.sums.early_sums import EarlySums, ExpectedMeans
from rayfl.fleet.sums.shared_memory import Page
from rayfl.fleet.sums.updates import NamedVectors
from rayfl.fleet.watch import Overdue
from rayfl.protocol import ClientId, Phase

MAX_ARGUMENT_BYTES = 256 << 20
"""Values pinned by one call; more clients than fit are split over several calls."""


class Stage(Enum):
    """What a call that is out is waited for."""

    VISITING = "its clients are visited"
    COLLECTING = "the large states that they left are brought to where they outlive the actor"


@dataclass(eq=False)
class CallInFlight:
    """A call that is out."""

    place: Place
    tasks: list[Task]
    stage: Stage = Stage.VISITING
    answer: Answer | None = None
    """Once the visits are over."""
    collected: Mapping[ClientId, Handle] = field(default_factory=dict)


class MapInFlight:
    """Tasks of one phase, under one number. An errand is one, too."""

    def __init__(
        self,
        number: int,
        phase: Phase,
        expected: ExpectedMeans | None = None,
        chain: bool = False,
        beside_rounds: bool = False,
        limit: float | None = None,
    ) -> None:
        self.number, self.phase = number, phase
        self.chain, self.beside_rounds = chain, beside_rounds
        self.limit = limit
        self.early = EarlySums(expected or {})
        # Where updates lie, and on which pages the large ones among them.
        self.where: dict[ClientId, Place] = {}
        self.pages: dict[ClientId, Mapping[str, Page]] = {}
        # Small updates of the server's, which came along.
        self.arrived: dict[ClientId, NamedVectors] = {}

    def start(self, plan: HandOutPlan[Task], shared: Inputs, lenient: bool = False) -> None:
        """Set out: for the first time, or once more with those whose updates are lost. A lenient
        one goes on without a client whose visit comes to no end."""
        self.plan, self.shared, self.lenient = plan, shared, lenient
        self.out: dict[Pending[Any], CallInFlight] = {}
        self.done: dict[ClientId, Done] = {}
        self.stored: dict[ClientId, Handle] = {}
        self.suspects = Suspects(self.chain)
        self.raised = False

    def finish(self) -> tuple[dict[ClientId, Done], dict[ClientId, Handle]]:
        """What came of it. From here on this only tells where updates lie."""
        found = {client: self.done[client] for client in sorted(self.done)}, self.stored
        self.start(HandOutPlan([], lambda _: 0.0, 1), {})
        self.early.complete = True
        return found

    @property
    def open(self) -> bool:
        """Whether there is anything to hand out or to wait for. A phase that raised makes the whole
        map void: the others work on, and what they answer is read before their next call."""
        return bool(self.plan or self.out) and not self.raised

    @property
    def busy(self) -> set[Place]:
        return {call.place for call in self.out.values()}

    # -- calls -------------------------------------------------------------------------------------

    def next_call(self, place: Place) -> Call:
        """The next piece of the plan, as a call."""
        tasks = self.plan.next()
        if not self.chain:
            tasks, rest = split_at_limit(tasks, MAX_ARGUMENT_BYTES)
            if rest:
                self.plan.put_back(rest)
        return Call(
            self.number,
            self.phase,
            tasks,
            self.shared,
            place.take_forgotten(),
            self.early.expect_of([task.client for task in tasks]),
            self.chain,
            self.beside_rounds,
            self.limit,
        )

    def note_sent(self, pending: Pending[Answer], place: Place, tasks: list[Task]) -> None:
        self.out[pending] = CallInFlight(place, tasks)

    def note_collecting(
        self,
        pending: Pending[object],
        call: CallInFlight,
        answer: Answer,
        handles: Mapping[ClientId, Handle],
    ) -> None:
        """A state must outlive its actor: only what has been collected is done."""
        self.out[pending] = call
        call.stage, call.answer, call.collected = Stage.COLLECTING, answer, handles

    def note_death(self, call: CallInFlight, error: PlaceDied) -> None:
        """Nothing of a call whose actor died is left: it is all to be done again, unless a visit
        would end one actor after the other."""
        if again := self.suspects.note_death(call.tasks):
            for piece in again:
                self.plan.put_back(piece)
        else:
            self._give_up(
                call.tasks[0], self.suspects.describe(self.phase, call.tasks, error.brief)
            )

    def note_overdue(self, call: CallInFlight, overdue: Overdue) -> None:
        """An actor ended itself, because one visit took too long: the others are to be done
        again."""
        (client,) = overdue.clients
        late = next(task for task in call.tasks if task.client == client)
        how = f"it was at {overdue.where}"
        self._give_up(late, describe_late(self.phase, late, overdue.limit, how))
        if others := [task for task in call.tasks if task is not late]:
            self.plan.put_back(others)

    def _give_up(self, task: Task, unfinished: Unfinished) -> None:
        self.done[task.client] = Done(task.client, unfinished=unfinished)
        self.raised |= not (self.lenient and unfinished.certain and task.client >= 0)

    def forget_sums(self, clients: Iterable[ClientId]) -> None:
        """Updates have changed where they lie: what was known of them before is not true."""
        self.early = EarlySums({})
        for client in clients:
            self.pages.pop(client, None)

    def note_answer(self, call: CallInFlight, answer: Answer) -> None:
        """All that a call brought back, once its states are safe."""
        self.early.add(answer.sums)
        self.arrived |= answer.updates
        for outcome in answer.done:
            self.done[outcome.client] = outcome
            self.where[outcome.client] = call.place
            ended = outcome.unfinished is None or self.lenient
            self.raised |= outcome.error is not None or not ended
            if answer.pages or self.pages:
                # Of all: one that is made again may lie elsewhere than before.
                self.pages[outcome.client] = answer.pages.get(outcome.client, {})
        self.stored |= {**call.collected, **answer.kept}
        self.stored |= {client: Packed.of(state) for client, state in answer.states.items()}
