"""One process's part of federated averaging in plain PyTorch, and what the processes share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from speed_suite.federation import Federation
from speed_suite.plain import (
    choose_loss,
    images,
    labels,
    load,
    network_of,
    train,
    weights_of,
)

Pause = Callable[[], object]


@dataclass(frozen=True)
class Shared:
    """What all processes see: the data in their final form, the global weights, a sum for each
    process, and what else a method shares."""

    x: Tensor
    y: Tensor
    weights: list[Tensor]
    sums: list[list[Tensor]]
    more: Mapping[str, list[Tensor]] = field(default_factory=dict)

    @classmethod
    def of(cls, federation: Federation, places: int) -> Shared:
        initial = [torch.tensor(array) for array in federation.initial]
        sums = [list(map(torch.zeros_like, initial)) for _ in range(places)]
        return cls(images(federation.x), labels(federation.y), initial, sums)

    def share(self) -> None:
        parts = [self.weights, *self.sums, *self.more.values()]
        tensors = [tensor for part in parts for tensor in part]
        for tensor in (self.x, self.y, *tensors):
            tensor.share_memory_()  # type: ignore[no-untyped-call]


class Place:
    """One process's part of every round: here federated averaging's."""

    def __init__(self, federation: Federation, shared: Shared, rank: int) -> None:
        self.federation = federation
        self.shared = shared
        self.rank = rank
        self.net = network_of(federation)
        self.weights = weights_of(self.net)
        self.loss = choose_loss(federation.settings)
        self.trained: list[float] = []
        """Seconds of every round in which this process trained its clients."""
        self.apart: list[float] = []
        """Seconds of every round that are not local training, where a method counts them."""

    @classmethod
    def share(cls, federation: Federation, places: int) -> Shared:
        """What the processes of this method share."""
        return Shared.of(federation, places)

    def run_round(self, cohort: Sequence[int], pause: Pause) -> None:
        """Both train their clients, and the first averages."""
        self.train_all(cohort)
        pause()
        if self.rank == 0:
            self.average(cohort)
        pause()

    def train_all(self, cohort: Sequence[int]) -> None:
        """Local training, and how long it took."""
        began = time.perf_counter()
        self.visit_all(cohort)
        self.trained.append(time.perf_counter() - began)

    def own(self, cohort: Sequence[int]) -> list[int]:
        """This process's clients."""
        return dealt(self.federation, cohort, len(self.shared.sums))[self.rank]

    @torch.no_grad()
    def visit_all(self, cohort: Sequence[int]) -> None:
        """Train this process's clients one after the other, and leave their weighted sum."""
        sums = self.shared.sums[self.rank]
        for tensor in sums:
            tensor.zero_()
        for client in self.own(cohort):
            self.visit(client)
            for total, mine in zip(sums, self.weights, strict=True):
                total.add_(mine, alpha=self.federation.size(client))

    def visit(self, client: int, correct: Callable[[], None] | None = None) -> None:
        """Train one client's network, from the global weights."""
        rows = self.federation.rows(client)
        load(self.net, self.shared.weights)
        with torch.enable_grad():
            train(
                self.net,
                self.shared.x[rows],
                self.shared.y[rows],
                self.federation.settings,
                self.loss,
                correct,
            )

    @torch.no_grad()
    def average(self, cohort: Sequence[int]) -> None:
        samples = sum(self.federation.size(client) for client in cohort)
        self.divide_sums(samples)

    def divide_sums(self, total: float) -> None:
        """The new global weights: all sums over what was summed."""
        for i, weights in enumerate(self.shared.weights):
            torch.div(self.shared.sums[0][i], total, out=weights)
            for others in self.shared.sums[1:]:
                weights.add_(others[i], alpha=1 / total)


def dealt(
    federation: Federation,
    cohort: Sequence[int],
    places: int,
) -> list[list[int]]:
    """The cohort over the processes: largest first, each to the least loaded."""
    parts: list[list[int]] = [[] for _ in range(places)]
    loads = [0] * places
    for client in sorted(cohort, key=federation.size, reverse=True):
        least = loads.index(min(loads))
        parts[least].append(client)
        loads[least] += federation.size(client)
    return parts
