"""Methods for drills: slow enough to be caught in the middle of a round, with state that decides
what comes next."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.component import NonNegative, component
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.protocol import Client, Fleet, Out, Vector

UNLUCKY = 3
"""The client that fails."""


def stateful(client: Client, *, w: Vector, pause: float) -> Fitting[Out]:
    """Local training, bent a little by how often this client was visited before."""
    visits = client.state.get("visits", np.zeros(1)) + 1
    trained = yield Fit(w)
    vector = trained.weights * np.float32(1 - 1e-3 * visits[0] + 1e-4 * client.rng.random())
    time.sleep(pause)
    return Out(update=vector, state={"visits": visits, "last": vector})


@component
class Stateful(FedAvg):
    """Federated averaging whose clients remember."""

    pause: NonNegative = 0.0

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(stateful, fleet.sample(t), w=state.model, pause=self.pause)
        fleet.log(drawn=fleet.rng(t, "drill").random())
        return replace(state, model=got.mean(self.weighting(got, fleet)))


def raising(client: Client, *, w: Vector, t: int) -> Fitting[Out]:
    if client.id == UNLUCKY and t == 2:
        raise ValueError("the sensor is broken")
    trained = yield Fit(w)
    return Out(update=trained.weights)


@component
class Raising(FedAvg):
    """One client raises in the third round."""

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(raising, fleet.clients, w=state.model, t=t)
        return replace(state, model=got.mean(self.weighting(got, fleet)))


def diverging(client: Client, *, w: Vector, everyone: bool) -> Fitting[Out]:
    trained = yield Fit(w)
    vector = trained.weights
    if everyone or client.id == UNLUCKY:
        vector[-1] = np.nan
    return Out(update=vector, state={"poison": vector})


@component
class Diverging(FedAvg):
    """One client's update has a NaN in every round; from round `void` on, everyone's."""

    void: int = 1000

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(diverging, fleet.clients, w=state.model, everyone=t >= self.void)
        return replace(state, model=got.mean(self.weighting(got, fleet)))
