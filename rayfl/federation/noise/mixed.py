"""Different noise for different clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from pydantic import Field, field_validator

from rayfl.component import Fraction, component, slot
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.noise import NOISES
from rayfl.federation.views import Corruption, Noise, Truth


@component
class NoisePart:
    """A noise, and whom it is for: a list of clients, or a share of those that no list names."""

    noise: Annotated[Noise, slot(NOISES)]
    clients: Fraction | tuple[int, ...]


@component
class Mixed:
    """Each part's noise sees its own clients only, numbered from 0: a ramp runs its full length in
    every part.

    Shares are dealt to consecutive clients in the order of the parts; who is left over keeps its
    labels."""

    parts: Annotated[tuple[NoisePart, ...], Field(min_length=1)]

    @field_validator("parts")
    @classmethod
    def _shares(cls, parts: tuple[NoisePart, ...]) -> tuple[NoisePart, ...]:
        total = sum(part.clients for part in parts if isinstance(part.clients, int | float))
        if total > 1 + 1e-9:
            raise ValueError(broken("the shares of all parts sum to 1 at most", total))
        return parts

    def corrupt(self, truth: Truth, rng: np.random.Generator) -> Corruption:
        given, nominal = truth.labels.copy(), np.zeros(truth.clients)
        for part, members in zip(
            self.parts, _assign_groups(self.parts, truth.clients), strict=True
        ):
            if len(members):
                mine = np.flatnonzero(np.isin(truth.owner, members))
                result = part.noise.corrupt(_restrict_truth(truth, mine, members), rng)
                given[mine], nominal[members] = result.given, result.nominal
        return Corruption(given, nominal)


def _assign_groups(parts: Sequence[NoisePart], clients: int) -> list[Ints]:
    """The sorted clients of each part."""
    listed = [c for part in parts if isinstance(part.clients, tuple) for c in part.clients]
    wrong = [c for c in listed if not 0 <= c < clients]
    if wrong:
        raise ConfigError(broken(f"noise.parts list clients in [0, {clients})", wrong[0]))
    named, times = np.unique(listed, return_counts=True)
    if (times > 1).any():
        raise ConfigError(
            broken("noise.parts list a client once", f"client {named[times > 1][0]:.0f} again")
        )
    free = np.setdiff1d(np.arange(clients), listed)
    found, share = [], 0.0
    for part in parts:
        if isinstance(part.clients, tuple):
            found.append(np.array(sorted(part.clients), np.int64))
        else:
            start, share = share, share + part.clients
            # cumulated shares are rounded, not single ones: together they cover everyone
            found.append(free[round(start * len(free)) : round(share * len(free))])
    return found


def _restrict_truth(truth: Truth, mine: Ints, members: Ints) -> Truth:
    """The truth of some clients alone, renumbered from 0."""
    return replace(
        truth,
        labels=truth.labels[mine],
        owner=np.searchsorted(members, truth.owner[mine]),
        position=truth.position[mine],
        clients=len(members),
        # still lazy: most models never look
        images=lambda: truth.images()[mine],
        tasks=None if truth.tasks is None else tuple(truth.tasks[c] for c in members),
    )
