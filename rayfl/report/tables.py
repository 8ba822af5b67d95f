"""A study's table: what goes where, which figure is the best, and whether the methods rank as they
do in the paper."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from rayfl.study.result import CellResult, StudyResult, Value

SCORE = "score"
MOST_COLUMNS = 12
"""More columns than this go into several tables, where an axis can be taken out of them."""
MOST_NAMED = 3
Key = tuple[str, ...]
"""Names of choices, one an axis."""


@dataclass(frozen=True)
class Slot:
    """One score of one cell, at its place in the table."""

    cell: CellResult
    score: str
    best: bool = False
    """Whether ours is the best among the cells that it is compared with."""
    printed_best: bool = False

    @property
    def value(self) -> Value:
        return self.cell.scores[self.score]


@dataclass(frozen=True)
class Agreement:
    """How the order of methods that we find goes with the printed one, among cells that differ in
    the method alone."""

    title: str
    methods: int
    kendall: float
    spearman: float
    concordant: int
    pairs: int


@dataclass(frozen=True)
class Table:
    """Rows by columns; a place without a cell is absent from `slots`."""

    title: str
    row_axes: Key
    column_axes: Key
    rows: Sequence[Key]
    columns: Sequence[Key]
    slots: Mapping[tuple[Key, Key], Slot]
    titles: Mapping[tuple[str, str], str]
    """What a reader calls a choice of an axis."""
    constant: Sequence[str]
    """Titles of choices that every cell shares."""

    @cached_property
    def printed(self) -> bool:
        """Whether there is anything to compare with."""
        return any(slot.value.printed for slot in self.slots.values())

    @property
    def width(self) -> int:
        """Columns of one slot: ours, and where there is anything printed that and the
        difference."""
        return 3 if self.printed else 1

    def parts(self) -> list[Table]:
        """The table, or as few narrower ones as will do: one for each choice of an axis across."""
        if len(self.columns) * self.width <= MOST_COLUMNS or len(self.column_axes) < 2:
            return [self]
        counts = [len({column[i] for column in self.columns}) for i in range(len(self.column_axes))]
        enough = [
            count for count in counts if len(self.columns) * self.width <= count * MOST_COLUMNS
        ]
        axis = counts.index(min(enough, default=max(counts)))
        choices = dict.fromkeys(column[axis] for column in self.columns)
        return [part for chosen in choices for part in self._part(axis, chosen).parts()]

    def _part(self, axis: int, chosen: str) -> Table:
        """The columns of one choice, which goes from their titles into the table's."""
        slots = {
            (row, without(column, axis)): slot
            for (row, column), slot in self.slots.items()
            if column[axis] == chosen
        }
        return replace(
            self,
            title=f"{self.title}: {self.titles[self.column_axes[axis], chosen]}",
            column_axes=without(self.column_axes, axis),
            rows=[row for row in self.rows if any(row == there for there, _ in slots)],
            columns=[without(column, axis) for column in self.columns if column[axis] == chosen],
            slots=slots,
        )

    def row_titles(self, row: Key) -> list[str]:
        return [self.titles[axis, name] for axis, name in zip(self.row_axes, row, strict=True)]

    def column_title(self, column: Key) -> str:
        return ", ".join(
            self.titles[axis, name] for axis, name in zip(self.column_axes, column, strict=True)
        )

    def row_heads(self) -> list[str]:
        return [axis.replace("_", " ") for axis in self.row_axes]


def without(key: Key, place: int) -> Key:
    return key[:place] + key[place + 1 :]


def table_of(result: StudyResult) -> Table:
    """The table that the study's layout describes; what the layout does not name goes across."""
    layout = result.study.table
    axes = [*result.study.shown_axes()]
    axes += [SCORE] if SCORE not in axes else []
    across = [axis for axis in axes if axis not in layout.rows]
    row_axes, column_axes = varied(result, layout.rows), varied(result, across)
    shown = {*row_axes, *column_axes}
    slots = {
        (place(slot, row_axes), place(slot, column_axes)): slot
        for slot in marked(result, slots_of(result.cells))
    }
    return Table(
        title=result.study.title,
        row_axes=row_axes,
        column_axes=column_axes,
        rows=in_order(result, row_axes, [row for row, _ in slots]),
        columns=in_order(result, column_axes, [column for _, column in slots]),
        slots=slots,
        titles={
            (axis, name): result.title(axis, name) for axis in axes for name in result.used(axis)
        },
        constant=[
            result.title(axis, name)
            for axis in axes
            if axis not in shown
            for name in result.used(axis)
        ],
    )


def varied(result: StudyResult, axes: Sequence[str]) -> Key:
    """The axes that have several choices, or else the last one."""
    return tuple(axis for axis in axes if len(result.used(axis)) > 1) or tuple(axes[-1:])


def slots_of(cells: Iterable[CellResult]) -> list[Slot]:
    return [Slot(cell, score) for cell in cells for score in cell.scores]


def choice(slot: Slot, axis: str) -> str:
    return slot.score if axis == SCORE else slot.cell.choices[axis]


def place(slot: Slot, axes: Key) -> Key:
    return tuple(choice(slot, axis) for axis in axes)


def in_order(result: StudyResult, axes: Key, keys: Iterable[Key]) -> list[Key]:
    """Distinct keys, sorted by the study's order of choices, the first axis first."""
    ranks = [{name: rank for rank, name in enumerate(result.used(axis))} for axis in axes]
    return sorted(
        set(keys), key=lambda key: [rank[name] for rank, name in zip(ranks, key, strict=True)]
    )


