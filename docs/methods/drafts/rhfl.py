"""RHFL: a draft.

X. Fang and M. Ye: "Robust federated learning with noisy and heterogeneous clients", CVPR 2022.
Every client keeps a model of its own; they teach each other on public images, the more the better
they learn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

import numpy as np
import torch

from rayfl.arrays import Labels
from rayfl.learn.augment.base import Unchanged
from rayfl.learn.losses.symmetric_ce import SymmetricCrossEntropy
from rayfl.methods import (
    LOSSES,
    Algorithm,
    Client,
    ClientId,
    ConfigError,
    Fit,
    Fitting,
    Fleet,
    NonNegative,
    Out,
    Ref,
    SampleLoss,
    Shard,
    Vector,
    broken,
    component,
    judge,
    slot,
)


def keep_first(_: Client, *, w: Vector) -> Out:
    return Out(state={"w": w})


def measure_loss(client: Client, *, method: RHFL) -> Out:
    """The mean robust loss on the private data."""
    logits = torch.from_numpy(judge(client, client.state["w"]).logits).double()
    labels = torch.from_numpy(np.array(client.y))
    return Out({"loss": float(method.loss(logits, labels).mean())})


def answer(client: Client, *, public: Shard, rows: Labels) -> Out:
    """Class probabilities on one public batch."""
    batch = client.on(public.x[rows])
    return Out({"p": judge(batch, client.state["w"]).probabilities.astype(np.float32)})


def distil(
    client: Client,
    *,
    public: Shard,
    rows: Labels,
    answers: Mapping[ClientId, Vector],
    weights: Mapping[ClientId, float],
) -> Fitting[Out]:
    """One step towards the others' answers: sum_j W_j KL(P_j || P_k), but for its constant."""
    others = [j for j in answers if j != client.id]
    targets = np.sum([np.float32(weights[j]) * answers[j] for j in others], axis=0)
    settings = {"steps": 1, "batch_size": len(rows), "augment": Unchanged(), "drop_last": False}
    batch = client.on(public.x[rows])
    trained = yield Fit(client.state["w"], client=batch, targets=targets, settings=settings)
    return Out(state={"w": trained.weights})


def train_own(client: Client, *, method: RHFL) -> Fitting[Out]:
    trained = yield Fit(client.state["w"], loss=method.loss)
    return Out(state={"w": trained.weights})


def weigh_teachers(
    before: Mapping[ClientId, float], now: Mapping[ClientId, float], eta: float
) -> dict[ClientId, float]:
    """W: softmax of 1 / (K - 1) + eta F / sum F, F = (drop of the loss) / loss; even at first."""
    even = 1 / (len(now) - 1)
    if not set(now) <= set(before):
        return dict.fromkeys(now, even)
    f = np.array([(before[client] - now[client]) / now[client] for client in now])
    a = even + (eta * f / f.sum() if abs(f.sum()) > 1e-12 else 0 * f)
    w = np.exp(a - a.max())
    return dict(zip(now, (w / w.sum()).tolist(), strict=True))


@dataclass(frozen=True)
class Losses:
    """Of each client at its last measure."""

    before: Mapping[ClientId, float] = field(default_factory=dict)


@component
class RHFL(Algorithm):
    """Personal models that teach each other on public images."""

    citation: ClassVar[str] = "Fang and Ye, CVPR 2022"
    needs: ClassVar = {"public": "images"}
    personal: ClassVar[bool] = True
    loss: Annotated[SampleLoss, slot(LOSSES)] = SymmetricCrossEntropy(alpha=0.1, beta=1.0)
    eta: NonNegative = 0.5

    def check(self, fleet: Fleet) -> None:
        if len(fleet.clients) < 2:
            raise ConfigError(broken("RHFL needs two clients or more", len(fleet.clients)))

    def init(self, fleet: Fleet, model: Ref) -> Losses:
        fleet.map(keep_first, fleet.clients, w=model)
        return Losses()

    def round(self, state: Losses, fleet: Fleet, t: int) -> Losses:
        cohort = fleet.sample(t)
        public = fleet.data("public")
        measured = fleet.map(measure_loss, cohort, method=self)
        now = {client: report["loss"] for client, report in measured.items()}
        weights = weigh_teachers(state.before, now, self.eta)
        fleet.estimate("confidence", weights)
        order = fleet.rng(t, "public").permutation(fleet.size("public"))
        size = fleet.training.batch_size
        for start in range(0, len(order), size):
            rows = np.sort(order[start : start + size])
            got = fleet.map(answer, cohort, public=public, rows=rows)
            answers = {client: report["p"] for client, report in got.items()}
            fleet.map(distil, cohort, public=public, rows=rows, answers=answers, weights=weights)
        fleet.map(train_own, cohort, method=self)
        return Losses({**state.before, **now})

    def model(self, state: Losses, fleet: Fleet, client: ClientId | None = None) -> Ref:
        found = fleet.state(fleet.clients[0] if client is None else client, "w")
        assert found is not None, "every client has kept the first weights"
        return found
