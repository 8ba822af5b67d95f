"""Encoded datasets on disk: computed once per dataset, encoder and view, then memory-mapped."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from rayfl.errors import StorageError, broken

Features = NDArray[np.float32]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FeatureKey:
    """Whose features: the dataset's sha256, the encoder's fingerprint and which view of the images
    was encoded."""

    dataset: str
    encoder: str
    view: str = "train"

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


class FeatureStore:
    """A folder of `.npy` arrays, each with a small JSON file that says what it holds and what its
    hash is."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def get(self, key: FeatureKey) -> Features | None:
        """The features, memory-mapped and read-only; None if there are none, or (logged) if the
        files are damaged."""
        array, note = self._files(key)
        if not note.is_file():
            return None
        try:
            return _map_verified(array, note)
        except (OSError, ValueError, KeyError) as reason:
            _log.warning(
                "features of %s are not used and must be computed again: %s", array, reason
            )
            return None

    def put(self, key: FeatureKey, features: Features) -> Path:
        """Write the features so that a reader finds all of them or none; returns the array's
        path."""
        if features.dtype != np.float32 or features.ndim != 2:
            got = f"{features.dtype} {features.shape}"
            raise StorageError(broken("features are float32, one row a sample", got))
        array, note = self._files(key)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            _write_atomically(array, lambda file: np.save(file, features))
            facts = {
                **asdict(key),
                "rows": len(features),
                "dim": features.shape[1],
                "sha256": _hash_file(array),
            }
            _write_atomically(note, lambda file: file.write(json.dumps(facts, indent=1).encode()))
        except OSError as error:
            remedy = "Free some space or choose another cache folder"
            raise StorageError(
                broken("features must be written to the cache", f"{array}: {error}", remedy)
            ) from error
        return array

    def _files(self, key: FeatureKey) -> tuple[Path, Path]:
        stem = self.root / key.digest
        return stem.with_suffix(".npy"), stem.with_suffix(".json")


def chunks(count: int, size: int) -> list[slice]:
    """Consecutive slices of at most `size` rows that cover `count` rows."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _map_verified(array: Path, note: Path) -> Features:
    """Map the array, after its hash has been found to be the one noted; a ValueError tells what is
    wrong."""
    facts = json.loads(note.read_text())
    found = _hash_file(array)
    if found != facts["sha256"]:
        raise ValueError(f"sha256 is {found[:12]}, noted was {str(facts['sha256'])[:12]}")
    features: Features = np.load(array, mmap_mode="r", allow_pickle=False)
    if features.dtype != np.float32 or features.shape != (facts["rows"], facts["dim"]):
        raise ValueError(
            f"holds {features.dtype} {features.shape}, noted was {facts['rows']} x {facts['dim']}"
        )
    return features


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def _write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write beside the target and rename: a crash leaves the old file or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
