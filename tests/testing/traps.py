"""What a newcomer gets wrong, one small method each: some break a promise, some are refused, and
some became harmless. `test_traps.py` says which."""

from __future__ import annotations

import ctypes
import itertools
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, train
from rayfl.component import component
from rayfl.learn.batches import Batch
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.models.encoders.pixels import Pixels
from rayfl.protocol import (
    SERVER,
    Blueprint,
    Client,
    ClientId,
    Fleet,
    Out,
    Ref,
    Replies,
    Vector,
)

FLOATS = ctypes.POINTER(ctypes.c_float)

STARTS = itertools.count()
"""How many rounds this process has seen: what no method may know."""

SEEN: list[ClientId] = []
"""Whom this place has visited: what no phase may know."""


class Mapped(FedAvg):
    """Federated averaging by another phase."""

    phase: ClassVar[Any]

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(type(self).phase, fleet.sample(t), w=state.model, method=self)
        return replace(state, model=got.mean(dict.fromkeys(got, 1.0)))


def require(holds: bool, what: str) -> None:
    """A trap that became harmless looks for itself whether it did."""
    if not holds:
        raise AssertionError(what)


# -- what lives on at a place ----------------------------------------------------------------------


def follow_unloaded_teacher(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    teacher = client.learner.resident(name="teacher")

    def follow(student: Any) -> None:
        teacher.parameters.lerp_(student.parameters.detach(), 0.1)

    trained = yield Fit(w, after_step=follow)
    return Out(update=trained.weights)


@component
class UnloadedTeacher(Mapped):
    """The resident of another name is never given weights: it holds the last client's."""

    phase = staticmethod(follow_unloaded_teacher)


def distil_from_own_network(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    teacher = client.learner.resident(w).net.eval()

    def distil(student: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            guesses = teacher(batch.x).softmax(1)
        agreement: Tensor = (guesses * student(batch.x).log_softmax(1)).sum(1).mean()
        return -agreement

    trained = yield Fit(w, loss=distil)
    return Out(update=trained.weights)


@component
class TeacherIsStudent(Mapped):
    """The teacher is the very network that is trained: it agrees with itself."""

    phase = staticmethod(distil_from_own_network)


def fit_twice(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    first = yield Fit(w, remember=True)
    kept = np.array(first.weights)
    second = yield Fit(first.weights, memory=first.memory)
    require(bool((first.weights == kept).all()), "the first result was overwritten")
    require(bool((second.weights != kept).any()), "the second training did nothing")
    return Out(update=second.weights)


@component
class SecondFit(Mapped):
    """Trains on with the optimiser of the first training."""

    phase = staticmethod(fit_twice)


@component
class CumulativeNorm(FedAvg):
    """Static BatchNorm as one would first try it: an average over all batches."""

    def network(self, blueprint: Blueprint) -> nn.Module:
        network = blueprint()
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = None
        return network


def change_module(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    for module in client.learner.resident(w).net.modules():
        if isinstance(module, nn.BatchNorm2d) and client.id % 2:
            module.momentum = 0.5
    trained = yield Fit(w)
    return Out(update=trained.weights)


@component
class ChangedModule(Mapped):
    """Some clients change the module that all clients of a place share."""

    phase = staticmethod(change_module)


def keep_first_client(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    first: ClientId = client.learner.keep("who came first", lambda: client.id)
    trained = yield Fit(w, settings={"epochs": 1 + first % 2})
    return Out(update=trained.weights)


@component
class KeptByPlace(Mapped):
    """What a place keeps depends on the client that came first."""

    phase = staticmethod(keep_first_client)


def train_by_arrival(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    first: int = client.learner.keep(f"first of round {client.id}", lambda: client.id)
    arrived = client.learner.keep("arrived", list[ClientId])
    arrived.append(first)
    trained = yield Fit(w, settings={"epochs": 1 + (len(arrived) > 1)})
    return Out(update=trained.weights)


@component
class OwnPlace(Mapped):
    """The first visit of a place is shorter than the others: three places have three of them."""

    phase = staticmethod(train_by_arrival)


def count_in_a_global(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    SEEN.append(client.id)
    trained = yield Fit(w, settings={"epochs": 1 + len(SEEN) % 5})
    return Out(update=trained.weights)


@component
class GlobalInPhase(Mapped):
    """A list of the module remembers the clients before."""

    phase = staticmethod(count_in_a_global)


@component
class GlobalInRound(FedAvg):
    """A counter of the module remembers the rounds of earlier runs."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        chosen = fleet.clients[next(STARTS) % 5]
        got = fleet.map(train, [chosen], w=state.model, method=self)
        return replace(state, model=got.mean({chosen: 1.0}))


def read_clock(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    trained = yield Fit(w, sample_weights=np.full(len(client), time.perf_counter() % 1 + 0.5))
    return Out(update=trained.weights)


@component
class Clock(Mapped):
    """The time of day is in the loss."""

    phase = staticmethod(read_clock)


# -- random numbers --------------------------------------------------------------------------------


def mix_by_numpy(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    def loss(net: nn.Module, batch: Batch) -> Tensor:
        share = np.random.beta(1.0, 1.0)  # noqa: NPY002
        return share * nn.functional.cross_entropy(net(batch.x), batch.y)

    trained = yield Fit(w, loss=loss)
    return Out(update=trained.weights)


@component
class NumpyInLoss(Mapped):
    """A loss draws from numpy's global stream, as published code does."""

    phase = staticmethod(mix_by_numpy)


@component
class NumpyInRound(FedAvg):
    """The server draws from numpy's global stream."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        cohort = sorted(np.random.choice(fleet.clients, 3, replace=False).tolist())  # noqa: NPY002
        got = fleet.map(train, cohort, w=state.model, method=self)
        return replace(state, model=got.mean(dict.fromkeys(got, 1.0)))


def draw_numbers(client: Client) -> Out:
    return Out({"numpy": float(client.rng.random()), "torch": float(torch.rand(()))})


@component
class TwoMaps(FedAvg):
    """Visits every client twice in a round, and the server too."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        everybody = [SERVER, *fleet.clients]
        first = fleet.map(draw_numbers, everybody)
        second = fleet.map(draw_numbers, everybody)
        for name in ("numpy", "torch"):
            same = [who for who in first if first[who][name] == second[who][name]]
            require(not same, f"{name} draws the same twice for {same}")
        return super().round(state, fleet, t)


@component
class TwoSamples(FedAvg):
    """Draws two cohorts a round from the same clients."""

    def init(self, fleet: Fleet, model: Ref) -> Any:
        draws = [(fleet.sample(t, range(6)), fleet.sample(t, range(6))) for t in range(20)]
        require(any(first != second for first, second in draws), "both cohorts are always the same")
        return super().init(fleet, model)


@component
class SecondNetwork(FedAvg):
    """Wants two networks that differ, and finds them built from one seed."""

    def init(self, fleet: Fleet, model: Ref) -> Any:
        first, second = (fleet.get(fleet.initial(i)) for i in range(2))
        require(bool((first != second).any()), "both networks begin with the same weights")
        require(bool((first == fleet.get(model)).all()), "the first is not the run's own")
        return super().init(fleet, model)


# -- labels and named sets -------------------------------------------------------------------------


@component
class NoLabels(FedAvg):
    """Clients own no labels, and are trained on them."""

    client_labels: ClassVar[bool] = False


def train_on_set(server: Client, *, w: Vector, data: Any) -> Fitting[Out]:
    trained = yield Fit(w, client=server.on(data))
    return Out(update=trained.weights)


@component
class UndeclaredLabels(FedAvg):
    """The server trains on a set whose labels it did not ask for."""

    needs: ClassVar[Mapping[str, Any]] = {"labelled": "images"}

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        served = fleet.serve(train_on_set, w=state.model, data=fleet.data("labelled"))
        return replace(state, model=served["w"])


@component
class TestLabels(FedAvg):
    """Trains on the test set."""

    __test__ = False

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        served = fleet.serve(train_on_set, w=state.model, data=fleet.data("test"))
        return replace(state, model=served["w"])


def look_at_features(client: Client, *, w: Vector, images: Any) -> Out:
    visitor = replace(client, x=images.x, labels=None, state={})
    return Out({"rows": len(visitor.features["pixels"])}, update=w)


@component
class MisalignedFeatures(FedAvg):
    """A client looks at public images with the features of its own."""

    needs: ClassVar[Mapping[str, Any]] = {"public": "images"}

    def encoders(self) -> Mapping[str, Any]:
        return {"pixels": Pixels()}

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        images = fleet.data("public")
        got = fleet.map(look_at_features, fleet.sample(t), w=state.model, images=images)
        return replace(state, model=got.mean(dict.fromkeys(got, 1.0)))


def leave_soft_labels(client: Client) -> Out:
    rows = np.full((len(client), client.classes), 1 / client.classes, np.float32)
    return Out(state={"y": rows})


def leave_short_labels(client: Client) -> Out:
    return Out(state={"y": client.y[:-1]})


@component
class SoftLabels(FedAvg):
    """Stores rows of probabilities where labels belong."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        fleet.map(leave_soft_labels, fleet.clients)
        return super().round(state, fleet, t)


@component
class ShortLabels(FedAvg):
    """Stores one label too few."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        fleet.map(leave_short_labels, fleet.clients)
        return super().round(state, fleet, t)


# -- the server's part -----------------------------------------------------------------------------


def train_or_pass(visitor: Client, *, w: Vector, data: Any = None) -> Fitting[Out]:
    first = int(visitor.rng.integers(1 << 30))
    owner = visitor if data is None else visitor.on(data)
    trained = yield Fit(w, client=owner)
    return Out({"first": first}, update=trained.weights)


def look_as_server(server: Client, *, w: Vector) -> Out:
    first = int(server.rng.integers(1 << 30))
    return Out({"images": len(server.x), "id": server.id, "first": first})


@component
class ExaminedServer(FedAvg):
    """Examines the server's update beside the clients'."""

    needs: ClassVar[Mapping[str, Any]] = {"labelled": "labels"}

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        own = {SERVER: {"data": fleet.data("labelled")}}
        got = fleet.map(train_or_pass, [SERVER, *fleet.sample(t)], own, w=state.model)
        seen = got.examine(look_as_server)
        require(all(report["images"] == 0 for report in seen.values()), "an examiner has images")
        require(all(report["id"] < 0 for report in seen.values()), "an examiner is a client")
        draws = [report["first"] for report in (*got.values(), *seen.values())]
        require(len(set(draws)) == len(draws), "an examiner draws what somebody else draws")
        return replace(state, model=got.mean(dict.fromkeys(got, 1.0)))


@component
class ServerWithoutData(FedAvg):
    """Puts the server among the clients, although it owns nothing."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(train, [SERVER, *fleet.sample(t)], w=state.model, method=self)
        return replace(state, model=got.mean(dict.fromkeys(got, 1.0)))


def leave_two_vectors(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    trained = yield Fit(w)
    return Out(update={"a": trained.weights, "b": w})


@component
class MeanWithoutKey(Mapped):
    """Averages one of two updates without saying which."""

    phase = staticmethod(leave_two_vectors)


def measure_update(server: Client, *, a: Vector, b: Vector) -> Out:
    return Out({"distance": float(np.abs(a - b).max())})


@component
class ExaminedByName(FedAvg):
    """Examines updates of two names."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(leave_two_vectors, fleet.sample(t), w=state.model, method=self)
        seen = got.examine(measure_update)
        require(all(report["distance"] > 0 for report in seen.values()), "nothing was trained")
        return replace(state, model=got.mean(dict.fromkeys(got, 1.0), "a"))


@component
class MeanOfTwoMaps(FedAvg):
    """One mean over the clients of two maps."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        cohort = fleet.sample(t)
        maps: list[Replies] = [
            fleet.map(train, part, w=state.model, method=self) for part in (cohort[:2], cohort[2:])
        ]
        return replace(state, model=maps[0].mean(dict.fromkeys(cohort, 1.0)))


def leave_report_only(client: Client) -> Out:
    return Out({"x": 1.0})


@component
class ServedReport(FedAvg):
    """Takes an update from a server's phase that left a report."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        return replace(state, model=fleet.serve(leave_report_only)["w"])
