"""Small snapshots of a run, written and read without a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from rayfl.errors import StorageError
from rayfl.run.checkpoint import CheckpointStore, Snapshot


class Entry:
    """Stands for a reference: equal values are still different entries."""

    def __init__(self, value: Any) -> None:
        self.value = value


def snapshot(
    round_: int, clients: Mapping[int, Mapping[str, Any]] | None = None, digest: str = "mine"
) -> Snapshot:
    state = {"model": np.full(4, float(round_)), "note": (round_, "text")}
    history = [{"round": t + 1, "metrics": {"loss": 1 / (t + 1)}} for t in range(round_)]
    return Snapshot(round_, state, clients or {}, history, {"digest": digest})


def write(store: CheckpointStore, what: Snapshot) -> list[str]:
    """Write, and tell which entries were fetched for it."""
    fetched: list[str] = []

    def fetch(entry: Entry) -> Any:
        fetched.append(str(entry.value))
        return entry.value

    store.write(what, fetch, lambda value: value)
    return fetched


def restored(store: CheckpointStore, manifest: Mapping[str, Any], digest: str = "mine") -> Snapshot:
    if manifest["meta"]["digest"] != digest:
        raise StorageError(
            f"a checkpoint belongs to this run ({digest}); got {manifest['meta']['digest']}"
        )
    state, history = store.state(manifest, set(), lambda value: value)
    clients = {
        int(client): {
            key: store.entry(int(client), key, named, Entry) for key, named in entries.items()
        }
        for client, entries in manifest["clients"].items()
    }
    return Snapshot(manifest["round"], state, clients, history, manifest["meta"])


def newest(store: CheckpointStore, digest: str = "mine") -> Snapshot | None:
    return store.newest(lambda manifest: restored(store, manifest, digest))
