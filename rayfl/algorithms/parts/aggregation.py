"""How the updates of a round become one: a part that any averaging method can exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from rayfl.component import Registry, component
from rayfl.protocol import ClientId, Fleet, Ref, Replies


class Aggregation(ABC):
    """One model of many, which stay where they were made."""

    def check(self, fleet: Fleet) -> None:  # noqa: B027 - most refuse none
        """Refuse, before the first round, a federation that this aggregation cannot work on."""

    @abstractmethod
    def __call__(
        self,
        got: Replies,
        weights: Mapping[ClientId, float],
        fleet: Fleet,
        key: str | None = None,
    ) -> Ref:
        """The aggregate of the updates.

        Parameters
        ----------
        got
            The replies of a map.
        weights
            How much each client counts.
        fleet
            Where they lie.
        key
            Which of the named updates; not needed where there is one.
        """


@component
class WeightedMean(Aggregation):
    """The weighted mean, the same bits wherever updates lie."""

    def __call__(
        self,
        got: Replies,
        weights: Mapping[ClientId, float],
        fleet: Fleet,
        key: str | None = None,
    ) -> Ref:
        return got.mean(weights, key)


AGGREGATIONS: Registry[Aggregation] = Registry(
    "aggregation", {"mean": "rayfl.algorithms.parts.aggregation:WeightedMean"}
)
"""What `method.aggregation` can name."""
