"""Different noise for different clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.random import Generator
from pydantic import Field, field_validator

from rayfl.component import Fraction, component, slot
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.interfaces import Corruption, Noise, Truth
from rayfl.federation.noise import NOISES


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
        shares = [part.clients for part in parts if isinstance(part.clients, int | float)]
        total = sum(shares)
        # Tenths that sum to 1 may miss it by a rounding.
        if total > 1 + 1e-9:
            raise ValueError(broken("the shares of all parts sum to 1 at most", total))
        return parts

    def corrupt(self, truth: Truth, rng: Generator) -> Corruption:
        given = truth.labels.copy()
        nominal = np.zeros(truth.clients)
        groups = _assign_groups(self.parts, truth.clients)
        for part, members in zip(self.parts, groups, strict=True):
            if len(members):
                mine = np.flatnonzero(np.isin(truth.owner, members))
                view = _restrict_truth(truth, mine, members)
                result = part.noise.corrupt(view, rng)
                given[mine] = result.given
                nominal[members] = result.nominal
        return Corruption(given, nominal)


def _assign_groups(parts: Sequence[NoisePart], clients: int) -> list[Ints]:
    """The sorted clients of each part."""
    listed = _list_named(parts, clients)
    free = np.setdiff1d(np.arange(clients), listed)
    groups = []
    share = 0.0
    for part in parts:
        if isinstance(part.clients, tuple):
            groups.append(np.array(sorted(part.clients), np.int64))
        else:
            start = round(share * len(free))
            share += part.clients
            # Cumulated shares are rounded, not single ones: together they cover everyone.
            groups.append(free[start : round(share * len(free))])
    return groups


def _list_named(parts: Sequence[NoisePart], clients: int) -> list[int]:
    """The clients that lists name, each once and each one of the federation."""
    listed: list[int] = []
    for part in parts:
        if isinstance(part.clients, tuple):
            listed += part.clients
    for c in listed:
        if not 0 <= c < clients:
            raise ConfigError(broken(f"noise.parts list clients in [0, {clients})", c))
    named, times = np.unique(listed, return_counts=True)
    again = named[times > 1]
    if len(again):
        raise ConfigError(broken("noise.parts list a client once", f"client {again[0]:.0f} again"))
    return listed


def _restrict_truth(
    truth: Truth,
    mine: Ints,
    members: Ints,
) -> Truth:
    """The truth of some clients alone, renumbered from 0."""
    tasks = None
    if truth.tasks is not None:
        tasks = tuple(truth.tasks[c] for c in members)
    return replace(
        truth,
        labels=truth.labels[mine],
        owner=np.searchsorted(members, truth.owner[mine]),
        position=truth.position[mine],
        clients=len(members),
        # Still lazy: most models never look.
        images=lambda: truth.images()[mine],
        tasks=tasks,
    )
