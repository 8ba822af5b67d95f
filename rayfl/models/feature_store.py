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

from rayfl.arrays import Features
from rayfl.errors import StorageError, broken

_log = logging.getLogger(__name__)

_HASHED_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class FeatureKey:
    """Whose features: the dataset's sha256, the encoder's fingerprint and which view of the images
    was encoded."""

    dataset: str
    encoder: str
    view: str = "train"

    @property
    def digest(self) -> str:
        """The name of the files."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()


class FeatureStore:
    """A folder of `.npy` arrays, each with a small JSON file that says what it holds and what its
    hash is.

    Parameters
    ----------
    root
        The folder; it is made when something is put into it.
    """

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    def get(self, key: FeatureKey) -> Features | None:
        """The features under `key`, memory-mapped and read-only; None if there are none, or
        (logged) if the files are damaged."""
        array, note = self._name_files(key)
        if not note.is_file():
            return None
        try:
            return _map_verified(array, note)
        except (OSError, ValueError, KeyError) as reason:
            message = "features of %s are not used and must be computed again: %s"
            _log.warning(message, array, reason)
            return None

    def put(self, key: FeatureKey, features: Features) -> Path:
        """Write `features` under `key` so that a reader finds all of them or none; returns the
        array's path."""
        if features.dtype != np.float32 or features.ndim != 2:
            got = f"{features.dtype} {features.shape}"
            raise StorageError(broken("features are float32, one row a sample", got))
        array, note = self._name_files(key)
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            _write_atomically(array, lambda file: np.save(file, features))
            facts = {
                **asdict(key),
                "rows": len(features),
                "dim": features.shape[1],
                "sha256": _hash_file(array),
            }
            text = json.dumps(facts, indent=1)
            # After the array: a note says that what it is about is there.
            _write_atomically(note, lambda file: file.write(text.encode()))
        except OSError as error:
            rule = "features must be written to the cache"
            remedy = "Free some space or choose another cache folder"
            raise StorageError(broken(rule, f"{array}: {error}", remedy)) from error
        return array

    def _name_files(self, key: FeatureKey) -> tuple[Path, Path]:
        stem = self.root / key.digest
        return stem.with_suffix(".npy"), stem.with_suffix(".json")


def slice_rows(count: int, size: int) -> list[slice]:
    """Consecutive slices of at most `size` rows that cover `count` rows."""
    starts = range(0, count, size)
    return [slice(start, min(start + size, count)) for start in starts]


def _map_verified(array: Path, note: Path) -> Features:
    """Map the array, after its hash has been found to be the one noted; a ValueError tells what is
    wrong."""
    facts = json.loads(note.read_text())
    found = _hash_file(array)
    noted = str(facts["sha256"])
    if found != noted:
        raise ValueError(f"sha256 is {found[:12]}, noted was {noted[:12]}")
    features: Features = np.load(array, mmap_mode="r", allow_pickle=False)
    rows, dim = facts["rows"], facts["dim"]
    if features.dtype != np.float32 or features.shape != (rows, dim):
        shape = f"{features.dtype} {features.shape}"
        raise ValueError(f"holds {shape}, noted was {rows} x {dim}")
    return features


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_HASHED_AT_ONCE):
            digest.update(block)
    return digest.hexdigest()


def _write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write beside the target and rename: a crash leaves the old file or the new one."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
            file.flush()
            # Without it the rename may reach the disk before the content does.
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
