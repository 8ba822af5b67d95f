"""A study's table: what goes where, and which cells are missing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rayfl.report.ranking import mark_best
from rayfl.report.slots import SCORE, TableSlot, find_compared_axis, list_slots, place_slot
from rayfl.study.result import CellResult, StudyResult
from rayfl.study.schema import ChoiceKey

MOST_COLUMNS = 12
"""More columns than this go into several tables, where an axis can be taken out of them."""
MOST_NAMED = 3


# -- the table -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Rows by columns; a place without a cell is absent from `slots`."""

    title: str
    row_axes: ChoiceKey
    column_axes: ChoiceKey
    rows: Sequence[ChoiceKey]
    columns: Sequence[ChoiceKey]
    slots: Mapping[tuple[ChoiceKey, ChoiceKey], TableSlot]
    titles: Mapping[tuple[str, str], str]
    """What a reader calls a choice of an axis."""
    constant: Sequence[str]
    """Titles of choices that every cell shares."""

    @cached_property
    def printed(self) -> bool:
        """Whether there is anything to compare with."""
        return any(slot.value.printed for slot in self.slots.values())

    @cached_property
    def bold(self) -> bool:
        """Whether anything is marked as the best."""
        return any(slot.best or slot.printed_best for slot in self.slots.values())

    @property
    def width(self) -> int:
        """Columns of one slot: ours, and where there is anything printed that and the
        difference."""
        return 3 if self.printed else 1

    def parts(self) -> list[Table]:
        """The table, or as few narrower ones as will do: one for each choice of an axis across."""
        width = len(self.columns) * self.width
        if width <= MOST_COLUMNS or len(self.column_axes) < 2:
            return [self]
        counts = [len(set(names)) for names in zip(*self.columns, strict=True)]
        enough = [count for count in counts if width <= count * MOST_COLUMNS]
        axis = counts.index(min(enough, default=max(counts)))
        choices = dict.fromkeys(column[axis] for column in self.columns)
        parts: list[Table] = []
        for chosen in choices:
            parts += self._part(axis, chosen).parts()
        return parts

    def _part(self, axis: int, chosen: str) -> Table:
        """The columns of one choice, which goes from their titles into the table's."""
        slots = {
            (row, _drop_place(column, axis)): slot
            for (row, column), slot in self.slots.items()
            if column[axis] == chosen
        }
        there = {row for row, _ in slots}
        columns = [column for column in self.columns if column[axis] == chosen]
        title = self.titles[self.column_axes[axis], chosen]
        return replace(
            self,
            title=f"{self.title}: {title}",
            column_axes=_drop_place(self.column_axes, axis),
            rows=[row for row in self.rows if row in there],
            columns=[_drop_place(column, axis) for column in columns],
            slots=slots,
        )

    def row_titles(self, row: ChoiceKey) -> list[str]:
        """What a reader calls the choices of a row."""
        return [self.titles[place] for place in zip(self.row_axes, row, strict=True)]

    def column_title(self, column: ChoiceKey) -> str:
        """What a reader calls a column."""
        titles = [self.titles[place] for place in zip(self.column_axes, column, strict=True)]
        return ", ".join(titles)

    def row_heads(self) -> list[str]:
        """The names of the axes that go down."""
        return [axis.replace("_", " ") for axis in self.row_axes]


def _drop_place(key: ChoiceKey, place: int) -> ChoiceKey:
    return key[:place] + key[place + 1 :]


def build_table(result: StudyResult) -> Table:
    """The table that the study's layout describes; what the layout does not name goes across."""
    layout = result.study.table
    axes = [*result.study.shown_axes()]
    if SCORE not in axes:
        axes.append(SCORE)
    row_axes = _find_varied_axes(result, layout.rows)
    across = [axis for axis in axes if axis not in layout.rows]
    column_axes = _find_varied_axes(result, across)
    slots = {}
    for slot in mark_best(result, list_slots(result.cells)):
        slots[place_slot(slot, row_axes), place_slot(slot, column_axes)] = slot
    choices = [(axis, name) for axis in axes for name in result.used(axis)]
    titles = {(axis, name): result.title(axis, name) for axis, name in choices}
    shown = {*row_axes, *column_axes}
    return Table(
        title=result.study.title,
        row_axes=row_axes,
        column_axes=column_axes,
        rows=_sort_keys(result, row_axes, [row for row, _ in slots]),
        columns=_sort_keys(result, column_axes, [column for _, column in slots]),
        slots=slots,
        titles=titles,
        constant=[title for (axis, _), title in titles.items() if axis not in shown],
    )


def _find_varied_axes(result: StudyResult, axes: Sequence[str]) -> ChoiceKey:
    """The axes that have several choices, or else the last one."""
    varied = tuple(axis for axis in axes if len(result.used(axis)) > 1)
    return varied or tuple(axes[-1:])


def _sort_keys(
    result: StudyResult,
    axes: ChoiceKey,
    keys: Iterable[ChoiceKey],
) -> list[ChoiceKey]:
    """Distinct keys, sorted by the study's order of choices, the first axis first."""
    orders = [result.used(axis) for axis in axes]

    def rank_key(key: ChoiceKey) -> list[int]:
        return [order.index(name) for order, name in zip(orders, key, strict=True)]

    return sorted(set(keys), key=rank_key)


# -- what is not there -----------------------------------------------------------------------------


def explain_missing(result: StudyResult) -> dict[str, list[str]]:
    """Reasons why cells have no runs, each with the cells that it is true of; a method that lacks
    everywhere is named once, and one that lacks in many places is counted."""
    compared = find_compared_axis(result)
    every = Counter(cell.titles[compared] for cell in result.cells)
    reasons: dict[str, dict[str, list[str]]] = {}
    for cell in result.cells:
        if cell.missing and cell.kind == "run":
            by_method = reasons.setdefault(cell.missing, {})
            places = by_method.setdefault(cell.titles[compared], [])
            places.append(_describe_elsewhere(result, cell, compared))
    explained = {}
    for reason, found in reasons.items():
        explained[reason] = [
            _describe_lacking(method, places, every[method]) for method, places in found.items()
        ]
    return explained


def _describe_lacking(method: str, places: Sequence[str], cells: int) -> str:
    """`SCAFFOLD`, `FedAvg (MNIST, IID; CIFAR-10, IID)`, or `FedAvg (7 of 9 cells)`."""
    if len(places) == cells:
        return method
    few = len(places) <= MOST_NAMED
    where = "; ".join(places) if few else f"{len(places)} of {cells} cells"
    return f"{method} ({where})"


def _describe_elsewhere(result: StudyResult, cell: CellResult, compared: str) -> str:
    """What tells a cell from the others of its method."""
    others = [axis for axis in cell.choices if axis != compared]
    return ", ".join(cell.titles[axis] for axis in others if len(result.used(axis)) > 1)
