"""Federated averaging without the smallest clients."""

from __future__ import annotations

from dataclasses import replace

from rayfl.component import Natural
from rayfl.methods import FedAvg, Fit, Out, component


def train(client, *, w, method):
    """Train at one client."""
    trained = yield Fit(w, loss=method.loss)
    return Out({"steps": trained.steps}, update=trained.weights)


@component
class MyAverage(FedAvg):
    """Clients with few samples do not count."""

    least: Natural = 10
    """Samples that a client must have to count."""

    def round(self, state, fleet, t):
        """One round: train the cohort, average those that are large enough."""
        got = fleet.map(train, fleet.sample(t), w=state.model, method=self)
        weights = {client: fleet.size(client) for client in got if fleet.size(client) >= self.least}
        return replace(state, model=got.mean(weights))
