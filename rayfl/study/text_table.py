"""The table at the end of a study, as plain text: ours beside the printed figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rayfl.study.result import CellResult, StudyResult, Value
from rayfl.study.schema import ChoiceKey

HEAD = ("ours", "printed", "difference")


class Entry(NamedTuple):
    """One score of one cell: a line of the table."""

    cell: CellResult
    score: str
    value: Value


def format_table(result: StudyResult) -> str:
    """A block for each column of the paper's table, a line for each of its rows."""
    return "\n".join(_format_lines(result))


def _format_lines(result: StudyResult) -> Iterator[str]:
    scaled = f" (scaled by {result.scale:g})" if result.scale != 1 else ""
    title = f"{result.study.title}{scaled}"
    yield from (title, "=" * len(title))
    notes: list[str] = []
    for heading, block in group_blocks(result):
        yield ""
        if heading:
            yield heading
        rows = [_format_row(result, entry, notes) for entry in block]
        yield from _align_columns(rows)
    if notes:
        yield ""
        yield from (f"[{number}] {note}" for number, note in enumerate(notes, start=1))


def group_blocks(result: StudyResult) -> list[tuple[str, list[Entry]]]:
    """Cells by what stands above them: the choices on all axes that do not go down."""
    across = [axis for axis in result.study.shown_axes() if axis not in result.study.table.rows]
    found: dict[ChoiceKey, list[Entry]] = {}
    for cell in result.cells:
        for score, value in cell.scores.items():
            entry = Entry(cell, score, value)
            key = tuple(_name_choice(entry, axis) for axis in across)
            found.setdefault(key, []).append(entry)
    orders = [result.used(axis) for axis in across]

    def rank_key(key: ChoiceKey) -> list[int]:
        return [order.index(name) for order, name in zip(orders, key, strict=True)]

    blocks = []
    # Blocks stand in the order of the axes, not in that of the first cell that has them.
    for key in sorted(found, key=rank_key):
        # Titles of one choice may differ from cell to cell; the last one is shown.
        last = found[key][-1]
        heading = ", ".join(_title_choice(last, axis) for axis in across)
        blocks.append((heading, found[key]))
    return blocks


def _name_choice(entry: Entry, axis: str) -> str:
    return entry.score if axis == "score" else entry.cell.choices[axis]


def _title_choice(entry: Entry, axis: str) -> str:
    return entry.value.title if axis == "score" else entry.cell.titles[axis]


def _format_row(
    result: StudyResult,
    entry: Entry,
    notes: list[str],
) -> list[str]:
    """What goes down, then ours, the printed and their difference; reasons and changes as numbered
    notes."""
    cell = entry.cell
    value = entry.value
    said = [cell.missing, f"scaled: {cell.scaled}" if cell.scaled else ""]
    marks = [_number_note(note, notes) for note in said if note]
    return [
        name_row(result, entry),
        value.text(),
        value.printed_text(),
        cell.difference_text(entry.score),
        " ".join(marks),
    ]


def name_row(result: StudyResult, entry: Entry) -> str:
    """The choices of what goes down, as a reader calls them."""
    down = [_title_choice(entry, axis) for axis in result.study.table.rows]
    # Scores that have no place of their own in the table are told apart by their titles.
    if "score" not in result.study.shown_axes() and len(entry.cell.scores) > 1:
        down.append(entry.value.title)
    return ", ".join(down)


def _number_note(note: str, notes: list[str]) -> str:
    """The mark of a note, which is added where it is new."""
    if note not in notes:
        notes.append(note)
    return f"[{notes.index(note) + 1}]"


def _align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns of equal width: text to the left, figures to the right."""
    table = [["", *HEAD, ""], *rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for first, *figures, last in table:
        padded = [word.rjust(width) for word, width in zip(figures, widths[1:-1], strict=True)]
        yield f"  {first.ljust(widths[0])}  {'  '.join(padded)}  {last}".rstrip()
