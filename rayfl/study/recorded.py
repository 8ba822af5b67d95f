"""The studies as the ledger has them: no runs of one's own, nothing to compute."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rayfl.errors import DataError, broken
from rayfl.ledger.ledger import Ledger
from rayfl.ledger.rows import Row
from rayfl.study.gather import gather_recorded
from rayfl.study.order import StudyOrder
from rayfl.study.result import CellResult, StudyResult


@dataclass(frozen=True)
class RecordedStudy:
    """One study at one scale, precision and set of overrides: what may stand in one table."""

    order: StudyOrder
    result: StudyResult
    """Cells that have figures, in the order of the study."""
    rows: tuple[Row, ...]
    """Those that the figures come from."""
    outdated: int = 0
    """Rows of settings that the study does not have any more."""

    @property
    def grade(self) -> str:
        """`fp32`, `fp32, scale 0.1`, and what else was changed."""
        (precision,) = {row.precision for row in self.rows}
        scaled = f", scale {self.order.scale:g}" if self.order.scale != 1 else ""
        changed = f", {' '.join(self.order.overrides)}" if self.order.overrides else ""
        return f"{precision}{scaled}{changed}"

    @property
    def is_comparable(self) -> bool:
        """Whether its levels can stand beside printed ones."""
        return self.order.scale == 1 and not self.order.overrides


def list_recorded(ledger: Ledger, name: str | None = None) -> list[RecordedStudy]:
    """Every recorded study, or the tables of one; rows of different precision are kept apart."""
    names = ledger.studies() if name is None else [name]
    return [found for each in names for found in _list_variants(ledger, each)]


def _list_variants(ledger: Ledger, name: str) -> Iterator[RecordedStudy]:
    rows = ledger.of_study(name)
    variants: dict[tuple[float, tuple[str, ...]], list[Row]] = {}
    for row in rows:
        variants.setdefault((row.scale, row.overrides), []).append(row)
    # The whole study comes first.
    for (scale, overrides), ours in sorted(variants.items(), key=lambda item: (-item[0][0], item)):
        order = StudyOrder(
            find_study_file(ledger.root, ours[-1]),
            seeds=tuple(sorted({row.seed for row in ours})),
            scale=scale,
            overrides=overrides,
            root=ledger.root,
        )
        yield from _split_precisions(order, ledger, ours)


def find_study_file(root: Path, row: Row) -> Path:
    """The file of a row's study, which must be there to tell its cells."""
    path = root / row.file
    if not path.is_file():
        rule = "the studies of a ledger lie in its checkout"
        remedy = f"Put the file back, or take {row.study}.csv away."
        raise DataError(broken(rule, path, remedy))
    return path


def _split_precisions(
    order: StudyOrder, ledger: Ledger, recorded: Sequence[Row]
) -> Iterator[RecordedStudy]:
    """One table a precision: an axis may vary it, and its choices still are not of one table."""
    result = gather_recorded(order, ledger)
    found = [row for cell in result.cells for row in cell.rows.values()]
    known = {(row.digest, row.rounds) for row in found}
    outdated = sum((row.digest, row.rounds) not in known for row in recorded)
    for precision in sorted({row.precision for row in found}, reverse=True):
        cells = [cell for cell in result.cells if _is_of(cell, precision, result)]
        rows = tuple(row for row in found if row.precision == precision)
        part = replace(result, cells=cells)
        yield RecordedStudy(order, part, rows, outdated)


def _is_of(cell: CellResult, precision: str, result: StudyResult) -> bool:
    """Whether a cell has figures, all of them from runs of this precision."""
    if not any(value.n for value in cell.scores.values()):
        return False
    parts = [cell] if cell.kind == "run" else _find_parts(cell, result)
    return {row.precision for part in parts for row in part.rows.values()} == {precision}


def _find_parts(cell: CellResult, result: StudyResult) -> list[CellResult]:
    """The cells that a computed one stands on."""
    for axis, name in cell.choices.items():
        parts = result.study.axes[axis][name].parts
        if parts:
            found = [result.at(**{**cell.choices, axis: part}) for part in parts]
            return [part for part in found if part is not None]
    return []
