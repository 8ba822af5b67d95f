"""Features of frozen encoders: computed once per dataset and encoder, in parallel, and kept on
disk."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.arrays import Features
from rayfl.fleet.base import STAMPED_SET, TEST_SET, BaseFleet
from rayfl.models.feature_store import FeatureKey, FeatureStore, slice_rows
from rayfl.protocol import SERVER, Algorithm, Client, Out, Shard

PART = 1024
PARTS_AT_ONCE = 8

Say = Callable[[str], object]


def fingerprint_encoder(client: Client, *, spec: Any, shape: tuple[int, int, int]) -> Out:
    """What an encoder's features depend on, hashed."""
    return Out({"fingerprint": get_encoder(client, spec, shape).fingerprint()})


def encode_part(
    client: Client,
    *,
    images: Shard,
    spec: Any,
    shape: tuple[int, int, int],
    rows: NDArray[np.int64],
) -> Out:
    """The features of some rows of a named set."""
    return Out(update=get_encoder(client, spec, shape).encode(images.x[rows]).ravel())


def get_encoder(client: Client, spec: Any, shape: tuple[int, int, int]) -> Any:
    """The actor's own copy of an encoder, made on first use."""
    from rayfl.models.encoders.base import build_encoder

    return client.learner.keep(
        f"encoder {spec!r}", lambda: build_encoder(spec, shape, client.learner.device)
    )


def share_features(
    method: Algorithm,
    fleet: BaseFleet,
    dataset: str,
    shape: tuple[int, int, int],
    root: Path,
    say: Say,
) -> None:
    """Give every place the features that a method asks for: of what clients own, and of the
    server's sets."""
    store = FeatureStore(root)
    for name, spec in method.encoders().items():
        print_ = str(
            fleet.map(fingerprint_encoder, [SERVER], spec=spec, shape=shape)[SERVER]["fingerprint"]
        )
        features = {}
        for held in sorted(set(fleet.sets) - {TEST_SET, STAMPED_SET}):
            key = FeatureKey(dataset, print_, f"{held} {fleet.fingerprints[held]}")
            rows = fleet.owned if held == "train" else np.arange(fleet.sets[held])
            encode = partial(
                encode_rows,
                fleet,
                held,
                spec,
                shape,
                partial(say_progress, say, f"encoding {held} with {name}"),
            )
            features[held] = complete_features(store, key, rows, fleet.sets[held], encode)
        fleet.share_features(name, features)
    fleet.costs.take()


def say_progress(say: Say, what: str, done: str) -> None:
    say(f"{what}: {done}")


def complete_features(
    store: FeatureStore,
    key: FeatureKey,
    rows: NDArray[np.int64],
    total: int,
    encode: Callable[..., Features],
) -> Features:
    """The stored features with these rows among them; rows that nobody has needed yet are nan."""
    found = store.get(key)
    missing = rows if found is None else rows[np.isnan(found[rows, 0])]
    if found is not None and not len(missing):
        return found
    new = encode(rows=missing)
    whole = np.full((total, new.shape[1]), np.nan, np.float32) if found is None else np.array(found)
    whole[missing] = new
    store.put(key, whole)
    return whole


def encode_rows(
    fleet: BaseFleet,
    held: str,
    spec: Any,
    shape: tuple[int, int, int],
    say: Say,
    rows: NDArray[np.int64],
) -> Features:
    """Some rows of one named set, a handful of parts at a time."""
    parts = slice_rows(len(rows), PART)
    done = [np.zeros((0, 0), np.float32)]
    for start in range(0, len(parts), PARTS_AT_ONCE):
        each = {
            SERVER - i: {"rows": rows[part]}
            for i, part in enumerate(parts[start : start + PARTS_AT_ONCE])
        }
        got = fleet.map(
            encode_part, each, each=each, images=fleet.held_set(held), spec=spec, shape=shape
        )
        for task in sorted(each, reverse=True):
            found = np.array(fleet.get(got.mean({task: 1.0})))
            done.append(found.reshape(len(each[task]["rows"]), -1))
        say(f"{sum(map(len, done))}/{len(rows)}")
    return np.concatenate(done[1:]) if len(done) > 1 else done[0]
