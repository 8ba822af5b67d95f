"""Visits to clients whose local training is left to the place, one at a time or many together.

A phase that yields `Fit`s says what is to be trained, not where and when. A place may then carry
out the trainings of all its clients in one stack; the phase cannot tell.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from rayfl.errors import RayflError, broken
from rayfl.fleet.tampering import Tamper
from rayfl.learn.local_fit import Fit, Fitting, Trained
from rayfl.protocol import Client, Out, Phase

if TYPE_CHECKING:
    from rayfl.learn.learner import Learner

TRIAL_CLIENTS = 16


@dataclass
class Visit:
    """One client's phase, advanced from training to training; what it left is in `out` when it is
    over."""

    client: Client
    seed: int
    phase: Fitting[Out] | None = None
    wish: Fit | None = None
    out: Any = None
    forward: int = 0
    backward: int = 0
    tamper: Tamper | None = None
    """What the updates of a hostile client go through before they are sent."""

    @property
    def trains(self) -> bool:
        """Whether this is a phase that wishes for trainings."""
        return self.phase is not None

    def advance(self, trained: Trained | None = None) -> None:
        """Go on with what was wished for, up to the next wish or the end."""
        assert self.phase is not None
        try:
            # A generator begins with a None.
            self.wish = self.phase.send(trained)  # type: ignore[arg-type]
        except StopIteration as over:
            self.wish = None
            self.out = over.value
        else:
            if not isinstance(self.wish, Fit):
                rule = "a phase that trains yields Fit(weights, ...)"
                raise RayflError(broken(rule, type(self.wish).__name__, "Wrap the weights in one."))
        self.count()

    def count(self, samples: int = 0) -> None:
        """Charge this visit for the passes made since the last count, and for a share of a
        stack's."""
        forward, backward = self.client.learner.passes.take()
        self.forward += forward + samples
        self.backward += backward + samples

    def carry_out_alone(self) -> None:
        """Carry out the wish of this visit by itself, and go on."""
        from rayfl.learn.fit import carry_out

        assert self.wish is not None
        learner = self.client.learner
        stackable = learner.training.stack != "never" and self.can_stack()
        trained = carry_out(self.client, self.wish)
        self.count()
        if stackable:
            # As after a stack: which of the two it is may be a matter of measured speed.
            self.seed_streams()
        self.advance(trained)

    def seed_streams(self) -> None:
        """Bind the global streams anew, to this visit's seed and what it has trained on."""
        self.client.learner.seed_streams(self.seed ^ self.forward)

    def carry_out_until_stackable(self) -> None:
        """Carry out by itself what cannot be stacked: what a visit has loaded is gone at the next
        one's beginning."""
        while self.wish is not None and not self.can_stack():
            self.carry_out_alone()

    def can_stack(self) -> bool:
        """Whether what is wished for can be carried out beside others."""
        from rayfl.learn.stacked_fit import can_stack

        return self.wish is not None and can_stack(self.wish, self.client)


def begin_visit(client: Client, seed: int, called: object) -> Visit:
    """The visit of a phase that was called: over, or at its first wish."""
    if isinstance(called, GeneratorType):
        visit = Visit(client, seed, called)
        visit.advance()
    else:
        visit = Visit(client, seed, out=called)
        visit.count()
    return visit


def carry_out_stackable(learner: Learner, visits: Sequence[Visit]) -> list[Visit]:
    """Carry out the wishes that these visits wait for, which can all be stacked, in one go; those
    that wish for more."""
    # Here, because whoever only makes visits does without torch.
    from rayfl.learn.stacked_fit import carry_out_together

    wishes = [visit.wish for visit in visits if visit.wish is not None]
    found = carry_out_together(learner, [visit.client for visit in visits], wishes)
    for visit, trained in zip(visits, found, strict=True):
        visit.count(trained.samples)
        # Whoever else is in the stack, draws after it are the same.
        visit.seed_streams()
        visit.advance(trained)
        visit.carry_out_until_stackable()
    return [visit for visit in visits if visit.wish is not None]


@dataclass
class Pace:
    """Seconds a client, measured; the first reading warms caches and does not count."""

    readings: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float | None:
        # The least: whatever disturbs a measurement makes it longer.
        return min(self.readings[1:]) if len(self.readings) > 1 else None

    def add(self, seconds: float) -> None:
        self.readings = [*self.readings, seconds][-8:]


class StackingPolicy:
    """How many of a place's next clients are visited together: by the setting, or by what measured
    faster."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.paces = {"alone": Pace(), "together": Pace()}
        self._possible: bool | None = None

    def count_together(self, phase: Phase, waiting: int) -> int:
        """How many of the waiting clients to take at once; 0 for the next one by itself, which is
        no stack of one."""
        if not inspect.isgeneratorfunction(phase):
            return 0
        setting = self.learner.training.stack
        if setting == "never" or not self.possible:
            return 0
        if setting == "always":
            return waiting
        alone = self.paces["alone"].seconds
        stacked = self.paces["together"].seconds
        # Both ways are tried on clients whose training counts, before either is preferred.
        if alone is None:
            return 0
        if stacked is None:
            return min(waiting, TRIAL_CLIENTS)
        return waiting if stacked < alone else 0

    @property
    def possible(self) -> bool:
        """Whether the run's network can be stacked at all."""
        if self._possible is None:
            from rayfl.learn.stacked_fit import can_stack_network

            self._possible = can_stack_network(self.learner)
        return self._possible

    def measure(self, how: str | None, started: float, clients: int = 1) -> float:
        """Take note of a visit that began at `started`; its seconds a client. A visit without
        training says nothing of how to train."""
        seconds = (time.perf_counter() - started) / clients
        if how is not None:
            self.paces[how].add(seconds)
        return seconds
