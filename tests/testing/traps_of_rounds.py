"""Slips in a round, in the call of a phase and in what a class declares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, train
from rayfl.component import component
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.protocol import Blueprint, Client, ClientId, Fleet, Out, Vector
from tests.testing.traps import Mapped, leave_two_vectors, require


def draw_number(client: Client) -> Out:
    return Out({"number": float(client.rng.random())})


# -- whom a map visits -----------------------------------------------------------------------------


@component
class EmptyMap(FedAvg):
    """Visits nobody."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        require(len(fleet.map(draw_number, [])) == 0, "somebody replied")
        return super().round(state, fleet, t)


@component
class MeanOfNobody(FedAvg):
    """Averages without a weight."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(train, fleet.sample(t), w=state.model, method=self)
        return replace(state, model=got.mean({}))


@component
class TextIds(FedAvg):
    """Names clients by text, as JSON has them."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        fleet.map(draw_number, ["0", "1"])  # type: ignore[list-item]
        return super().round(state, fleet, t)


@component
class UnknownClient(FedAvg):
    """Visits somebody who is not there."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        fleet.map(draw_number, [99])
        return super().round(state, fleet, t)


@component
class NumpyIds(FedAvg):
    """Names clients by numpy's integers, which are no keys of a state."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        chosen = np.array(fleet.sample(t))
        got = fleet.map(train, chosen, w=state.model, method=self)
        require(all(type(client) is int for client in got), "replies have numpy's integers")
        return replace(state, model=got.mean(dict.fromkeys(got, 1.0)))


# -- what a phase is given, and leaves -------------------------------------------------------------


def ask_for_more(client: Client, *, w: Vector, method: FedAvg, mu: float) -> Out:
    return Out(update=w)


@component
class MissingInput(Mapped):
    """The phase takes an input that it is not given."""

    phase = staticmethod(ask_for_more)


@component
class UnknownInput(FedAvg):
    """The phase is given an input under another name than its own."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(train, fleet.sample(t), weights=state.model, method=self)
        return replace(state, model=got.mean(dict.fromkeys(got, 1.0)))


def look_at_w(server: Client, *, w: Vector) -> Out:
    return Out({"sum": float(np.abs(w).sum())})


@component
class ExaminedUnderAnotherName(FedAvg):
    """Examines updates of two names by a phase that knows one of its own."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(leave_two_vectors, fleet.sample(t), w=state.model, method=self)
        got.examine(look_at_w)
        return replace(state, model=got.mean(dict.fromkeys(got, 1.0), "a"))


def add_in_place(client: Client, *, w: Vector, method: FedAvg) -> Out:
    w += 1
    return Out(update=w)


@component
class WritesInput(Mapped):
    """Changes the weights that it is given."""

    phase = staticmethod(add_in_place)


def leave_sometimes(client: Client, *, w: Vector, method: FedAvg) -> Out:
    return Out() if client.id % 2 else Out(update=w)


@component
class SomeWithoutUpdate(FedAvg):
    """Averages over clients of which some left nothing."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(leave_sometimes, fleet.clients, w=state.model, method=self)
        return replace(state, model=got.mean(dict.fromkeys(got, 1.0)))


def bring_other_memory(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    trained = yield Fit(w, memory=np.zeros(3, np.float32), remember=True)
    return Out(update=trained.weights)


@component
class ForeignMemory(Mapped):
    """An optimiser's memory is of another network."""

    phase = staticmethod(bring_other_memory)


def return_bare_weights(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Any]:
    trained = yield Fit(w)
    return trained.weights


@component
class ReturnsWeights(Mapped):
    """Returns weights where an `Out` belongs."""

    phase = staticmethod(return_bare_weights)


def compare_two_networks(client: Client, *, w: Vector, method: FedAvg) -> Out:
    learner = client.learner
    pair = (learner.resident(w).dump(), learner.resident(name="second").dump())
    return Out({"same": bool((pair[0] == pair[1]).all())}, update=w)


