"""The mean of updates that go no farther than a bound from the model that the round began with.

    x + sum_k a_k min(1, c / || w_k - x ||) (w_k - x)

Z. Sun, P. Kairouz, A. T. Suresh and H. B. McMahan: "Can you really backdoor federated learning?",
2019, with a fixed c. Norms are of whole updates. No client moves the model farther than a_k c,
whoever it is; with c the median of the norms, that holds while fewer than half are hostile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np

from rayfl.algorithms.parts.aggregation import Aggregation, list_counting, name_measure
from rayfl.algorithms.parts.whole_models import find_gaps
from rayfl.component import Positive, component
from rayfl.protocol import ClientId, Fleet, Ref, Replies


def find_shrinkage(norms: Mapping[ClientId, float], bound: float) -> dict[ClientId, float]:
    """What brings every norm down to the bound: 1 where it is not above.

    >>> find_shrinkage({0: 1.0, 1: 4.0, 2: 0.0}, 2.0)
    {0: 1.0, 1: 0.5, 2: 1.0}
    """
    return {client: bound / norm if norm > bound else 1.0 for client, norm in norms.items()}


@component
class ClippedMean(Aggregation):
    """The weighted mean of updates whose norms are clipped. Clients must have begun with one
    model, which the map names as its updates are named."""

    metrics: ClassVar[Mapping[str, str]] = {
        "aggregation/clipped": "How many clients' updates were longer than the bound.",
        "aggregation/bound": "The bound of the round.",
        "aggregation/norm": "The median norm of the updates.",
    }
    bound: Positive | Literal["median"] | None = "median"
    """How far an update may go: a number, the `median` of the round's norms (equally weighted), or
    null, which is the mean."""

    def __call__(
        self,
        got: Replies,
        weights: Mapping[ClientId, float],
        fleet: Fleet,
        key: str | None = None,
    ) -> Ref:
        if self.bound is None:
            return got.mean(weights, key)
        clients = list_counting(got, weights)
        start = got.start(key)
        norms = find_gaps(got, start, clients, key)
        median = float(np.median(list(norms.values())))
        bound = median if self.bound == "median" else float(self.bound)
        shrinkage = find_shrinkage(norms, bound)
        clipped = [client for client in clients if shrinkage[client] < 1]
        found = {"clipped": len(clipped), "bound": bound, "norm": median}
        fleet.log(
            **{name_measure(f"aggregation/{name}", key): float(n) for name, n in found.items()}
        )
        if not clipped:
            return got.mean(weights, key)
        shrunk = {client: weights[client] * shrinkage[client] for client in clients}
        moved = sum(shrunk.values()) / sum(weights[client] for client in clients)
        # The clipped updates' mean, and for what was clipped off the model of before.
        return fleet.combine((moved, got.mean(shrunk, key)), (1.0 - moved, start))
