"""Supervised learning on the server's labelled images alone: the lower bound of federated
semi-supervised learning.

The baseline "Server-SL" of W. Mao, B. Yu, Y. Lv, Y. Xie and C. Zhang: "Federated semi-supervised
learning with contrastive representations against noisy labels" (FedCR), Applied Soft Computing,
section 4.2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor, nn

from rayfl.algorithms.parts.server_training import for_epochs, refuse_idle_server
from rayfl.component import Count, Fraction, component
from rayfl.learn.batches import Batch
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.gce import gce
from rayfl.protocol import Algorithm, Client, ClientId, Fleet, Out, Ref, Shard, Vector


@dataclass(frozen=True)
class Supervised:
    """The server's model, and the memory of its optimiser."""

    model: Ref
    optimiser: Ref | None = None


def train_at_server(
    server: Client, *, w: Vector, memory: Vector | None, data: Shard, method: ServerSL
) -> Fitting[Out]:
    """Mini-batch descent on the server's labels; the optimiser goes on where the last round left
    it."""
    gamma = 0.0 if method.loss == "ce" else method.gamma

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        return gce(net(batch.x), batch.y, gamma).mean()

    settings = for_epochs(method.epochs)
    own = server.on(data)
    trained = yield Fit(w, loss=loss, client=own, settings=settings, memory=memory, remember=True)
    update = {"w": trained.weights, "optimiser": trained.memory}
    return Out({"steps": trained.steps}, update=update)


@component
class ServerSL(Algorithm):
    """Only the server learns, from its own labelled images; clients and what they hold change
    nothing."""

    citation: ClassVar[str] = "Mao et al., Applied Soft Computing"
    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"labelled": "labels"}
    client_labels: ClassVar[bool] = False
    deviations: ClassVar[tuple[str, ...]] = (
        "The length of training is not printed: a round is `epochs` passes, so that curves share "
        "FedCR's axis, whose pre-training and server training take as many passes a round.",
        "The paper does not name the loss: cross-entropy, or the generalised one on request.",
    )
    epochs: Count = 5
    """Passes over the labelled set in a round (ours: 5, as many as the clients of FedCR make)."""
    loss: Literal["ce", "gce"] = "ce"
    """Cross-entropy, or the generalised cross-entropy that FedCR uses against noisy labels."""
    gamma: Fraction = 0.6
    """Exponent of the generalised cross-entropy (FedCR: 0.6; neutral: 0, cross-entropy)."""

    def init(self, fleet: Fleet, model: Ref) -> Supervised:
        return Supervised(model)

    def round(self, state: Supervised, fleet: Fleet, t: int) -> Supervised:
        data = fleet.data("labelled")
        memory = state.optimiser
        got = fleet.serve(train_at_server, w=state.model, memory=memory, data=data, method=self)
        refuse_idle_server(got.report)
        return Supervised(got["w"], got["optimiser"])

    def model(self, state: Supervised, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model
