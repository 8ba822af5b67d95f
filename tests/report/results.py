"""Results of studies made by hand, for tests of what is done with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rayfl.run.store import Record
from rayfl.study.result import CellResult, Kind, StudyResult, Value
from rayfl.study.schema import Choice, Score, Study, TableLayout

Figures = tuple[Sequence[float], float | None]
"""Ours, one a seed, and the printed one."""


def value(ours: Sequence[float], printed: float | None = None, lower: bool = False) -> Value:
    seeds = tuple(range(len(ours)))
    bare = Value("accuracy (%)", tuple(ours), seeds, lower_is_better=lower)
    if printed is None:
        return bare
    return replace(bare, printed=f"{printed:.2f}", printed_value=printed)


def cell(
    choices: Mapping[str, str],
    ours: Sequence[float] = (),
    printed: float | None = None,
    kind: Kind = "run",
    records: Sequence[Record] = (),
    **more: Any,
) -> CellResult:
    lower = more.pop("lower", False)
    scores = {"accuracy": value(ours, printed, lower)}
    titles = {axis: name.upper() for axis, name in choices.items()}
    return CellResult(
        choices, titles, kind, dict(enumerate(records)), scores, command="rayfl study x", **more
    )


def result(
    cells: Sequence[CellResult], layout: TableLayout | None = None, **more: Any
) -> StudyResult:
    """The study that has these cells, its axes in the order of the first one's choices."""
    axes: dict[str, dict[str, Choice]] = {axis: {} for axis in cells[0].choices}
    for each in cells:
        for axis, name in each.choices.items():
            axes[axis].setdefault(name, Choice(title=each.titles[axis]))
    others = [axis for axis in axes if axis != "method"]
    table = layout or TableLayout(
        rows=["method"] if "method" in axes else others[:1], columns=others
    )
    scores = {"accuracy": Score(title="accuracy (%)", percent=True)}
    study = Study(
        title=more.pop("title", "A & B"),
        axes=axes,
        scores=scores,
        table=table,
        **more.pop("study", {}),
    )
    return StudyResult("by_hand", study, cells, **more)


def grid(figures: Mapping[str, Mapping[str, Figures]]) -> StudyResult:
    """`{method: {dataset: (ours, printed)}}` as a result."""
    return result([
        cell({"method": method, "dataset": dataset}, *pair)
        for method, columns in figures.items()
        for dataset, pair in columns.items()
    ])  # fmt: skip


def record(folder: Path, accuracies: Sequence[float] = (0.5,), **more: Any) -> Record:
    """A finished run with this history; `arrays` are put in its hand."""
    arrays = more.pop("arrays", {})
    metrics = more.pop("metrics", {})
    history = [
        {"round": t, "metrics": {"test/accuracy": a, **metrics}, "clock": {}}
        for t, a in enumerate(accuracies, 1)
    ]
    config = more.pop("config", {"seed": 0, "method": {"name": "fedavg"}})
    made = Record(
        folder,
        "d" * 64,
        more.pop("scenario", "s" * 64),
        len(history),
        "m" * 64,
        history,
        more.pop("facts", {}),
    )
    made.__dict__["arrays"] = arrays
    made.__dict__["config"] = config
    return made
