"""The methods of the plain loop beside federated averaging, as a person writes them in plain
PyTorch: what rayfl's methods of these names compute, without rayfl.

All changes of gradients are made in place and for all tensors of the network in one call."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from speed_suite.bare_place import Pause, Place, Shared
from speed_suite.federation import Federation, Settings
from speed_suite.plain import images, load

EM_ITERATIONS = 500
EM_REST = 1e-5
REACHABLE = 1e-10
"""What a class that nobody voted for starts with."""


class FedProx(Place):
    """Every gradient gains mu (w - w_t)."""

    def visit(self, client: int, correct: Callable[[], None] | None = None) -> None:
        super().visit(client, self.pull)

    @torch.no_grad()
    def pull(self) -> None:
        way = torch._foreach_sub(self.weights, self.shared.weights)
        mu = self.federation.settings.method["mu"]
        torch._foreach_add_(gradients_of(self), way, alpha=mu)


class Scaffold(Place):
    """Option II: steps are corrected by c - c_i, and c_i is renewed from the way that they went."""

    def __init__(self, federation: Federation, shared: Shared, rank: int) -> None:
        super().__init__(federation, shared, rank)
        self.sums_of_c = shared.more[f"sums of c, {rank}"]

    @classmethod
    def share(cls, federation: Federation, places: int) -> Shared:
        if federation.settings.momentum:
            raise ValueError("the plain SCAFFOLD divides by K lr: momentum must be 0")
        c = [torch.zeros(array.shape) for array in federation.initial]
        sums = {f"sums of c, {rank}": list(map(torch.zeros_like, c)) for rank in range(places)}
        own = [torch.zeros(federation.clients, *array.shape) for array in federation.initial]
        more = {"c": c, "own": own, **sums}
        return replace(Shared.of(federation, places), more=more)

    def visit_all(self, cohort: Sequence[int]) -> None:
        torch._foreach_zero_(self.sums_of_c)
        super().visit_all(cohort)

    def visit(self, client: int, correct: Callable[[], None] | None = None) -> None:
        c = self.shared.more["c"]
        own = [of_all[client] for of_all in self.shared.more["own"]]
        drift = torch._foreach_sub(c, own)
        steps = 0

        def add_drift() -> None:
            nonlocal steps
            steps += 1
            torch._foreach_add_(gradients_of(self), drift)

        super().visit(client, add_drift)
        # c_i+ - c_i = (x - y) / (K lr) - c
        change = torch._foreach_sub(self.shared.weights, self.weights)
        torch._foreach_div_(change, self.federation.settings.lr * steps)
        torch._foreach_sub_(change, c)
        torch._foreach_add_(own, change)
        torch._foreach_add_(self.sums_of_c, change)

    @torch.no_grad()
    def average(self, cohort: Sequence[int]) -> None:
        super().average(cohort)
        share = 1 / self.federation.clients
        for rank in range(len(self.shared.sums)):
            sums = self.shared.more[f"sums of c, {rank}"]
            torch._foreach_add_(self.shared.more["c"], sums, alpha=share)


class FedDS(Place):
    """Clients count by their Dawid-Skene reliability on the public images."""

    def __init__(self, federation: Federation, shared: Shared, rank: int) -> None:
        super().__init__(federation, shared, rank)
        assert federation.public_x is not None
        self.public = images(federation.public_x)
        self.returned: list[list[Tensor]] = []

    @classmethod
    def share(cls, federation: Federation, places: int) -> Shared:
        assert federation.public_x is not None
        cohort = federation.cohorts.shape[1]
        votes = torch.zeros(cohort, len(federation.public_x), dtype=torch.int64)
        more = {"votes": [votes], "counts": [torch.zeros(cohort, dtype=torch.float64)]}
        return replace(Shared.of(federation, places), more=more)

    def run_round(self, cohort: Sequence[int], pause: Pause) -> None:
        """Training, votes of what was trained, EM by the first process, and the average."""
        self.train_all(cohort)
        pause()
        began = time.perf_counter()
        self.vote(cohort)
        pause()
        if self.rank == 0:
            self.weigh()
        pause()
        self.apart.append(time.perf_counter() - began)
        self.add_up(cohort)
        pause()
        if self.rank == 0:
            self.divide_sums(1.0)
        pause()

    @torch.no_grad()
    def visit_all(self, cohort: Sequence[int]) -> None:
        """Train this process's clients and keep their weights, which cannot be summed yet."""
        self.returned = []
        for client in self.own(cohort):
            self.visit(client)
            self.returned.append([tensor.clone() for tensor in self.weights])

    @torch.no_grad()
    def vote(self, cohort: Sequence[int]) -> None:
        """The class that each returned network gives every public image."""
        (votes,) = self.shared.more["votes"]
        self.net.eval()
        for client, returned in zip(self.own(cohort), self.returned, strict=True):
            load(self.net, returned)
            votes[cohort.index(client)] = self.net(self.public).argmax(1)

    def weigh(self) -> None:
        """Reliabilities, as shares."""
        (votes,) = self.shared.more["votes"]
        classes = self.federation.settings.classes
        reliability = estimate_reliability(votes.numpy(), classes)
        self.shared.more["counts"][0].copy_(torch.from_numpy(reliability / reliability.sum()))

    @torch.no_grad()
    def add_up(self, cohort: Sequence[int]) -> None:
        """This process's weighted sum."""
        sums = self.shared.sums[self.rank]
        torch._foreach_zero_(sums)
        counts = self.shared.more["counts"][0].tolist()
        for client, returned in zip(self.own(cohort), self.returned, strict=True):
            torch._foreach_add_(sums, returned, alpha=counts[cohort.index(client)])


