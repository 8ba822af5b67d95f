"""Phases that tests send to a fleet. Actors import them from here."""

from __future__ import annotations

import gc
import inspect
import os
import random
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rayfl.errors import DataError
from rayfl.fleet.executor import Executor
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.protocol import Client, Out, Shard, Vector


def describe(client: Client) -> Out:
    """What the client owns and believes."""
    return Out({"n": len(client), "x": client.x.tolist(), "y": client.y.tolist()})


def draw(client: Client) -> Out:
    """Its stream, and every global one."""
    return Out(
        {
            "stream": client.rng.random(3).tolist(),
            "torch": torch.rand(3).tolist(),
            "numpy": np.random.rand(3).tolist(),  # noqa: NPY002
            "Python": [random.random() for _ in range(3)],
        }
    )


def train(client: Client, *, w: Vector) -> Fitting[Out]:
    """One visit."""
    trained = yield Fit(w, settings={"batch_size": 2})
    return Out({"steps": trained.steps}, update=trained.weights, state={"began": w})


def double(client: Client, *, w: Vector, bad: Sequence[int] = ()) -> Out:
    """Twice what it was given, plus its number; the update of the bad ones is not a number."""
    made = 2 * w + np.float32(client.id)
    return Out(update=np.full_like(w, np.nan) if client.id in bad else made, state={"began": w})


def hold(client: Client, **entries: Any) -> Out:
    """These entries as state."""
    return Out(state=entries)


def weigh(client: Client, *, dw: Vector, dc: Vector, factor: float = 1.0) -> Out:
    """The server's look at a pair of updates."""
    return Out({"dw": factor * float(dw.sum()), "dc": float(dc.sum()), "images": len(client)})


def read_labels(client: Client, *, w: Vector) -> Out:
    return Out({"y": client.y.tolist()})


def leave_tensors(client: Client, *, named: bool) -> Out:
    """Updates that are none."""
    made = torch.zeros(3)
    return Out(update={"w": made} if named else made)  # type: ignore[arg-type, dict-item]


def leave_list(client: Client) -> Out:
    return Out(update=[1.0, 2.0])  # type: ignore[arg-type]


def yield_weights(client: Client, *, w: Vector) -> Any:
    trained = yield w
    return Out(update=trained)


def swap_images(client: Client, *, carefully: bool) -> Out:
    """Other images with the features of the client's own, or without."""
    images = client.x[:1].copy()
    other = client.on(images) if carefully else replace(client, x=images)
    return Out({"features": len(other.features), "images": len(other)})


def count_classes(client: Client) -> Out:
    return Out({"classes": client.classes, "counts": client.class_counts.tolist()})


def pass_through(client: Client, *, w: Vector) -> Out:
    """Forward twice, one of them with gradients, and back."""
    learner = client.learner
    net = learner.resident(w).net
    x = learner.normalise(learner.pixels(client.x))
    with torch.no_grad():
        net(x)
    learner.backward(net(x).sum())
    return Out()


def pass_through_set(server: Client, *, w: Vector, held: Shard) -> Out:
    return pass_through(server.on(held), w=w)


def update(client: Client, *, size: int = 1000, scale: float = 1.0) -> Out:
    """A random update of its own."""
    return Out({"n": len(client)}, update=(scale * client.rng.normal(size=size)).astype(np.float32))


def step_on(client: Client, *, w: NDArray[np.float32]) -> Out:
    """The vector that it was given, moved a little at random."""
    return Out(update=(w + client.rng.normal(size=len(w))).astype(np.float32))


