"""FedLN-AKD: a draft.

V. Tsouvalas et al.: "Labeling chaos to learning harmony: federated learning with noisy labels", ACM
TIST 2024. Clients whose labels disagree with their neighbours' distil a frozen encoder's embedding:
L = CE + strength ||e(z) - f(x)||_1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar, cast

import numpy as np
import torch.nn.functional as functional
from torch import Tensor, nn

from rayfl.estimate.neighbour_votes import measure_disagreement
from rayfl.methods import (
    Batch,
    Blueprint,
    Client,
    Count,
    FedAvg,
    Fit,
    Fitting,
    Fleet,
    Fraction,
    Global,
    NonNegative,
    Out,
    Vector,
    component,
    slot,
)
from rayfl.models import ENCODERS
from rayfl.models.encoders.base import EncoderSpec
from rayfl.models.encoders.hog import HoG
from rayfl.models.network import Network


class Embedding(Network):
    """A network with a second head, whose answer meets the encoder's features."""

    def __init__(self, network: Network, width: int) -> None:
        super().__init__(network.trunk, network.head, network.feature_dim)
        self.embedding = nn.Linear(network.feature_dim, width)


def train_embedding(client: Client, *, w: Vector, method: FedLNAKD) -> Fitting[Out]:
    """Local SGD, with the distance to the encoder where labels are noisy."""
    features = client.features["reference"]
    nu = client.state.get("nu")
    if nu is None:
        found = float(measure_disagreement(features, client.y, method.k))
        nu = found if found >= method.least else 0.0
    if method.adaptive and nu == 0:
        trained = yield Fit(w, loss=method.loss)
        return Out({"_nu": nu}, update=trained.weights, state={"nu": nu})
    network = client.learner.shape_of()
    spans = network.span(cast(Embedding, network.net).embedding)
    local_head = slice(spans[0].start, spans[-1].stop)
    if method.adaptive and "head" in client.state:
        w = np.array(w)
        w[local_head] = client.state["head"]

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        model = cast(Embedding, net)
        z = model.features(batch.x)
        distance = functional.l1_loss(model.embedding(z), batch.take(features))
        return method.loss.mean(model.head(z), batch.y) + method.strength * distance

    trained = yield Fit(w, loss=loss)
    kept = {"head": trained.weights[local_head].copy()} if method.adaptive else {}
    return Out({"_nu": nu}, update=trained.weights, state={"nu": nu, **kept})


@component
class FedLNAKD(FedAvg):
    """Federated averaging with adaptive knowledge distillation."""

    citation: ClassVar[str] = "Tsouvalas et al., ACM TIST 2024"
    encoder: Annotated[EncoderSpec, slot(ENCODERS)] = HoG(cell=4)
    strength: NonNegative = 10.0
    k: Count = 10
    least: Fraction = 0.15
    adaptive: bool = False

    def encoders(self) -> Mapping[str, EncoderSpec]:
        return {"reference": self.encoder}

    def network(self, blueprint: Blueprint) -> nn.Module:
        return Embedding(cast(Network, blueprint()), blueprint.width("reference"))

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(train_embedding, fleet.sample(t), w=state.model, method=self)
        fleet.estimate("noise", {client: report["_nu"] for client, report in got.items()})
        return replace(state, model=self.aggregate(got, fleet))