PLACES: dict[str, type[Place]] = {
    "fedavg": Place,
    "fedprox": FedProx,
    "scaffold": Scaffold,
    "fedds": FedDS,
}


def find_place(settings: Settings) -> type[Place]:
    """What runs rayfl's method of these settings."""
    return PLACES[str(settings.method["name"])]


def gradients_of(place: Place) -> list[Tensor]:
    """The gradients of its network, as the backward pass has left them."""
    return [parameter.grad for parameter in place.net.parameters() if parameter.grad is not None]


# -- Dawid and Skene -------------------------------------------------------------------------------


def estimate_reliability(votes: NDArray[np.int64], classes: int) -> NDArray[np.float64]:
    """The mean of each annotator's confusion diagonal, by EM from the shares of the votes
    (annotators, items)."""
    onehot = np.eye(classes)[votes]
    posterior = onehot.mean(axis=0) + REACHABLE
    posterior /= posterior.sum(axis=1, keepdims=True)
    for _ in range(EM_ITERATIONS):
        before = posterior
        confusion, prior = maximise(onehot, posterior)
        posterior = expect(votes, confusion, prior)
        if np.abs(posterior - before).max() < EM_REST:
            break
    confusion, _ = maximise(onehot, posterior)
    return np.asarray(np.diagonal(confusion, axis1=1, axis2=2).mean(axis=1))


def maximise(
    onehot: NDArray[np.float64], posterior: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Confusions (annotators, true class, vote) and the prior."""
    counts = posterior.T @ onehot
    totals = counts.sum(axis=2, keepdims=True)
    confusion = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    return confusion, posterior.mean(axis=0)


def expect(
    votes: NDArray[np.int64], confusion: NDArray[np.float64], prior: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The posterior (items, classes)."""
    with np.errstate(divide="ignore"):
        log_confusion = np.log(confusion)
        log_joint = np.log(prior) + sum(map(look_up, log_confusion, votes))
    joint = np.exp(log_joint - log_joint.max(axis=1, keepdims=True))
    found: NDArray[np.float64] = joint / joint.sum(axis=1, keepdims=True)
    return found


def look_up(log_confusion: NDArray[np.float64], votes: NDArray[np.int64]) -> NDArray[np.float64]:
    """What one annotator's votes say of every class (items, classes)."""
    found: NDArray[np.float64] = log_confusion.T[votes]
    return found
