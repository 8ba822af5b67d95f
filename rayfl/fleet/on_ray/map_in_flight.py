"""One map from its first call to the last mean of its updates: what is still to do, which calls are
out, what has come back, and where the updates lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rayfl.errors import PhaseError
from rayfl.fleet.executor import Done, Task
from rayfl.fleet.on_ray.calls import Answer, Call, Inputs, split_at_limit
from rayfl.fleet.on_ray.placement import HandOutPlan
from rayfl.fleet.on_ray.pool import Place
from rayfl.fleet.on_ray.transport import Pending, PlaceDied
from rayfl.fleet.on_ray.values import Handle, Packed
from rayfl.fleet.sums.early_sums import EarlySums, ExpectedMeans
from rayfl.fleet.sums.shared_memory import Page
from rayfl.fleet.sums.updates import NamedVectors
from rayfl.protocol import ClientId, Phase

LIVES_OF_A_TASK = 4
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
    ) -> None:
        self.number, self.phase = number, phase
        self.chain, self.beside_rounds = chain, beside_rounds
        self.early = EarlySums(expected or {})
        # Where updates lie, and on which pages the large ones among them.
        self.where: dict[ClientId, Place] = {}
        self.pages: dict[ClientId, Mapping[str, Page]] = {}
        # Small updates of the server's, which came along.
        self.arrived: dict[ClientId, NamedVectors] = {}

    def start(self, plan: HandOutPlan[Task], tasks: Iterable[Task], shared: Inputs) -> None:
        """Set out: for the first time, or once more with those whose updates are lost."""
        self.plan, self.shared = plan, shared
        self.out: dict[Pending[Any], CallInFlight] = {}
        self.done: dict[ClientId, Done] = {}
        self.stored: dict[ClientId, Handle] = {}
        self.lives = {task.client: LIVES_OF_A_TASK for task in tasks}
        self.raised = False

    def finish(self) -> tuple[dict[ClientId, Done], dict[ClientId, Handle]]:
        """What came of it. From here on this only tells where updates lie."""
        found = {client: self.done[client] for client in sorted(self.done)}, self.stored
        self.start(HandOutPlan([], lambda _: 0.0, 1), [], {})
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

    def note_death(self, call: CallInFlight, error: PlaceDied, t: int) -> None:
        """Nothing of a call whose actor died is left: it is all to be done again."""
        for task in call.tasks:
            # A client whose visit kills its actor would have the pool replaced for ever.
            self.lives[task.client] -= 1
            if not self.lives[task.client]:
                raise PhaseError(
                    f"client {task.client} was part of {LIVES_OF_A_TASK} calls in round {t} "
                    f"whose actors died:\n{error}"
                ) from error
        self.plan.put_back(call.tasks)

    def note_answer(self, call: CallInFlight, answer: Answer) -> None:
        """All that a call brought back, once its states are safe."""
        self.early.add(answer.sums)
        self.arrived |= answer.updates
        for outcome in answer.done:
            self.done[outcome.client] = outcome
            self.where[outcome.client] = call.place
            self.raised |= outcome.error is not None
            if answer.pages or self.pages:
                # Of all: one that is made again may lie elsewhere than before.
                self.pages[outcome.client] = answer.pages.get(outcome.client, {})
        self.stored |= {**call.collected, **answer.kept}
        self.stored |= {client: Packed(state) for client, state in answer.states.items()}
