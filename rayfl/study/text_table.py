"""The table at the end of a study, as plain text: ours beside the printed figures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rayfl.study.result import CellResult, StudyResult, Value

HEAD = ("ours", "printed", "difference")


def format_table(result: StudyResult) -> str:
    """A block for each column of the paper's table, a line for each of its rows."""
    return "\n".join(_format_lines(result))


def _format_lines(result: StudyResult) -> Iterator[str]:
    title = result.study.title + (f" (scaled by {result.scale:g})" if result.scale != 1 else "")
    yield from (title, "=" * len(title))
    notes: list[str] = []
    for heading, block in _group_blocks(result):
        yield ""
        if heading:
            yield heading
        yield from _align_columns(
            [_format_row(result, cell, value, notes) for cell, value in block]
        )
    if notes:
        yield ""
        yield from (f"[{number}] {note}" for number, note in enumerate(notes, start=1))


Entry = tuple[CellResult, tuple[str, Value]]


def _group_blocks(result: StudyResult) -> list[tuple[str, list[Entry]]]:
    """Cells by what stands above them: the choices on all axes that do not go down."""
    across = [axis for axis in result.study.shown_axes() if axis not in result.study.table.rows]
    found: dict[tuple[str, ...], list[Entry]] = {}
    headings: dict[tuple[str, ...], str] = {}
    for cell in result.cells:
        for name, value in cell.scores.items():
            key = tuple(name if axis == "score" else cell.choices[axis] for axis in across)
            found.setdefault(key, []).append((cell, (name, value)))
            words = [value.title if axis == "score" else cell.titles[axis] for axis in across]
            headings[key] = ", ".join(words)
    # Blocks stand in the order of the axes, not in that of the first cell that has them.
    places = {axis: {name: i for i, name in enumerate(result.used(axis))} for axis in across}
    ordered = sorted(
        found, key=lambda key: [places[axis][name] for axis, name in zip(across, key, strict=True)]
    )
    return [(headings[key], found[key]) for key in ordered]


def _format_row(
    result: StudyResult, cell: CellResult, named: tuple[str, Value], notes: list[str]
) -> list[str]:
    """What goes down, then ours, the printed and their difference; reasons and changes as numbered
    notes."""
    _, value = named
    down = [
        value.title if axis == "score" else cell.titles[axis] for axis in result.study.table.rows
    ]
    if "score" not in result.study.shown_axes() and len(cell.scores) > 1:
        down.append(value.title)
    marks = [
        _number_note(note, notes)
        for note in (cell.missing, cell.scaled and f"scaled: {cell.scaled}")
        if note
    ]
    return [
        ", ".join(down),
        value.text(),
        value.printed_text(),
        value.difference_text(),
        " ".join(marks),
    ]


def _number_note(note: str, notes: list[str]) -> str:
    if note not in notes:
        notes.append(note)
    return f"[{notes.index(note) + 1}]"


def _align_columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Columns of equal width: text to the left, figures to the right."""
    table = [["", *HEAD, ""], *rows]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        first, *figures, last = line
        cells = [word.rjust(width) for word, width in zip(figures, widths[1:-1], strict=True)]
        yield f"  {first.ljust(widths[0])}  {'  '.join(cells)}  {last}".rstrip()
