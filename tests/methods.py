"""Methods that misbehave, for tests of the engine and of what stands around it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from rayfl.component import component
from rayfl.errors import ConfigError
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.protocol import Algorithm, Client, ClientId, Fleet, Out, Ref, Vector


@dataclass(frozen=True)
class Kept:
    model: Ref
    rounds: tuple[int, ...] = ()


def note_round(client: Client, *, t: int) -> Out:
    """State that says when a client was last seen."""
    return Out(state={"seen": np.array([t])})


def move(client: Client, *, w: Vector, bad: tuple[int, ...]) -> Fitting[Out]:
    """One visit; the update of the bad ones is not a number."""
    trained = (yield Fit(w)).weights
    return Out({}, np.full_like(trained, np.nan) if client.id in bad else trained)


def raise_at(client: Client, *, t: int) -> Out:
    raise ZeroDivisionError(f"phase of round {t}")


@component
class Odd(Algorithm):
    """Averaging with equal weights that does something wrong in round `at`."""

    at: int = 2
    wrong: str = ""
    bad: tuple[int, ...] = ()

    def check(self, fleet: Fleet) -> None:
        if self.wrong == "check":
            raise ConfigError("this federation will not do")

    def init(self, fleet: Fleet, model: Ref) -> Kept:
        if self.wrong == "stored at the start":
            fleet.map(note_round, [0], t=-1)
        return Kept(model)

    def round(self, state: Kept, fleet: Fleet, t: int) -> Kept:
        now = t == self.at
        if now and self.wrong == "round":
            raise KeyError("a bug of the method")
        if now and self.wrong == "exit":
            raise SystemExit(3)
        if now and self.wrong == "refusal":
            raise ConfigError("not in this round")
        if now and self.wrong == "phase":
            fleet.map(raise_at, [1], t=t)
        if now and self.wrong == "unfit state":
            return Kept(state.model, {1, 2})  # type: ignore[arg-type]
        cohort = fleet.sample(t)
        fleet.map(note_round, cohort, t=t)
        fleet.log(cohort=float(len(cohort)))
        bad = tuple(cohort) if now and self.wrong == "all diverge" else self.bad
        got = fleet.map(move, cohort, w=state.model, bad=bad)
        fleet.estimate("trust", {client: -client for client in got})
        fleet.leave("rounds", np.arange(t + 1))
        return Kept(got.mean(dict.fromkeys(got, 1.0)), (*state.rounds, t))

    def model(self, state: Kept, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model


def decide(client: Client) -> Out:
    """Keeps every other sample, and calls the first two of every client class 0."""
    y = np.array(client.y)
    y[:2] = 0
    return Out(state={"kept": np.arange(len(client)) % 2 == 0, "y": y})


@component
class Deciding(Odd):
    """Judges labels in its first round."""

    def round(self, state: Kept, fleet: Fleet, t: int) -> Kept:
        if t == 0:
            fleet.map(decide, fleet.clients)
        return state


def own_model(client: Client, *, w: Vector) -> Fitting[Out]:
    trained = yield Fit(w)
    return Out(state={"w": trained.weights})


@component
class Personal(Odd):
    """Every client trains alone; clusters are by parity."""

    personal: ClassVar[bool] = True

    def init(self, fleet: Fleet, model: Ref) -> Any:
        fleet.map(own_model, fleet.clients, w=model)
        return {client: fleet.state(client, "w") for client in fleet.clients}

    def round(self, state: Any, fleet: Fleet, t: int) -> Any:
        return state

    def model(self, state: Any, fleet: Fleet, client: ClientId | None = None) -> Ref:
        found: Ref = state[client]
        return found

    def clusters(self, state: Any) -> dict[ClientId, int]:
        return {client: client % 2 for client in state}


@component
class Encoding(Odd):
    """Wants the features of a frozen encoder."""

    def encoders(self) -> dict[str, Any]:
        return {"bright": Brightness()}

    def round(self, state: Kept, fleet: Fleet, t: int) -> Kept:
        fleet.log(
            **{f"bright/{c}": r["mean"] for c, r in fleet.map(mean_feature, fleet.clients).items()}
        )
        return state


def mean_feature(client: Client) -> Out:
    expected = client.x.mean(axis=(1, 2, 3), dtype=np.float32)
    assert np.array_equal(client.features["bright"][:, 0], expected)
    return Out({"mean": float(client.features["bright"].mean())})


@dataclass(frozen=True)
class Brightness:
    """An encoder: the mean of an image. `salt` stands for its weights."""

    salt: str = "a"

    def build(self, shape: tuple[int, int, int]) -> Brightness:
        return self

    def fingerprint(self) -> str:
        return f"brightness {self.salt}"

    def encode(self, x: NDArray[np.uint8]) -> NDArray[np.float32]:
        means: NDArray[np.float32] = x.mean(axis=(1, 2, 3), dtype=np.float32)
        return means[:, None]


def dawdle(client: Client, *, w: Vector, marker: str, seconds: float) -> Fitting[Out]:
    """Client 1 takes its time, once ever."""
    if client.id == 1 and not Path(marker).exists():
        Path(marker).touch()
        time.sleep(seconds)
    trained = yield Fit(w)
    return Out(update=trained.weights, state={"last": trained.weights})


@component
class Dawdling(Odd):
    """Averaging in which a client is late in round `at`, the first time that this is computed."""

    marker: str = ""
    seconds: float = 0.0

    def round(self, state: Kept, fleet: Fleet, t: int) -> Kept:
        seconds = self.seconds if t == self.at else 0.0
        marker = self.marker if t == self.at else "/"
        got = fleet.map(dawdle, fleet.clients, w=state.model, marker=marker, seconds=seconds)
        return Kept(got.mean(dict.fromkeys(got, 1.0)), (*state.rounds, t))


def exaggerate(client: Client, *, w: Vector) -> Fitting[Out]:
    trained = yield Fit(w)
    scale = np.float32(1e30 if client.id == 1 else 1)
    return Out(update=trained.weights * scale)


@component
class Exaggerating(Odd):
    """Averaging in which the updates of one client are finite, and absurd."""

    def round(self, state: Kept, fleet: Fleet, t: int) -> Kept:
        got = fleet.map(exaggerate, fleet.clients, w=state.model)
        return Kept(got.mean(dict.fromkeys(got, 1.0)), (*state.rounds, t))
