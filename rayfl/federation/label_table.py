"""Labels out of a table, such as corrected ones: they take the place of those that a scenario
gives, in memory alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from rayfl.component import component
from rayfl.errors import DataError, broken, suggest_nearest
from rayfl.federation.arrays import Ints, Strings
from rayfl.federation.names import SampleRegister, find_places
from rayfl.federation.paths import AbsolutePath

if TYPE_CHECKING:
    from rayfl.federation.scenario import Scenario

_FILES = ("labels.parquet", "labels.csv")


@component
class LabelTable:
    """Labels by `file` (or `id`, the row of the training set) and `label`, a class's name or, where
    none is called so, its number.

    Every sample of a client has a row. Other training samples may have one, and test images, of
    which nothing is taken.

    table  a CSV or Parquet file, or a folder with `labels.parquet` or `labels.csv`
    over   what the labels of the data are: `true`, the truth, or `given`, what somebody wrote
    """

    table: AbsolutePath
    over: Literal["true", "given"] | None = None

    def find(self) -> Path:
        """The file."""
        if not self.table.exists():
            rule = f"labels: {self.table} is a table, or a folder with {' or '.join(_FILES)}"
            raise DataError(broken(rule, "nothing there", "Correct the path"))
        if not self.table.is_dir():
            return self.table
        for name in _FILES:
            if (self.table / name).is_file():
                return self.table / name
        rule = f"{self.table}: a folder of labels has {' or '.join(_FILES)}"
        raise DataError(broken(rule, "neither", "Name the file itself"))


def replace_labels(
    scenario: Scenario,
    labels: LabelTable,
    register: SampleRegister,
) -> Scenario:
    """The same federation with the labels of a table; nobody meant a rate of them to be wrong.

    Parameters
    ----------
    scenario
        Who owns what; it stays as it is.
    labels
        The table.
    register
        What the images are called.
    """
    path = labels.find()
    rows, columns = register.read_rows(path, ("label",))
    classes = _number_labels(path, columns["label"], scenario.classes)
    trained = rows >= 0
    told = np.zeros(len(scenario.owner), dtype=np.bool_)
    told[rows[trained]] = True
    _refuse_missing(path, np.flatnonzero((scenario.owner >= 0) & ~told), scenario)
    given = scenario.given.copy()
    given[rows[trained]] = classes[trained]
    unknown = np.full(scenario.clients, np.nan)
    return dataclasses.replace(scenario, given=given, nominal=unknown, replaced=scenario.given)


def _number_labels(
    path: Path,
    told: Strings,
    classes: tuple[str, ...],
) -> Ints:
    """The class of each row: by name, or by number where no class has such a name."""
    numbers = find_places(np.array(classes, dtype=np.str_), told)
    if (numbers < 0).all():
        numbers = find_places(np.arange(len(classes)).astype(np.str_), told)
    strangers = np.flatnonzero(numbers < 0)
    if len(strangers):
        first = str(told[strangers[0]])
        rule = f"{path}: column 'label' has the {len(classes)} classes of the data"
        found = f"'{first}' in row {strangers[0]}"
        raise DataError(broken(rule, found, suggest_nearest(first, classes)))
    return numbers


def _refuse_missing(
    path: Path,
    rows: Ints,
    scenario: Scenario,
) -> None:
    if len(rows):
        first = scenario.name_samples(rows[:1])[0]
        rule = f"{path}: a label for every sample of the clients ({(scenario.owner >= 0).sum()})"
        raise DataError(broken(rule, f"none for {len(rows)} of them, first '{first}'"))
