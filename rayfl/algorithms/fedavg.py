"""Federated averaging.

H. B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Aguera y Arcas: "Communication-efficient learning
of deep networks from decentralized data", AISTATS 2017, Algorithm 1.

Deviations: none. BatchNorm statistics are averaged like weights; integer counters stay behind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from rayfl.algorithms.parts.weighting import WEIGHTINGS, BySize, Weighting
from rayfl.component import component, slot
from rayfl.learn.local_fit import Fit, Training
from rayfl.protocol import Algorithm, Client, ClientId, Fleet, Out, Ref, Vector


@dataclass(frozen=True)
class Global:
    """One global model."""

    model: Ref


def train(client: Client, *, w: Vector) -> Training[Out]:
    """Local SGD on the client's own labels."""
    local = yield Fit(w)
    return Out({"n": len(client)}, update=local)


@component
class FedAvg(Algorithm):
    """Clients train locally; the server averages what they return."""

    citation: ClassVar[str] = "McMahan et al., AISTATS 2017"
    weighting: Annotated[Weighting, slot(WEIGHTINGS)] = BySize()
    """`size` (the paper's), `equal`, or any other weighting."""

    def check(self, fleet: Fleet) -> None:
        self.weighting.check(fleet)

    def init(self, fleet: Fleet, model: Ref) -> Global:
        return Global(model)

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(train, fleet.sample(t), w=state.model)
        return replace(state, model=got.mean(self.weighting(got, fleet)))

    def model(self, state: Global, client: ClientId | None = None) -> Ref:
        return state.model
