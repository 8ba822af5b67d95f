"""A split that a table tells: which samples are the server's, sample by sample."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.names import SampleRegister


def read_told_sets(
    path: Path,
    register: SampleRegister | None,
    known: tuple[str, ...],
) -> dict[str, Ints]:
    """The sorted training rows of each set that a table names in its column `set`.

    Parameters
    ----------
    path
        A CSV or Parquet file with `file` or `id`, and `set`.
    register
        What the samples are called.
    known
        The names that a set can have.
    """
    assert register is not None, "a table of sets needs the names of the samples"
    rows, columns = register.read_rows(path, ("set",))
    told = columns["set"]
    strangers = np.setdiff1d(told, np.array(known, dtype=np.str_))
    if len(strangers):
        rule = f"{path}: column 'set' is one of {', '.join(known)}"
        raise DataError(broken(rule, repr(str(strangers[0]))))
    # The test set is the data's own; a table may list its images without changing it.
    trained = rows >= 0
    return {name: np.sort(rows[trained & (told == name)]) for name in known}
