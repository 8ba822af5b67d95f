"""The human labels of CIFAR-10N and CIFAR-100N (Wei et al. 2022), as their authors publish them
(`.pt`) or in Parquet.

Rows follow the order of CIFAR's training images, which `check_clean_labels` holds them to.
"""

from __future__ import annotations

import codecs
import io
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.errors import ConfigError, DataError, broken, suggest_nearest
from rayfl.federation.arrays import Ints
from rayfl.federation.decoding import describe_damage, refuse_undecodable
from rayfl.regular_files import open_regular, read_regular

_MOST_BYTES = 100_000_000

_COLUMNS = {
    "worse": "worse_label",
    "aggregate": "aggre_label",
    "random1": "random_label1",
    "random2": "random_label2",
    "random3": "random_label3",
    "fine": "noisy_label",
    "noisy": "noisy_label",
}
_CLEAN = "clean_label"


def read_human_labels(path: Path, key: str) -> tuple[Ints, Ints]:
    """(clean, noisy) labels of the training images.

    Parameters
    ----------
    path
        The authors' `.pt` file, or a Parquet copy.
    key
        Whose labels: worse, aggregate, random1..3 (CIFAR-10N), fine or noisy (CIFAR-100N). A
        column's own name, such as `worse_label`, is a key too.
    """
    column = _COLUMNS.get(key, key)
    if column not in _COLUMNS.values():
        rule = f"human labels are called {', '.join(_COLUMNS)}"
        raise ConfigError(broken(rule, repr(key), suggest_nearest(key, _COLUMNS)))
    if not path.is_file():
        rule = f"human labels need the file {path}"
        remedy = (
            "Put CIFAR-10_human.pt or CIFAR-100_human.pt of the CIFAR-N authors there, "
            "or a Parquet copy"
        )
        raise DataError(broken(rule, "no such file", remedy))
    read = _read_parquet_columns if path.suffix == ".parquet" else _read_torch_columns
    columns = read(path)
    for needed in (_CLEAN, column):
        if needed not in columns:
            rule = f"{path} must have the labels {needed}"
            raise DataError(broken(rule, f"only {', '.join(sorted(columns))}"))
    clean = _take_whole_numbers(path, columns, _CLEAN)
    noisy = _take_whole_numbers(path, columns, column)
    if clean.shape != noisy.shape:
        rule = f"{path}: {key} and clean labels are equally many"
        raise DataError(broken(rule, f"{noisy.shape} {clean.shape}"))
    return clean, noisy


def check_clean_labels(
    clean: Ints,
    labels: Ints,
    path: Path | str = "the human labels",
) -> None:
    """Refuse human labels that belong to other images or to another order of them.

    Parameters
    ----------
    clean
        The clean column beside the human labels.
    labels
        The images' own labels.
    path
        What the refusal calls the human labels.
    """
    remedy = "These labels belong to other images or to another order of them (TFDS shuffles CIFAR)"
    # Told apart from a mismatch: it usually means the labels of the test set, or of a subset.
    if len(clean) != len(labels):
        rule = f"{path} must label the {len(labels)} training images"
        raise DataError(broken(rule, f"{len(clean)} rows", remedy))
    wrong = np.flatnonzero(clean != labels)
    if len(wrong):
        at = int(wrong[0])
        rule = f"the clean labels of {path} must equal the images' labels"
        first = f"the first at position {at}: {clean[at]} where the image has {labels[at]}"
        raise DataError(broken(rule, f"{len(wrong)} that differ, {first}", remedy))


def _read_torch_columns(path: Path) -> dict[str, Any]:
    """The published mapping of arrays; nothing in the file is run."""
    import torch

    try:
        content = io.BytesIO(read_regular(path, _MOST_BYTES))
        with torch.serialization.safe_globals(_list_array_globals()):
            found = torch.load(content, weights_only=True)
    # Damaged bytes fail with almost any exception.
    except Exception as error:
        # Its later sentences tell people to load the file unsafely.
        reason = describe_damage(error).split(". ")[0]
        rule = f"{path} must be a whole .pt file of arrays"
        raise DataError(broken(rule, reason, "Fetch it again")) from error
    if not isinstance(found, dict):
        raise DataError(broken(f"{path} must hold a mapping of label arrays", type(found).__name__))
    return found


def _list_array_globals() -> list[Any]:
    """What a pickled numpy array names, under the old and the new address of numpy's private
    module."""
    rebuild: Any = np.zeros(0).__reduce__()[0]
    addresses = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
    # Kinds of whole numbers, and floats: those are refused later, with a message that says so.
    kinds = (np.int8, np.uint8, np.int32, np.int64, np.float64)
    dtypes = [type(np.dtype(kind)) for kind in kinds]
    return [*addresses, np.ndarray, np.dtype, codecs.encode, *dtypes]


def _read_parquet_columns(path: Path) -> dict[str, Any]:
    import pyarrow.parquet as pq

    with (
        refuse_undecodable(f"{path} must be a whole Parquet file", "Fetch it again"),
        open_regular(path) as file,
    ):
        table = pq.read_table(file)
        return {name: table.column(name).to_numpy() for name in table.column_names}


def _take_whole_numbers(
    path: Path,
    columns: dict[str, Any],
    name: str,
) -> Ints:
    with refuse_undecodable(f"{path}: {name} is one row of whole numbers"):
        found = np.asarray(columns[name])
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.integer):
        rule = f"{path}: {name} is one row of whole numbers"
        raise DataError(broken(rule, f"{found.dtype} {found.shape}"))
    return found.astype(np.int64)
