"""A report's table as LaTeX (booktabs)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rayfl.report.slots import TableSlot
from rayfl.report.tables import Table, build_table, explain_missing
from rayfl.report.wording import (
    HEADS,
    describe_rounds,
    describe_scale,
    explain_reading,
    list_texts,
)
from rayfl.study.result import StudyResult

GREEK = {
    "α": r"\alpha",
    "β": r"\beta",
    "λ": r"\lambda",
    "ρ": r"\rho",
    "τ": r"\tau",
    "μ": r"\mu",
    "σ": r"\sigma",
    "ε": r"\varepsilon",
    "Δ": r"\Delta",
}
ESCAPES = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{letter: f"${command}$" for letter, command in GREEK.items()},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "±": r"$\pm$",
    "−": "$-$",
    "–": "--",
    "→": r"$\rightarrow$",
    "×": r"$\times$",
    # A tabular row that begins with a bracket would be taken for an option of the row break before
    # it.
    "[": "{[}",
    "]": "{]}",
}
SHRUNK = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"
"""What keeps a table from being wider than the text."""


def write_latex(result: StudyResult) -> str:
    """`table` environments that need the packages booktabs and graphicx; notes are below the
    last."""
    table = build_table(result)
    parts = table.parts()
    lines = ["% needs \\usepackage{booktabs} and, for the width, \\usepackage{graphicx}"]
    for part in parts:
        lines += ["\\begin{table}", "\\centering"]
        lines.append(f"\\caption{{{escape_latex(part.title)}}}")
        lines += _write_tabular(part)
        if part is parts[-1]:
            lines.append(_write_footnote(result, table))
        lines.append("\\end{table}")
    return "\n".join(lines) + "\n"


def escape_latex(text: str) -> str:
    """Text that means itself in LaTeX."""
    words = " ".join(text.split())
    return "".join(ESCAPES.get(sign, sign) for sign in words)


def _write_tabular(table: Table) -> Iterator[str]:
    """The table itself, no wider than the text."""
    yield SHRUNK
    figures = table.width * len(table.columns)
    columns = "l" * len(table.row_axes) + "r" * figures
    yield f"\\begin{{tabular}}{{{columns}}}"
    yield "\\toprule"
    yield from _write_head(table)
    yield "\\midrule"
    for row in table.rows:
        cells = [escape_latex(title) for title in table.row_titles(row)]
        for column in table.columns:
            cells += _write_slot(table.slots.get((row, column)), table.width)
        yield _write_row(cells)
    yield from ("\\bottomrule", "\\end{tabular}}")


def _write_head(table: Table) -> Iterator[str]:
    """Column titles; where the paper's figures stand beside ours, over three columns each."""
    titles = [escape_latex(table.column_title(column)) for column in table.columns]
    names = [escape_latex(name) for name in table.row_heads()]
    width = table.width
    if width == 1:
        yield _write_row([*names, *titles])
        return
    spans = [f"\\multicolumn{{{width}}}{{c}}{{{title}}}" for title in titles]
    yield _write_row([*[""] * len(names), *spans])
    first = len(names) + 1
    starts = range(first, first + width * len(titles), width)
    yield " ".join(f"\\cmidrule(lr){{{start}-{start + width - 1}}}" for start in starts)
    yield _write_row([*names, *HEADS * len(titles)])


def _write_slot(slot: TableSlot | None, width: int) -> Iterator[str]:
    for text, bold in list_texts(slot)[:width]:
        # A hyphen before a figure is a minus, one alone a dash.
        signed = "–" if text == "-" else re.sub(r"^-(?=\d)", "−", text)
        escaped = escape_latex(signed)
        yield f"\\textbf{{{escaped}}}" if bold else escaped


def _write_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def _write_footnote(result: StudyResult, table: Table) -> str:
    """Paper, how to read the figures, scale, and what is missing."""
    notes = [f"{result.study.paper}."] if result.study.paper else []
    notes += [explain_reading(table), describe_rounds(result), describe_scale(result)]
    for why, cells in explain_missing(result).items():
        notes.append(f"Without runs: {', '.join(cells)} ({why}).")
    said = " ".join(escape_latex(note) for note in notes if note)
    return f"\\par\\smallskip\\footnotesize {said}"
