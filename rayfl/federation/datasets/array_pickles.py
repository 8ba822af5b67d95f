"""Pickles that hold arrays, lists and strings, read without running anything that a pickle could
ask for."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.federation.datasets.on_disk import damaged_file, refuse_damage
from rayfl.regular_files import read_regular

# The helper has moved between numpy's private modules; every array names the one of the installed
# version.
_RECONSTRUCT: Any = np.zeros(0).__reduce__()[0]
_ALLOWED: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy._core.multiarray._reconstruct": _RECONSTRUCT,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": np.dtype,
    # How protocol 2 spells bytes.
    "_codecs.encode": lambda text, encoding: _encode_latin1(text, encoding),
}
_MOST_BYTES = 1 << 30
_RULE = "a whole pickle of arrays and lists, and of nothing that runs"


def _encode_latin1(text: str, encoding: str) -> bytes:
    """The one encoding that is meant: others run for hours on texts that are made for it."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding[:20]!r}")
    return text.encode("latin1")


class _ArrayUnpickler(pickle.Unpickler):
    """Knows numpy arrays and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        """The object that the name in the pickle stands for: one of the few that are allowed."""
        found = _ALLOWED.get(f"{module}.{name}")
        if found is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return found


def read_pickle(
    file: Path,
    dataset: str = "",
    most_bytes: int = _MOST_BYTES,
) -> dict[str, Any]:
    """The mapping in a pickle of Python 2 or 3, with its keys as text.

    Parameters
    ----------
    file
        The pickle.
    dataset
        The name under which `rayfl data get` fetches a damaged file again.
    most_bytes
        How large the file may be.
    """
    with refuse_damage(file, _RULE, dataset):
        content = read_regular(file, most_bytes)
        # Latin 1 maps every byte to one character: the strings of Python 2 survive, arrays come out
        # as bytes.
        found = _ArrayUnpickler(io.BytesIO(content), encoding="latin1").load()
        if not isinstance(found, dict):
            raise damaged_file(file, "a pickled mapping", type(found).__name__, dataset)
        return {_decode_key(key): value for key, value in found.items()}


def _decode_key(key: Any) -> str:
    return key.decode() if isinstance(key, bytes) else str(key)
