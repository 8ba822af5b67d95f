"""The model with the smallest sum of distances from all: RFA.

K. Pillutla, S. M. Kakade and Z. Harchaoui: "Robust aggregation for federated learning", IEEE
Transactions on Signal Processing 70, 2022, Algorithm 2 (smoothed Weiszfeld). With shares a_k:

    v <- sum_k a_k w_k;   b_k = a_k / max(nu, || v - w_k ||),   v <- sum_k b_k w_k / sum_k b_k

Distances are of whole models; published code that runs it tensor by tensor finds a point that is
no geometric median of the models. It withstands hostile clients of less than half of the weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rayfl.algorithms.parts.aggregation import Aggregation, list_counting, name_measure
from rayfl.algorithms.parts.whole_models import find_gaps
from rayfl.component import Natural, NonNegative, Positive, component
from rayfl.protocol import ClientId, Fleet, Ref, Replies


@component
class GeometricMedian(Aggregation):
    """The weighted geometric median, by means whose weights fall with distance."""

    metrics: ClassVar[Mapping[str, str]] = {
        "aggregation/iterations": "How many means were taken after the first.",
        "aggregation/distance": "The weighted mean distance of the models from the last centre that"
        " they were measured from.",
    }
    iterations: Natural = 100
    """Most iterations; 0 is the mean. Paper: 3, which leaves the centre far out where nearly half
    of the weight is hostile and far away; among honest clients a few are taken."""
    smoothing: Positive = 1e-6
    """nu, the least distance. Paper: 1e-6."""
    tolerance: NonNegative = 1e-6
    """It ends when no client's share of the mean changes by more; 0 takes every iteration. Shares
    are asked, not the sum of distances: one model that is far enough away would make every change
    of that sum look small, and so end the iterations when they have hardly begun."""

    def __call__(
        self,
        got: Replies,
        weights: Mapping[ClientId, float],
        fleet: Fleet,
        key: str | None = None,
    ) -> Ref:
        clients = list_counting(got, weights)
        centre = got.mean(weights, key)
        shares = share_out({client: weights[client] for client in clients})
        distance = 0.0
        taken = 0
        while taken < self.iterations:
            gaps = find_gaps(got, centre, clients, key)
            distance = sum(weights[client] * gaps[client] for client in clients)
            nearness = {k: weights[k] / max(self.smoothing, gaps[k]) for k in clients}
            before = shares
            shares = share_out(nearness)
            if max(abs(shares[k] - before[k]) for k in clients) <= self.tolerance:
                break
            centre = got.mean(nearness, key)
            taken += 1
        found = {"iterations": taken, "distance": distance / sum(weights[k] for k in clients)}
        fleet.log(
            **{name_measure(f"aggregation/{name}", key): float(n) for name, n in found.items()}
        )
        return centre


def share_out(weights: Mapping[ClientId, float]) -> dict[ClientId, float]:
    """Weights as shares of 1.

    >>> share_out({3: 1.0, 4: 3.0})
    {3: 0.25, 4: 0.75}
    """
    total = sum(weights.values())
    return {client: weight / total for client, weight in weights.items()}
