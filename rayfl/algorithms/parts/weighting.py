"""How much each client counts in an average: a part that any averaging method can exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from rayfl.component import Registry, component
from rayfl.protocol import ClientId, Fleet, Replies


class Weighting(ABC):
    """The weights of one round's average; their scale does not matter."""

    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {}
    """Sets of the server's that it reads, and what of them."""

    def check(self, fleet: Fleet) -> None:  # noqa: B027 - most refuse none
        """Refuse, before the first round, a federation that this weighting cannot work on."""

    @abstractmethod
    def __call__(self, got: Replies, fleet: Fleet) -> Mapping[ClientId, float]:
        """How much each client that replied counts; those without a weight count nothing."""
        raise NotImplementedError


@component
class BySize(Weighting):
    """Clients count by how many samples they hold: w_j = n_j (H. B. McMahan et al., AISTATS
    2017)."""

    def __call__(self, got: Replies, fleet: Fleet) -> Mapping[ClientId, float]:
        return {client: float(fleet.size(client)) for client in got}


@component
class Equal(Weighting):
    """Every client counts the same."""

    def __call__(self, got: Replies, fleet: Fleet) -> Mapping[ClientId, float]:
        return dict.fromkeys(got, 1.0)


WEIGHTINGS: Registry[Weighting] = Registry(
    "weighting",
    {
        "size": "rayfl.algorithms.parts.weighting:BySize",
        "dawid_skene": "rayfl.algorithms.parts.dawid_skene_weighting:DawidSkeneWeighting",
        "distance": "rayfl.algorithms.parts.distance_weighting:ByDistance",
        "equal": "rayfl.algorithms.parts.weighting:Equal",
        "report": "rayfl.algorithms.parts.report_weighting:ByReport",
    },
    plugins="rayfl.weightings",
)