def pages_of_this_process(client: Client, *, size: int) -> Out:
    """A large update in memory of the place's own kind, and all the pages that this process has by
    now."""
    made = client.learner.fresh(size)
    made.fill(client.id)
    files = (f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd"))
    return Out(
        {
            "pages": [
                f"{os.getpid()} {file}" for file in files if "memfd:rayfl" in os.path.realpath(file)
            ]
        },
        made,
    )


def leave(client: Client, *, models: Mapping[int, Sequence[float]]) -> Out:
    """A given update, and a state that says so."""
    return Out({"n": len(client)}, np.array(models[client.id], np.float32), {"seen": np.ones(1)})


def pair(client: Client, *, size: int = 4) -> Out:
    """Two named updates."""
    ones = np.ones(size, np.float32)
    return Out(update={"dw": client.id * ones, "dc": -client.id * ones})


def leave_named(client: Client, *, name: str) -> Out:
    """One update, under this name."""
    return Out(update={name: np.full(2, client.id, np.float32)})


def scribble(
    client: Client,
    *,
    what: str,
    shared: NDArray[Any] | None = None,
    own: NDArray[Any] | None = None,
    nested: Mapping[str, Sequence[NDArray[Any]]] | None = None,
    public: Shard | None = None,
    peer: NDArray[Any] | None = None,
) -> Out:
    """Writes where nobody may."""
    targets: dict[str, Any] = {
        "x": client.x,
        "y": client.y,
        "shared": shared,
        "own": own,
        "nested": None if nested is None else nested["deep"][0],
        "public": None if public is None else public.x,
        "state": client.state.get("v"),
        "nested state": client.state.get("tree", {}).get("leaf"),
        "peer": peer,
    }
    targets[what][...] = 0
    return Out()


def remember(client: Client, *, value: float, size: int = 3) -> Out:
    """State of three shapes; reports what was there before."""
    before = client.state["v"].tolist() if "v" in client.state else None
    state = {"v": np.full(size, value), "tree": {"leaf": np.zeros(2)}, "log": [value]}
    return Out({"before": before}, state=state)


def append_to_log(client: Client) -> Out:
    """Changes a list of its state in place, which must change nothing."""
    client.state["log"].append(99.0)
    return Out({"log": list(client.state["log"])})


def read_peer(client: Client, *, peer: NDArray[Any], value: float) -> Out:
    """Reads a neighbour while writing its own."""
    return Out({"peer": peer.tolist()}, state={"v": np.full(3, value)})


def relabel(client: Client, *, label: int) -> Out:
    return Out(state={"y": np.full(len(client), label)})


def own_labels(client: Client) -> Out:
    return Out({"y": client.y.tolist()})


def too_much(client: Client, *, size: int) -> Out:
    return Out({"weights": np.zeros(size, np.uint8)})


def too_much_and_state(client: Client) -> Out:
    return Out({"weights": np.zeros(1 << 21, np.uint8)}, state={"v": np.ones(1)})


def garbage(client: Client) -> Out:
    """How many objects of this process are looked through for garbage, and how many never are."""
    return Out({"watched": len(gc.get_objects()), "settled": gc.get_freeze_count()})


def fail(client: Client, *, on: int) -> Out:
    """Raises on one client, after others left their state."""
    if client.id == on:
        raise ZeroDivisionError("what went wrong here")
    return Out(state={"v": np.ones(1)})


def fail_after_updates(client: Client, *, on: int) -> Out:
    """Raises on one client, after others left their updates."""
    if client.id == on:
        raise ZeroDivisionError("what went wrong here")
    return update(client)


def fail_early(client: Client, *, on: int, seconds: float) -> Out:
    """Raises on one client while others still work."""
    if client.id == on:
        raise ZeroDivisionError("what went wrong here")
    time.sleep(seconds)
    return Out({"late": True})


def refuse(client: Client) -> Out:
    raise DataError("images are square; got 3x4. Crop them.")


def no_out(client: Client) -> Any:
    return {"n": 1}


def look_at(client: Client, *, held: Shard) -> Out:
    return Out({"n": len(held), "labels": None if held.y is None else held.y.tolist()})


def norm(client: Client, *, w: Vector, offset: float = 0.0) -> Out:
    """The server's look at one update."""
    return Out(
        {
            "norm": float(np.abs(w).sum()) + offset,
            "id": client.id,
            "draw": float(client.rng.random()),
        }
    )


def pass_on(client: Client, *, values: Any) -> Out:
    """What a structure of references became."""
    total = float(sum(np.sum(value) for value in values["list"])) + float(np.sum(values["one"]))
    return Out({"total": total, "kind": type(values["list"]).__name__})


def spread_of(client: Client, *, split: Any) -> Out:
    """Reads a named tuple by its names."""
    return Out({"kind": type(split).__name__, "low": float(split.low), "high": float(split.high)})


def train_a_bit(client: Client, *, w: Vector) -> Out:
    """Costs passes."""
    client.learner.passes.forward += 2 * len(client)
    client.learner.passes.backward += len(client)
    return Out({"loss": 0.5, "n": len(client), "_hint": "free"}, update=w + 1)


def held_updates(client: Client) -> Out:
    """How many updates lie where this runs, beside those of this map."""
    callers = (frame.frame.f_locals.get("self") for frame in inspect.stack(0))
    place = next(caller for caller in callers if type(caller) is Executor)
    return Out({"held": sorted(place.updates), "pid": os.getpid()})


def die_once(client: Client, *, victim: int, marker: str) -> Out:
    """Kills its own process the first time that the victim is visited."""
    if client.id == victim and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return update(client)


def die(client: Client, *, victim: int, diary: str) -> Out:
    """Kills its own process whenever the victim is visited."""
    if client.id == victim:
        with Path(diary).open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    return Out()


def read_features(client: Client, *, public: Shard) -> Out:
    return Out({"own": client.features["enc"].tolist(), "public": public.features["enc"].tolist()})


def work(client: Client, *, seconds: float = 0.0) -> Out:
    """Takes its time."""
    time.sleep(seconds)
    return Out({"pid": os.getpid()})


def blend(client: Client, *, size: int, marker: str, peer: Vector | None = None) -> Out:
    """Remembers a model that depends on the last one and on a neighbour's; dies where a marker is
    wanted."""
    if marker and client.id == 4 and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    last = client.state.get("w", np.zeros(size, np.float32))
    w = (0.5 * last + client.rng.normal(size=size)).astype(np.float32)
    if peer is not None:
        w = w - peer / 3
    return Out(
        {"n": len(client), "sum": float(w.sum(dtype=np.float64))}, update=w[:1000], state={"w": w}
    )


def owns_memory(client: Client, *, peer: Vector) -> Out:
    """Whether what it reads was copied into this process."""
    own, other = client.state["v"], peer
    return Out({"own": bool(own.flags.owndata), "peer": bool(other.flags.owndata)})


def norm_beside(client: Client, *, w: Vector, peer: Vector) -> Out:
    """The server's look at one update, beside some client's state."""
    return Out({"norm": float(np.abs(w).sum()) + float(peer.sum())})
