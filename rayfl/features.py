"""Features of frozen encoders: computed once per dataset and encoder, in parallel, and kept on disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.fleet.base import BaseFleet
from rayfl.fleet.seam import SERVER, Algorithm, Client, Out, Shard
from rayfl.models.feature_store import FeatureKey, FeatureStore, chunks

PART = 1024
PARTS_AT_ONCE = 8

Say = Callable[[str], object]


def fingerprint(client: Client, *, spec: Any, shape: tuple[int, int, int]) -> Out:
    """What an encoder's features depend on, hashed."""
    return Out({"fingerprint": built(client, spec, shape).fingerprint()})


def encode_part(client: Client, *, images: Shard, spec: Any, shape: tuple[int, int, int], start: int, stop: int) -> Out:
    """The features of some rows of a named set."""
    return Out(update=built(client, spec, shape).encode(images.x[start:stop]).ravel())


def built(client: Client, spec: Any, shape: tuple[int, int, int]) -> Any:
    """The actor's own copy of an encoder, made on first use."""
    return client.learner.keep(f"encoder {spec!r}", lambda: spec.build(shape))


def share_features(
    method: Algorithm, fleet: BaseFleet, dataset: str, shape: tuple[int, int, int], root: Path, say: Say
) -> None:
    """Give every place the features that a method asks for, from the cache or newly computed."""
    store = FeatureStore(root)
    for name, spec in method.encoders().items():
        print_ = str(fleet.map(fingerprint, [SERVER], spec=spec, shape=shape)[SERVER]["fingerprint"])
        features = {}
        for held in sorted(fleet.sets):
            key = FeatureKey(dataset, print_, f"{held} {fleet.fingerprints[held]}")
            found = store.get(key)
            if found is None:
                found = encoded(fleet, held, spec, shape, partial(told, say, f"encoding {held} with {name}"))
                store.put(key, found)
            features[held] = found
        fleet.share_features(name, features)
    fleet.costs.take()


def told(say: Say, what: str, done: str) -> None:
    say(f"{what}: {done}")


def encoded(fleet: BaseFleet, held: str, spec: Any, shape: tuple[int, int, int], say: Say) -> NDArray[np.float32]:
    """All rows of one named set, a handful of parts at a time."""
    rows, parts = fleet.sets[held], chunks(fleet.sets[held], PART)
    done = []
    for start in range(0, len(parts), PARTS_AT_ONCE):
        each = {
            SERVER - i: {"start": part.start, "stop": part.stop}
            for i, part in enumerate(parts[start : start + PARTS_AT_ONCE])
        }
        got = fleet.map(encode_part, each, each=each, images=fleet.data(held), spec=spec, shape=shape)
        for task in sorted(each, reverse=True):
            part = each[task]
            done.append(np.array(fleet.get(got.mean({task: 1.0}))).reshape(part["stop"] - part["start"], -1))
        say(f"{sum(map(len, done))}/{rows}")
    return np.concatenate(done)
