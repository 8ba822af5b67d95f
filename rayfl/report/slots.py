"""The scores of cells, before they have a place in a table."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rayfl.study.result import CellResult, StudyResult, Value
from rayfl.study.schema import ChoiceKey

SCORE = "score"
"""The axis of the scores."""


@dataclass(frozen=True)
class TableSlot:
    """One score of one cell, at its place in the table."""

    cell: CellResult
    score: str
    best: bool = False
    """Whether ours is the best among the cells that it is compared with."""
    printed_best: bool = False

    @property
    def value(self) -> Value:
        """Ours and the printed figure."""
        return self.cell.scores[self.score]


def list_slots(cells: Iterable[CellResult]) -> list[TableSlot]:
    """Every score of every cell."""
    return [TableSlot(cell, score) for cell in cells for score in cell.scores]


def is_comparable(slot: TableSlot) -> bool:
    """Whether its level can stand beside a printed one: at full size."""
    return not slot.cell.scaled


def read_choice(slot: TableSlot, axis: str) -> str:
    """A slot's choice on an axis; the score is an axis, too."""
    return slot.score if axis == SCORE else slot.cell.choices[axis]


def place_slot(slot: TableSlot, axes: ChoiceKey) -> ChoiceKey:
    """A slot's choices on these axes."""
    return tuple(read_choice(slot, axis) for axis in axes)


def find_compared_axis(result: StudyResult) -> str:
    """The axis whose choices compete: the methods, or else the last axis that goes down the
    table."""
    if "method" in result.study.axes:
        return "method"
    axes = [*result.study.axes, *result.study.table.rows]
    return [axis for axis in axes if axis != SCORE][-1]
