"""Two global models that are averaged apart: what Co-teaching and DivideMix share.

Both are sent, trained and returned in every round. The first is the method's answer; the second,
and the mean of both answers, are tested beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.dawid_skene_weighting import DawidSkeneWeighting
from rayfl.algorithms.parts.distance_weighting import ByDistance
from rayfl.component import component
from rayfl.errors import ConfigError, broken
from rayfl.protocol import ClientId, Fleet, Model, Ref, Replies


@dataclass(frozen=True)
class TwoGlobals(Global):
    """`model` is network a, `second` network b."""

    second: Ref


@component
class TwoNetworks(FedAvg):
    """Federated averaging of two networks, whose updates are called a and b."""

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        if isinstance(self.weighting, (ByDistance, DawidSkeneWeighting)):
            rule = "a weighting that looks into models asks for one of each client"
            got = f"{type(self.weighting).__name__}, and two networks"
            raise ConfigError(broken(rule, got, "Set weighting to size, equal or report."))

    def init(self, fleet: Fleet, model: Ref) -> TwoGlobals:
        # First weights that differ: two equal networks would choose the same for ever.
        return TwoGlobals(model, fleet.initial(1))

    def aggregate_both(self, got: Replies, fleet: Fleet) -> TwoGlobals:
        """Both global models, each the mean of its own updates by the same weights."""
        weights = self.weighting(got, fleet)
        first, second = (self.aggregation(got, weights, fleet, key) for key in ("a", "b"))
        return TwoGlobals(first, second)

    def further_models(
        self, state: Global, fleet: Fleet, client: ClientId | None = None
    ) -> Mapping[str, Model]:
        second = cast(TwoGlobals, state).second
        return {"second": second, "both": (state.model, second)}
