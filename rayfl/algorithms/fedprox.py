"""FedProx: local training that is pulled back to the model it started from.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith: "Federated optimization in
heterogeneous networks", MLSys 2020, Algorithm 2. Client k minimises h_k(w) = F_k(w) + mu/2 ||w -
w_t||^2 around the broadcast w_t, so every gradient gains mu (w - w_t)."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.component import NonNegative, component
from rayfl.errors import ConfigError, broken
from rayfl.learn.local_fit import Fit, Fitting, Pull
from rayfl.protocol import Client, Fleet, Out, Vector


def train_near(client: Client, *, w: Vector, method: FedProx) -> Fitting[Out]:
    """Local SGD on h_k: the client's loss plus mu/2 ||w - w_t||^2."""
    trained = yield Fit(w, loss=method.loss, pull=Pull(w, method.mu))
    return Out(update=trained.weights)


@component
class FedProx(FedAvg):
    """Federated averaging with a proximal term that keeps local models near the broadcast one."""

    citation: ClassVar[str] = "Li et al., MLSys 2020"
    deviations: ClassVar[tuple[str, ...]] = (
        "Nobody is a straggler: every participant does all of its local work.",
        "Clients are drawn uniformly and averaged by size, as the released code does; the paper's "
        "Algorithm 2 draws them by size and averages equally.",
        "Momentum, where configured, acts on the whole gradient, the proximal part included; the "
        "paper has none.",
        "mu * lr >= 1 is refused for SGD, where one step would overshoot the model that it is "
        "pulled to.",
    )
    mu: NonNegative = 0.05
    """Strength of the pull. Paper: tuned over {.001, .01, .1, 1}; FedDS's code: 0.05, in a term
    whose gradient never reaches the model, so that it trains as 0 does; 0 is FedAvg."""

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        steps = fleet.training
        if steps.optimizer == "sgd" and self.mu * steps.lr >= 1:
            got = f"{self.mu:g} * {steps.lr:g}"
            raise ConfigError(
                broken("mu * training.lr of FedProx is below 1", got, "Lower one of the two.")
            )

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(train_near, fleet.sample(t), w=state.model, method=self)
        return replace(state, model=self.aggregate(got, fleet))
