"""Phases that misbehave on one client. Actors import them from here."""

from __future__ import annotations

import ctypes
import os
import time
from typing import Any

import numpy as np
import torch

from rayfl.learn.local_fit import Fit, Fitting
from rayfl.protocol import Client, Out, Vector
from tests.fleet.phases import update

MB = 1 << 20


class Odd(BaseException):
    """No Exception."""


def dawdle(client: Client, *, victim: int, seconds: float) -> Out:
    """Takes its time on one client."""
    if client.id == victim:
        time.sleep(seconds)
    return update(client)


def dawdle_on(client: Client, *, w: Vector, victim: int, seconds: float) -> Out:
    """A link of a chain that takes its time on one client."""
    time.sleep(seconds if client.id == victim else 0)
    return Out(update=w + np.float32(client.id))


def dawdle_and_train(client: Client, *, w: Vector, victim: int, seconds: float) -> Fitting[Out]:
    time.sleep(seconds if client.id == victim else 0)
    trained = yield Fit(w, settings={"batch_size": 2})
    return Out(update=trained.weights)


def crash(client: Client, *, victim: int, how: str) -> Out:
    """Ends its process on one client."""
    if client.id == victim and how == "exit":
        os._exit(7)
    if client.id == victim:
        ctypes.string_at(0)
    return update(client)


def crash_looking(client: Client, *, w: Vector, victim: float) -> Out:
    """An examination that ends its process at one update."""
    if w[0] == victim:
        os._exit(7)
    return Out({"first": float(w[0])})


def hoard(client: Client, *, victim: int, kind: str, megabytes: int) -> Out:
    """Takes so much memory on one client: bit by bit, at once, or as torch's."""
    held: list[Any] = []
    if client.id == victim and kind == "bit by bit":
        held += [np.ones(MB, np.uint8) for _ in range(megabytes)]
    elif client.id == victim and kind == "at once":
        held.append([0] * (megabytes * MB // 8))
    elif client.id == victim:
        held.append(torch.ones(megabytes * MB, dtype=torch.uint8))
    return update(client)


def leave_python(client: Client, *, victim: int, kind: type[BaseException]) -> Out:
    """Raises what is no Exception on one client."""
    if client.id == victim:
        raise kind(3)
    return update(client)


def exaggerate(client: Client, *, victim: int, factor: float) -> Out:
    """An update that is `factor` times too large on one client, who keeps it as its state."""
    made = client.rng.normal(size=100).astype(np.float32)
    if client.id == victim:
        made *= np.float32(factor)
    return Out({"n": len(client)}, made, {"last": made})


def leave_odd_length(client: Client, *, victim: int) -> Out:
    """An update of another length on one client."""
    return update(client, size=7 if client.id == victim else 9)


def leave_first(client: Client) -> Out:
    """An update that says whose it is."""
    return Out(update=np.full(3, client.id, np.float32))
