"""Traps in what a method keeps, returns and writes."""

from __future__ import annotations

import ctypes
from collections import namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global, train
from rayfl.component import component
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.base import SampleLoss
from rayfl.protocol import (
    Algorithm,
    Client,
    ClientId,
    Fleet,
    Out,
    Ref,
    Vector,
)
from tests.testing.borrowed import Elsewhere
from tests.testing.traps import FLOATS, Mapped, require

# -- states ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Noted(Global):
    """A global model, and something else."""

    noisy: Any = None


class Noting(FedAvg):
    """Carries something through the rounds."""

    def init(self, fleet: Fleet, model: Ref) -> Noted:
        return Noted(model)

    def play(self, state: Any, fleet: Fleet, t: int) -> Noted:
        """A usual round."""
        played = super().round(state, fleet, t)
        assert isinstance(played, Noted)
        return played


@component
class LateSet(Noting):
    """In its last round the state holds a set, which cannot be stored."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        state = self.play(state, fleet, t)
        return replace(state, noisy={1, 2}) if t == 5 else state


@component
class TensorState(Noting):
    """The state holds a tensor."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        return replace(self.play(state, fleet, t), noisy=torch.zeros(3))


@component
class NumpyKeys(Noting):
    """Keys of a mapping are numpy's integers."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        by_client = dict.fromkeys(np.array(fleet.clients), 1.0)
        return replace(self.play(state, fleet, t), noisy=by_client)


Pair = namedtuple("Pair", "model n")


@component
class NamedTupleState(FedAvg):
    """The state is a named tuple, which would come back as a tuple."""

    def init(self, fleet: Fleet, model: Ref) -> Any:
        return Pair(model, 0)

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(train, fleet.sample(t), w=state.model, method=self)
        return Pair(got.mean(dict.fromkeys(got, 1.0)), t)


@component
class BorrowedState(Algorithm):
    """The state's class is of a module that the method does not inherit from."""

    def init(self, fleet: Fleet, model: Ref) -> Any:
        return Elsewhere(model)

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        got = fleet.map(train, fleet.sample(t), w=state.model, method=FedAvg())
        return Elsewhere(got.mean(dict.fromkeys(got, 1.0)))

    def model(self, state: Any, fleet: Fleet, client: ClientId | None = None) -> Ref:
        found: Ref = state.model
        return found


@component
class LateBorrowedState(Noting):
    """Not before its second round does the state hold a class of another module."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        state = self.play(state, fleet, t)
        return replace(state, noisy=Elsewhere(state.model)) if t else state


@component
class NoState(FedAvg):
    """A round that forgets to return."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        fleet.map(train, fleet.sample(t), w=state.model, method=self)


@component
class ArrayForRef(FedAvg):
    """An array where a reference belongs."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        return Global(fleet.get(state.model))


@component
class HiddenState(FedAvg):
    """What belongs into the state lies in the method itself."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        rounds = self.__dict__.get("rounds", 0) + 1
        object.__setattr__(self, "rounds", rounds)
        chosen = fleet.clients[rounds % 5]
        got = fleet.map(train, [chosen], w=state.model, method=FedAvg())
        return replace(state, model=got.mean({chosen: 1.0}))


# -- what a phase returns, and writes --------------------------------------------------------------


def return_weights(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    yield Fit(w)
    return Out(update=w)


@component
class ReturnsWhatItGot(Mapped):
    """Trains, and returns what it was given."""

    phase = staticmethod(return_weights)


def return_tensor(client: Client, *, w: Vector, method: FedAvg) -> Out:
    return Out(update=torch.from_numpy(np.array(w)))  # type: ignore[arg-type]


@component
class TensorUpdate(Mapped):
    """The update is a tensor."""

    phase = staticmethod(return_tensor)


def yield_weights(client: Client, *, w: Vector, method: FedAvg) -> Iterator[Any]:
    trained = yield w
    return Out(update=trained)  # type: ignore[return-value]


@component
class YieldsWeights(Mapped):
    """Yields weights instead of a wish."""

    phase = staticmethod(yield_weights)


def write_labels(client: Client, *, w: Vector, method: FedAvg) -> Out:
    client.y[0] = 1
    return Out(update=w)


@component
class WritesLabels(Mapped):
    """Corrects a label in place."""

    phase = staticmethod(write_labels)


def write_through_torch(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    pointer = w.__array_interface__["data"][0]
    # What a library does that takes an array's memory and not its flags.
    memory = np.ctypeslib.as_array(ctypes.cast(pointer, FLOATS), w.shape)
    memory *= np.float32(0.5)
    trained = yield Fit(w)
    return Out(update=trained.weights)


@component
class WritesMemory(Mapped):
    """Writes to the memory of its input, past numpy."""

    phase = staticmethod(write_through_torch)


def report_much(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    trained = yield Fit(w)
    return Out({"probabilities": np.zeros((2000, 10))}, update=trained.weights)


@component
class LargeReport(Mapped):
    """Reports what belongs into an update."""

    phase = staticmethod(report_much)


@component
class BatchCentred(SampleLoss):
    """A loss that says to treat samples one by one, and does not."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        centred = logits - 4 * logits.mean(0)
        return nn.functional.cross_entropy(centred, targets, reduction="none")


def relate_samples(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    trained = yield Fit(w, loss=BatchCentred())
    return Out(update=trained.weights)


@component
class RelatesSamples(Mapped):
    """A per-sample loss relates the samples of a batch: in a stack it sees other clients'."""

    phase = staticmethod(relate_samples)


def keep_nothing(client: Client, *, w: Vector, method: FedAvg) -> Fitting[Out]:
    kept = np.zeros(len(client), bool) if client.id % 2 else np.ones(len(client), bool)
    trained = yield Fit(w, keep=kept)
    require((trained.steps == 0) == (client.id % 2 == 1), "an empty selection was trained on")
    return Out(update=trained.weights, state={"kept": kept})


@component
class EmptySelection(Mapped):
    """Some clients select no sample at all."""

    phase = staticmethod(keep_nothing)


@component
class LogsText(FedAvg):
    """Logs what is no number."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        fleet.log(stage="fine-tuning")  # type: ignore[arg-type]
        return super().round(state, fleet, t)


@component
class LeavesAnything(FedAvg):
    """Leaves arrays of every shape to be drawn."""

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        fleet.leave("vector", np.arange(5.0))
        fleet.leave("by class", np.full((len(fleet.clients), 4), np.nan))
        fleet.leave("cube", np.zeros((2, 3, 4)))
        fleet.leave("nothing", np.zeros((0, 0)))
        # The name of an argument where arrays are saved, and one that is no name of a file.
        fleet.leave("file", np.zeros(3))
        fleet.leave("a" * 300, np.zeros(3))
        return super().round(state, fleet, t)
