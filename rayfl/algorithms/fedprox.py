"""FedProx: local training that is pulled back to the model it started from.

T. Li, A. K. Sahu, M. Zaheer, M. Sanjabi, A. Talwalkar and V. Smith: "Federated optimization in
heterogeneous networks", MLSys 2020, Algorithm 2. Client k minimises h_k(w) = F_k(w) + mu/2 ||w -
w_t||^2 around the broadcast w_t, so every gradient gains mu (w - w_t)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.component import NonNegative, component
from rayfl.errors import ConfigError, broken
from rayfl.learn.local_fit import Adjust, Fit, Training
from rayfl.protocol import Client, Fleet, Out, Vector

if TYPE_CHECKING:
    from torch import Tensor


def proximal(client: Client, w: Vector, mu: float) -> Adjust:
    """Adds the gradient of mu/2 ||parameters - w||^2; BatchNorm statistics are no parameters."""
    anchor = client.learner.resident(w).parameters.clone()

    def pull(parameters: Tensor, gradient: Tensor) -> None:
        gradient.add_(parameters - anchor, alpha=mu)

    return pull


def train_near(client: Client, *, w: Vector, mu: float) -> Training[Out]:
    """Local SGD on the client's loss plus the proximal term."""
    local = yield Fit(w, adjust=proximal(client, w, mu))
    return Out({"n": len(client)}, update=local)


@component
class FedProx(FedAvg):
    """Federated averaging with a proximal term that keeps local models near the broadcast one."""

    citation: ClassVar[str] = "Li et al., MLSys 2020"
    deviations: ClassVar[tuple[str, ...]] = (
        "Nobody is a straggler: every participant does all of its local work.",
        "Clients are drawn uniformly and averaged by size, as the released code does; the paper's Algorithm 2 draws "
        "them by size and averages equally.",
        "Momentum, where configured, acts on the whole gradient, the proximal part included; the paper has none.",
        "mu * lr >= 1 is refused for SGD, where one step would overshoot the model that it is pulled to.",
    )
    mu: NonNegative = 0.05
    """Strength of the pull. Paper: tuned over {.001, .01, .1, 1}; FedDS's code: 0.05; 0 is
    FedAvg."""

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        steps = fleet.training
        if steps.optimizer == "sgd" and self.mu * steps.lr >= 1:
            got = f"{self.mu:g} * {steps.lr:g}"
            raise ConfigError(
                broken("mu * training.lr of FedProx is below 1", got, "Lower one of the two.")
            )

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(train_near, fleet.sample(t), w=state.model, mu=self.mu)
        return replace(state, model=got.mean(self.weighting(got, fleet)))
