"""What figures are drawn from, panels of groups of repeated runs; what comes out, drawings or why
there are none."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.report.chart import Chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rayfl.config.schema import Config
    from rayfl.federation.dataset import Dataset
    from rayfl.federation.scenario import Scenario
    from rayfl.run.store import Record
    from rayfl.study.result import StudyResult

MOST_NAME_LETTERS = 60


class NoData(Exception):
    """The runs do not hold what a figure shows; the text says what is missing."""


@dataclass(frozen=True)
class Group:
    """The repetitions of one setting: one line of a figure."""

    title: str
    records: Sequence[Record]
    style: int = 0
    """Colour, dash and marker: one number for a method in all panels of a report."""

    @property
    def first(self) -> Record:
        """The repetition that figures of single runs show."""
        return self.records[0]


@dataclass(frozen=True)
class Panel:
    """Groups that belong into one figure: they differ in the method alone."""

    title: str
    groups: Sequence[Group]


@dataclass(frozen=True)
class Drawing:
    """One figure of the report: a chart of lines, or any figure, or the file that a run has
    left."""

    name: str
    title: str
    caption: str
    alt: str
    chart: Chart | None = None
    figure: Figure | None = None
    image: bytes | None = None
    rows: Sequence[Mapping[str, Any]] = field(default_factory=list)
    """Numbers behind the figure, where they are a table of their own."""


def iterate_groups(panels: Sequence[Panel]) -> Iterator[tuple[str, Group]]:
    """Every group with the title of its panel."""
    for panel in panels:
        for group in panel.groups:
            yield panel.title, group


def iterate_records(result: StudyResult) -> Iterator[tuple[str, int, Record]]:
    """Every finished run with its title, which names the axes that differ, and its seed."""
    axes = [axis for axis in result.study.axes if len(result.used(axis)) > 1]
    for cell in result.cells:
        title = ", ".join(cell.titles[axis] for axis in axes) or result.study.title
        for seed, record in sorted(cell.records.items()):
            yield title, seed, record


def join_titles(*parts: str) -> str:
    """Titles put together; empty ones leave no comma."""
    return ", ".join(filter(None, parts))


def make_slug(text: str) -> str:
    """A title as part of a file name."""
    words = re.sub(r"[^a-z0-9]+", "_", text.lower())
    return words.strip("_")[:MOST_NAME_LETTERS]


def make_name(kind: str, title: str) -> str:
    """The name of a drawing: what it is, and of what where there are several."""
    return f"{kind}_{make_slug(title)}".rstrip("_")


# -- what runs have left ---------------------------------------------------------------------------


def read_array(record: Record, name: str) -> NDArray[Any] | None:
    """An array that a run has left, in whichever file."""
    if name in record.arrays:
        return record.arrays[name]
    path = record.directory / "figures" / f"{name}.npy"
    return np.load(path, allow_pickle=False) if path.exists() else None


def read_picture(record: Record, name: str) -> bytes | None:
    """A figure that a run has drawn itself."""
    path = record.directory / "figures" / f"{name}.png"
    return path.read_bytes() if path.exists() else None


def read_config(record: Record) -> Config:
    """The configuration of a run as it was; where it wrote to does not matter any more."""
    from rayfl.config.schema import validate_config

    return validate_config(record.config, str(record.directory / "config.yaml"))


def open_run_federation(record: Record) -> tuple[Config, Dataset, Scenario]:
    """The configuration of a run with its data. The last federation is kept, for many figures are
    of one."""
    from rayfl.federation.scenario import open_federation

    config = read_config(record)
    if record.scenario not in _OPENED:
        _OPENED.clear()
        _OPENED[record.scenario] = open_federation(config, config.seeds_for("data"))
    return config, *_OPENED[record.scenario]


_OPENED: dict[str, tuple[Dataset, Scenario]] = {}
"""The federation that was opened last, by its scenario's hash."""
