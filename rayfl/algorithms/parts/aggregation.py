"""How the updates of a round become one: a part that any averaging method can exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from rayfl.component import Registry, component
from rayfl.protocol import ClientId, Fleet, Ref, Replies


class Aggregation(ABC):
    """One model of many, which stay where they were made."""

    metrics: ClassVar[Mapping[str, str]] = {}
    """What the measures mean that it logs, by name."""

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
    "aggregation",
    {
        "mean": "rayfl.algorithms.parts.aggregation:WeightedMean",
        "median": "rayfl.algorithms.parts.order_statistics:Median",
        "trimmed_mean": "rayfl.algorithms.parts.order_statistics:TrimmedMean",
        "krum": "rayfl.algorithms.parts.krum:Krum",
        "multi_krum": "rayfl.algorithms.parts.krum:MultiKrum",
        "geometric_median": "rayfl.algorithms.parts.geometric_median:GeometricMedian",
        "clipped_mean": "rayfl.algorithms.parts.norm_clipping:ClippedMean",
    },
)
"""What `method.aggregation` can name."""


def name_measure(name: str, key: str | None) -> str:
    """A measure of one of several networks has the network's key behind its name.

    >>> name_measure("aggregation/clipped", None), name_measure("aggregation/clipped", "b")
    ('aggregation/clipped', 'aggregation/clipped_b')
    """
    return name if key in (None, "w") else f"{name}_{key}"


def list_counting(got: Replies, weights: Mapping[ClientId, float]) -> list[ClientId]:
    """The clients that replied and have a weight, ascending: those without one count nothing."""
    return [client for client in got if weights.get(client, 0.0) > 0]
