"""Supervised learning on the server's labelled images alone: the lower bound of federated
semi-supervised learning.

The baseline "Server-SL" of W. Mao, B. Yu, Y. Lv, Y. Xie and C. Zhang: "Federated semi-supervised
learning with contrastive representations against noisy labels" (FedCR), Applied Soft Computing,
section 4.2."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor, nn

from rayfl.component import Count, Fraction, component
from rayfl.errors import ConfigError, broken
from rayfl.learn.fit import Batch, fit
from rayfl.learn.learner import Learner
from rayfl.learn.losses.gce import gce
from rayfl.learn.optimisers import make_optimiser
from rayfl.learn.resident import Resident
from rayfl.learn.training import LocalTraining
from rayfl.protocol import (
    SERVER,
    Algorithm,
    Client,
    ClientId,
    Fleet,
    Out,
    Ref,
    Replies,
    Shard,
    Vector,
)


@dataclass(frozen=True)
class Server:
    """The server's model, and the memory of its optimiser."""

    model: Ref
    make_optimiser: Ref | None = None


def owning(client: Client, data: Shard) -> Client:
    """The server as the owner of a named set."""
    return replace(client, x=data.x, labels=data.y, state={})


def for_epochs(learner: Learner, epochs: int) -> LocalTraining:
    """The run's local settings, for so many passes over the server's images."""
    return learner.training.model_copy(update={"epochs": epochs, "steps": None})


def refuse_idle(got: Replies) -> None:
    """A server that finds no whole batch in its set would pass for one that learns nothing from
    it."""
    if not got[SERVER]["steps"]:
        rule = "the server's labelled set fills at least one batch (a whole one with training.drop_last)"
        raise ConfigError(
            broken(
                rule, "a set without one", "Enlarge split.labelled, or reduce training.batch_size."
            )
        )


def train(
    client: Client, *, w: Vector, memory: Vector | None, data: Shard, gamma: float, epochs: int
) -> Out:
    """Mini-batch descent on the server's labels; the optimiser goes on where the last round left
    it."""
    settings = for_epochs(client.learner, epochs)
    update = make_optimiser(client.learner.resident(w), settings, memory)
    steps = 0

    def count(_: Resident) -> None:
        nonlocal steps
        steps += 1

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        return gce(net(batch.x), batch.y, gamma).mean()

    w = fit(owning(client, data), w, loss=loss, training=settings, after_step=count, update=update)
    return Out({"steps": steps}, update={"w": w, "optimiser": update.dump()})


@component
class ServerSL(Algorithm):
    """Only the server learns, from its own labelled images; clients and what they hold change
    nothing."""

    citation: ClassVar[str] = "Mao et al., Applied Soft Computing"
    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"labelled": "labels"}
    client_labels: ClassVar[bool] = False
    deviations: ClassVar[tuple[str, ...]] = (
        "The length of training is not printed: a round is `epochs` passes, so that curves share FedCR's axis, whose "
        "pre-training and server training take as many passes a round.",
        "The paper does not name the loss: cross-entropy, or the generalised one on request.",
    )
    epochs: Count = 5
    """Passes over the labelled set in a round (ours: 5, as many as the clients of FedCR make)."""
    loss: Literal["ce", "gce"] = "ce"
    """Cross-entropy, or the generalised cross-entropy that FedCR uses against noisy labels."""
    gamma: Fraction = 0.6
    """Exponent of the generalised cross-entropy (FedCR: 0.6; neutral: 0, cross-entropy)."""

    def init(self, fleet: Fleet, model: Ref) -> Server:
        return Server(model)

    def round(self, state: Server, fleet: Fleet, t: int) -> Server:
        gamma = 0.0 if self.loss == "ce" else self.gamma
        data, memory = fleet.data("labelled"), state.optimiser
        got = fleet.map(
            train,
            [SERVER],
            w=state.model,
            memory=memory,
            data=data,
            gamma=gamma,
            epochs=self.epochs,
        )
        refuse_idle(got)
        return Server(*(got.mean({SERVER: 1.0}, key) for key in ("w", "optimiser")))

    def model(self, state: Server, client: ClientId | None = None) -> Ref:
        return state.model