# -- comparing -------------------------------------------------------------------------------------------------------


def compared_axis(result: StudyResult) -> str:
    """The axis whose choices compete: the methods, or else the last axis that goes down the
    table."""
    if "method" in result.study.axes:
        return "method"
    return [axis for axis in (*result.study.axes, *result.study.table.rows) if axis != SCORE][-1]


def rivals(result: StudyResult, slots: Iterable[Slot]) -> dict[Key, list[Slot]]:
    """Slots that differ in the compared axis alone, by everything else."""
    fixed = tuple(axis for axis in (*result.study.axes, SCORE) if axis != compared_axis(result))
    groups: dict[Key, list[Slot]] = {}
    for slot in slots:
        if slot.cell.kind != "difference":
            groups.setdefault(place(slot, fixed), []).append(slot)
    return groups


def marked(result: StudyResult, slots: list[Slot]) -> list[Slot]:
    """The slots, with the best of each group of rivals marked; one alone is not the best of
    anything."""
    best: dict[str, set[int]] = {"mean": set(), "printed_value": set()}
    for group in rivals(result, slots).values():
        for name, chosen in best.items():
            known = {id(slot): getattr(slot.value, name) for slot in group}
            known = {which: value for which, value in known.items() if math.isfinite(value)}
            if len(known) > 1:
                pick = min if group[0].value.lower_is_better else max
                top = pick(known.values())
                chosen.update(which for which, value in known.items() if value == top)
    return [
        Slot(slot.cell, slot.score, id(slot) in best["mean"], id(slot) in best["printed_value"])
        for slot in slots
    ]


def agreements(result: StudyResult) -> list[Agreement]:
    """Rank agreement within each group of rivals that has at least two methods with both figures;
    the last is of all.

    Overall, Kendall's tau and Spearman's rho are means over the groups, weighted by their pairs of
    methods."""
    fixed = [axis for axis in (*result.study.axes, SCORE) if axis != compared_axis(result)]
    found = []
    for key, group in rivals(result, slots_of(result.cells)).items():
        names = [
            (axis, name)
            for axis, name in zip(fixed, key, strict=True)
            if len(result.used(axis)) > 1
        ]
        title = ", ".join(result.title(axis, name) for axis, name in names) or "all cells"
        pairs = [(slot.value.mean, slot.value.printed_value) for slot in group]
        known = [pair for pair in pairs if all(map(math.isfinite, pair))]
        if len(known) > 1:
            found.append(agreement(title, known))
    return [*found, overall(found)] if len(found) > 1 else found


def agreement(title: str, pairs: Sequence[tuple[float, float]]) -> Agreement:
    """Kendall's tau-b and Spearman's rho of ours and printed; nan where one side does not differ at
    all."""
    from scipy.stats import kendalltau, spearmanr

    ours, printed = (np.array(side) for side in zip(*pairs, strict=True))
    differ = len(set(ours.tolist())) > 1 and len(set(printed.tolist())) > 1
    first, second = np.triu_indices(len(pairs), 1)
    signs = np.sign(ours[first] - ours[second]) * np.sign(printed[first] - printed[second])
    tau, rho = (
        float(of(ours, printed).statistic) if differ else math.nan for of in (kendalltau, spearmanr)
    )
    return Agreement(title, len(pairs), tau, rho, int((signs > 0).sum()), len(signs))


def overall(found: Sequence[Agreement]) -> Agreement:
    known = [each for each in found if math.isfinite(each.kendall)]
    weights = [each.pairs for each in known]
    tau, rho = (
        float(np.average([getattr(each, name) for each in known], weights=weights))
        if known
        else math.nan
        for name in ("kendall", "spearman")
    )
    sums = (
        sum(getattr(each, name) for each in found) for name in ("methods", "concordant", "pairs")
    )
    methods, concordant, pairs = sums
    return Agreement("overall", methods, tau, rho, concordant, pairs)


# -- what is not there -----------------------------------------------------------------------------------------------


def absent(result: StudyResult) -> dict[str, list[str]]:
    """Reasons why cells have no runs, each with the cells that it is true of; a method that lacks
    everywhere is named once, and one that lacks in many places is counted."""
    compared = compared_axis(result)
    every: dict[str, int] = Counter(cell.titles[compared] for cell in result.cells)
    reasons: dict[str, dict[str, list[str]]] = {}
    for cell in result.cells:
        if cell.missing and cell.kind == "run":
            by_method = reasons.setdefault(cell.missing, {})
            by_method.setdefault(cell.titles[compared], []).append(
                elsewhere(result, cell, compared)
            )
    return {
        reason: [lacking(method, places, every[method]) for method, places in found.items()]
        for reason, found in reasons.items()
    }


def lacking(method: str, places: Sequence[str], cells: int) -> str:
    """`SCAFFOLD`, `FedAvg (MNIST, IID; CIFAR-10, IID)`, or `FedAvg (7 of 9 cells)`."""
    if len(places) == cells:
        return method
    where = "; ".join(places) if len(places) <= MOST_NAMED else f"{len(places)} of {cells} cells"
    return f"{method} ({where})"


def elsewhere(result: StudyResult, cell: CellResult, compared: str) -> str:
    """What tells a cell from the others of its method."""
    return ", ".join(
        cell.titles[axis]
        for axis in cell.choices
        if axis != compared and len(result.used(axis)) > 1
    )
