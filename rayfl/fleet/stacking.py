"""Visits to clients whose local training is left to the place, one at a time or many together.

A phase that yields `Fit`s says what is to be trained, not where and when. A place may then carry
out the trainings of all its clients in one stack; the phase cannot tell."""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import GeneratorType
from typing import TYPE_CHECKING, Any

from rayfl.protocol import Client, Out, Phase

if TYPE_CHECKING:
    from rayfl.learn.learner import Learner
    from rayfl.learn.local_fit import Fit, Training

TRIAL_CLIENTS = 16


@dataclass
class Visit:
    """One client's phase, advanced from training to training; what it left is in `out` when it is
    over."""

    client: Client
    phase: Training[Out] | None = None
    wish: Fit | None = None
    out: Any = None
    forward: int = 0
    backward: int = 0

    def advance(self, weights: Any = None) -> None:
        """Go on with the weights that were wished for, up to the next wish or the end."""
        assert self.phase is not None
        try:
            self.wish = self.phase.send(weights)
        except StopIteration as over:
            self.wish, self.out = None, over.value
        self.count()

    def count(self, samples: int = 0) -> None:
        """Charge this visit for the passes made since the last count, and for a share of a
        stack's."""
        forward, backward = self.client.learner.passes.take()
        self.forward, self.backward = (
            self.forward + forward + samples,
            self.backward + backward + samples,
        )


def begun(client: Client, called: object) -> Visit:
    """The visit of a phase that was called: over, or at its first wish."""
    if isinstance(called, GeneratorType):
        visit = Visit(client, called)
        visit.advance()
    else:
        visit = Visit(client, out=called)
        visit.count()
    return visit


def together(learner: Learner, visits: Sequence[Visit]) -> None:
    """Carry out all visits, every round of wishes in one go. The visits have been advanced to their
    first wish."""
    # Here, because whoever only makes visits does without torch.
    from rayfl.learn.stacked import fit_together

    while waiting := [visit for visit in visits if visit.wish is not None]:
        wishes = [visit.wish for visit in waiting if visit.wish is not None]
        for visit, (weights, samples) in zip(
            waiting, fit_together(learner, [visit.client for visit in waiting], wishes), strict=True
        ):
            visit.count(samples)
            visit.advance(weights)


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


class Lockstep:
    """How many of a place's next clients are visited together: by the setting, or by what measured
    faster."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.paces = {"alone": Pace(), "together": Pace()}
        self._possible: bool | None = None

    def group(self, phase: Phase, waiting: int) -> int:
        """How many of the waiting clients to take at once; 0 for the next one by itself, which is
        no stack of one."""
        if not inspect.isgeneratorfunction(phase):
            return 0
        setting = self.learner.training.stack
        if setting == "never" or not self.possible:
            return 0
        if setting == "always":
            return waiting
        alone, stacked = self.paces["alone"].seconds, self.paces["together"].seconds
        # Both ways are tried on clients whose training counts, before either is preferred.
        if alone is None:
            return 0
        if stacked is None:
            return min(waiting, TRIAL_CLIENTS)
        return waiting if stacked < alone else 0

    @property
    def possible(self) -> bool:
        """Whether the run's network and settings can be stacked at all."""
        if self._possible is None:
            from rayfl.learn.stacked import stackable

            self._possible = stackable(self.learner)
        return self._possible

    def measured(self, how: str, started: float, clients: int = 1) -> float:
        """Take note of a visit that began at `started`; its seconds a client."""
        seconds = (time.perf_counter() - started) / clients
        self.paces[how].add(seconds)
        return seconds
