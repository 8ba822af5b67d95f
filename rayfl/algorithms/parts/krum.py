"""The client nearest to its neighbours, or the mean of several such.

P. Blanchard, E. M. El Mhamdi, R. Guerraoui and J. Stainer: "Machine learning with adversaries:
Byzantine tolerant gradient descent", NeurIPS 2017. Of n clients, f of them hostile:

    score(i) = sum over the n - f - 2 clients j != i nearest to i of || w_i - w_j ||^2

Krum is the model of the lowest score, Multi-Krum the mean of the m models of the lowest scores.
n >= 2 f + 3 is what the proof asks for. Distances are of whole models, and a client is none of its
own neighbours: published code measures tensor by tensor, or counts n - f neighbours with the
client itself among them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from rayfl.algorithms.parts.aggregation import Aggregation, list_counting, name_measure
from rayfl.algorithms.parts.whole_models import find_squares
from rayfl.arrays import Floats
from rayfl.component import Count, Natural, component
from rayfl.errors import ConfigError, broken
from rayfl.protocol import ClientId, Fleet, NobodyLeft, Ref, Replies

_TOGETHER = 8
"""Models that travel to the others at once: a place holds no more of them than these beside its
own."""


def score_clients(squares: Floats, f: int) -> Floats:
    """Krum's score of every client.

    Parameters
    ----------
    squares
        Squared distances of all from all.
    f
        How many may be hostile.

    Examples
    --------
    Of the numbers 0, 1, 2, 9, one of them hostile, each is scored by its nearest other:

    >>> at = np.array([[0.0], [1.0], [2.0], [9.0]])
    >>> score_clients((at - at.T) ** 2, f=1).tolist()
    [1.0, 1.0, 1.0, 49.0]
    """
    n = len(squares)
    others = squares.astype(np.float64)
    np.fill_diagonal(others, np.inf)
    scores: Floats = np.sort(others, axis=1)[:, : n - f - 2].sum(axis=1)
    return scores


def measure_pairs(got: Replies, clients: Sequence[ClientId], key: str | None = None) -> Floats:
    """Squared distances of all updates from all, a few models travelling at a time.

    Parameters
    ----------
    got
        The replies whose updates they are.
    clients
        Whose, ascending.
    key
        Which of the named updates.
    """
    squares = np.zeros((len(clients), len(clients)))
    for first in range(0, len(clients) - 1, _TOGETHER):
        block = clients[first : first + _TOGETHER]
        models = [got.ref(client, key) for client in block]
        found = find_squares(got, models, clients[first + 1 :], key)
        for at, client in enumerate(clients[first + 1 :], first + 1):
            squares[at, first : first + len(block)] = found[client]
    # Each pair was measured once, or twice with the same bits.
    both: Floats = np.maximum(squares, squares.T)
    return both


@component
class Krum(Aggregation):
    """The model of the client that is nearest to its neighbours. Weights do not count, but for
    clients whose weight is 0, who take no part."""

    metrics: ClassVar[Mapping[str, str]] = {
        "aggregation/left_out": "How many clients' models are no part of the aggregate.",
        "aggregation/score": "The lowest score: squared distances to the nearest neighbours.",
    }
    f: Natural
    """How many clients of a round may be hostile; a round has at least 2 f + 3."""

    @property
    def counted(self) -> int | None:
        """How many models are averaged; None for n - f - 2."""
        return 1

    def check(self, fleet: Fleet) -> None:
        least = 2 * self.f + 3
        if fleet.cohort < least:
            rule = f"Krum against f = {self.f} needs rounds of 2 f + 3 = {least} clients"
            remedy = "Raise training.clients_per_round or lower method.aggregation.f."
            raise ConfigError(broken(rule, fleet.cohort, remedy))
        if self.counted is not None and self.counted > fleet.cohort - self.f:
            rule = f"Multi-Krum averages at most n - f = {fleet.cohort - self.f} clients"
            raise ConfigError(broken(rule, f"m: {self.counted}", "Lower method.aggregation.m."))

    def __call__(
        self,
        got: Replies,
        weights: Mapping[ClientId, float],
        fleet: Fleet,
        key: str | None = None,
    ) -> Ref:
        clients = list_counting(got, weights)
        n = len(clients)
        if n < 2 * self.f + 3:
            # Fewer came back than `check` was promised: no choice among them is safe.
            raise NobodyLeft(f"Krum against f = {self.f} is left with {n} clients")
        scores = score_clients(measure_pairs(got, clients, key), self.f)
        m = min(self.counted or n - self.f - 2, n - self.f)
        # Stable, so that of equals the lower id is chosen.
        best = np.argsort(scores, kind="stable")[:m]
        chosen = {clients[at] for at in best.tolist()}
        fleet.estimate(
            name_measure("chosen", key), {client: float(client in chosen) for client in clients}
        )
        fleet.log(
            **{
                name_measure("aggregation/left_out", key): float(n - len(chosen)),
                name_measure("aggregation/score", key): float(scores.min()),
            }
        )
        return got.mean({client: weights[client] for client in chosen}, key)


@component
class MultiKrum(Krum):
    """The weighted mean of the m clients that are nearest to their neighbours; the paper's is under
    `weighting: equal`."""

    m: Count | None = None
    """How many are averaged; null: n - f - 2. With f = 0 and m = n it is the mean."""

    @property
    def counted(self) -> int | None:
        return self.m