@component
class SecondUnloaded(Mapped):
    """Reads a second network that nobody gave weights to."""

    phase = staticmethod(compare_two_networks)


def train_two_networks(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    first = yield Fit(w)
    kept = np.array(first.weights)
    second = yield Fit(w + np.float32(0.01))
    require(bool((first.weights == kept).all()), "the first result was overwritten")
    return Out(update={"w": first.weights, "v": second.weights})


@component
class TwoTrainings(Mapped):
    """Trains two networks, one after the other."""

    phase = staticmethod(train_two_networks)


@component
class LocalPhase(FedAvg):
    """Phases that are no functions of a module: lambdas, closures, methods."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        def train_once(client: Client, *, w: Vector) -> Fitting[Out]:
            trained = yield Fit(w, settings={"epochs": t % 2 + 1})
            return Out(update=trained.weights)

        fleet.map(lambda client: Out(state={"p": 1.0}), [0])
        fleet.map(lambda client: Out(state={"q": 2.0}), [0])
        seen = fleet.map(self.list_entries, [0])[0]["entries"]
        require(seen == ["p", "q"], "states of two maps are not merged")
        got = fleet.map(train_once, fleet.sample(t), w=state.model)
        return replace(state, model=got.mean(dict.fromkeys(got, 1.0)))

    def list_entries(self, client: Client) -> Out:
        return Out({"entries": sorted(client.state)})


# -- what a round does with references -------------------------------------------------------------


@component
class AssignedState(FedAvg):
    """Assigns to the state in place of making another."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(train, fleet.sample(t), w=state.model, method=self)
        state.model = got.mean(dict.fromkeys(got, 1.0))
        return state


@component
class AddedReferences(FedAvg):
    """Calculates with references as if they were arrays."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(train, fleet.sample(t), w=state.model, method=self)
        mean: Any = got.mean(dict.fromkeys(got, 1.0))
        return replace(state, model=mean + state.model)


@component
class PutState(FedAvg):
    """Calculates with arrays at the coordinator, and puts what comes of it."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(train, fleet.sample(t), w=state.model, method=self)
        mean = fleet.get(got.mean(dict.fromkeys(got, 1.0)))
        half = np.float32(0.5) * (mean + fleet.get(state.model))
        return replace(state, model=fleet.put(half))


@component
class FetchesCohort(FedAvg):
    """Averages at the coordinator what every client has returned."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(train, fleet.sample(t), w=state.model, method=self)
        models = [fleet.get(got.mean({client: 1.0})) for client in got]
        return replace(state, model=fleet.put(np.mean(models, axis=0)))


def leave_w_and_v(server: Client, *, w: Vector) -> Out:
    return Out(update={"w": w, "v": w})


@component
class ServedForRef(FedAvg):
    """Takes what the server's phase left for one of its updates."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        return replace(state, model=fleet.serve(leave_w_and_v, w=state.model))


@component
class PersonalWithoutModels(FedAvg):
    """Says that models are the clients' own, and has none."""

    personal: ClassVar[bool] = True

    def model(self, state: Any, fleet: Fleet, client: ClientId | None = None) -> Any:
        return None


@component
class ArrayToTest(FedAvg):
    """A further model is an array."""

    def further_models(
        self, state: Any, fleet: Fleet, client: ClientId | None = None
    ) -> Mapping[str, Any]:
        return {"other": (state.model, fleet.get(state.model))}


# -- what a class declares -------------------------------------------------------------------------


@component
class MisspeltNeed(FedAvg):
    """Needs a set that no split knows."""

    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"labeled": "labels"}


class Undecorated(FedAvg):
    """Declares a setting, and is no component."""

    least: int = 3

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        return super().round(state, fleet, t)


class TwoAnswersNetwork(nn.Module):
    """Answers with a pair."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.inner(x)
        return logits, logits


@component
class TwoAnswers(FedAvg):
    """Trains a network of two answers by a loss of one."""

    def network(self, blueprint: Blueprint) -> nn.Module:
        return TwoAnswersNetwork(blueprint())
