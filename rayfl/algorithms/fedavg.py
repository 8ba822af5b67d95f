"""Federated averaging.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: "Communication-efficient learning
of deep networks from decentralized data", AISTATS 2017, Algorithm 1.

BatchNorm statistics are averaged like weights; integer counters stay behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from rayfl.algorithms.parts.aggregation import AGGREGATIONS, Aggregation, WeightedMean
from rayfl.algorithms.parts.weighting import WEIGHTINGS, BySize, Weighting
from rayfl.component import component, neutral, slot
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses import LOSSES
from rayfl.learn.losses.base import CROSS_ENTROPY, SampleLoss
from rayfl.protocol import Algorithm, Client, ClientId, Fleet, Out, Ref, Replies, Vector


@dataclass(frozen=True)
class Global:
    """One global model."""

    model: Ref


def train(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    """ClientUpdate: local SGD on the client's own labels."""
    trained = yield Fit(w, loss=method.loss)
    return Out(update=trained.weights)


@component
class FedAvg(Algorithm):
    """Clients train locally; the server averages what they return."""

    citation: ClassVar[str] = "McMahan et al., AISTATS 2017"
    deviations: ClassVar[tuple[str, ...]] = (
        "Every local epoch shuffles anew; the paper's Algorithm 1 splits the data into batches "
        "once, before the epochs.",
    )
    weighting: Annotated[Weighting, slot(WEIGHTINGS)] = BySize()
    """`size` (the paper's), `equal`, or any other weighting."""
    loss: Annotated[SampleLoss, slot(LOSSES), neutral("ce")] = CROSS_ENTROPY
    """The clients' loss: `ce` (the paper's), or any robust loss."""
    aggregation: Annotated[Aggregation, slot(AGGREGATIONS), neutral("mean")] = WeightedMean()
    """How weighted updates become one: `mean` (the paper's)."""

    def check(self, fleet: Fleet) -> None:
        self.weighting.check(fleet)
        self.aggregation.check(fleet)

    def init(self, fleet: Fleet, model: Ref) -> Global:
        return Global(model)

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(train, fleet.sample(t), w=state.model, method=self)
        return replace(state, model=self.aggregate(got, fleet))

    def aggregate(self, got: Replies, fleet: Fleet) -> Ref:
        """The new global model: w <- sum_k n_k / n w_k, unless the slots say otherwise.

        Parameters
        ----------
        got
            Replies whose updates are models.
        fleet
            Where they lie.
        """
        return self.aggregation(got, self.weighting(got, fleet), fleet)

    def model(self, state: Global, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model
