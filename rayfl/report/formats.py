"""A table as Markdown, as LaTeX (booktabs) and as CSV."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Sequence

from rayfl.report.tables import SCORE, Slot, Table, absent, agreements, table_of
from rayfl.study.result import CellResult, StudyResult

HEADS = ("ours", "printed", "difference")

# -- Markdown --------------------------------------------------------------------------------------------------------


def markdown(result: StudyResult) -> str:
    """The whole report as text: notes, table, agreement, what is missing, commands."""
    table = table_of(result)
    parts = [f"# {md(result.study.title)}", *intro(result)]
    for part in table.parts():
        parts += [
            *([f"**{md(part.title)}**", ""] if part is not table else []),
            *md_table(part),
            "",
        ]
    parts.append(md(reading(table)))
    parts += md_agreements(result)
    parts += md_missing(result)
    parts += md_commands(result)
    return "\n".join(parts).rstrip() + "\n"


def intro(result: StudyResult) -> list[str]:
    """Paper, notes and scale, where there are any."""
    texts = [result.study.paper, result.study.notes, scale_note(result)]
    return ["", *(line for text in texts if text.strip() for line in (md(text.strip()), ""))]


def scale_note(result: StudyResult) -> str:
    """What `--scale` changed, in a sentence that warns of comparing."""
    changes = list(dict.fromkeys(cell.scaled for cell in result.cells if cell.scaled))
    if result.scale == 1 and not changes:
        return ""
    what = "; ".join(changes)
    return f"Scale {result.scale:g}: {what or 'smaller than printed'}. Levels are not comparable with printed ones."


def reading(table: Table) -> str:
    """How the figures of a table are to be read."""
    parts = ["Mean ± sample standard deviation over n seeds. Bold: the best among rivals"]
    parts += [", ours and printed apart"] if table.printed else []
    fixed = f" Throughout: {', '.join(table.constant)}." if table.constant else ""
    return "".join(parts) + "." + fixed


def md_table(table: Table) -> list[str]:
    heads = HEADS[: table.width]
    titles = [md(table.column_title(column)) for column in table.columns]
    names = [f"{title}: {head}" if table.printed else title for title in titles for head in heads]
    lines = [md_row([*map(md, table.row_heads()), *names])]
    lines.append(md_row(["---"] * len(table.row_axes) + ["---:"] * len(names)))
    for row in table.rows:
        cells = [
            text
            for column in table.columns
            for text in md_slot(table.slots.get((row, column)), len(heads))
        ]
        lines.append(md_row([*map(md, table.row_titles(row)), *cells]))
    return lines


def md_slot(slot: Slot | None, width: int) -> list[str]:
    return [f"**{text}**" if bold else text for text, bold in texts(slot)][:width]


def texts(slot: Slot | None) -> list[tuple[str, bool]]:
    """Ours, printed and their difference, each with whether it is the best."""
    if slot is None:
        return [("", False)] * 3
    value = slot.value
    return [
        (value.text(), slot.best),
        (value.printed_text(), slot.printed_best),
        (value.difference_text(), False),
    ]


def md_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def md(text: str) -> str:
    """Text that means itself in Markdown, in a table as well."""
    return re.sub(r"([\\`*_\[\]<>|])", r"\\\1", " ".join(text.split()))


def md_agreements(result: StudyResult) -> list[str]:
    found = agreements(result)
    if not found:
        return []
    lines = ["", "## Rank agreement with the printed figures", ""]
    lines.append(
        md_row(
            ["among", "methods", "Kendall's tau", "Spearman's rho", "pairs in the printed order"]
        )
    )
    lines.append(md_row(["---", "---:", "---:", "---:", "---:"]))
    for each in found:
        numbers = [str(each.methods), decimal(each.kendall), decimal(each.spearman)]
        lines.append(md_row([md(each.title), *numbers, f"{each.concordant} of {each.pairs}"]))
    return lines


def decimal(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.2f}"


def md_missing(result: StudyResult) -> list[str]:
    lacking = absent(result)
    if not lacking:
        return []
    return [
        "",
        "## Without runs",
        "",
        *(f"- {md(', '.join(cells))}: {md(why)}" for why, cells in lacking.items()),
    ]


def md_commands(result: StudyResult) -> list[str]:
    lines = [
        line for cell in result.cells if cell.command for line in (f"# {about(cell)}", cell.command)
    ]
    return ["", "## Commands", "", fenced("\n".join(lines))] if lines else []


def about(cell: CellResult) -> str:
    """A cell and what of it was run, in one line."""
    seeds = ", ".join(map(str, sorted(cell.records))) or "none"
    return " ".join(f"{', '.join(cell.titles.values())} (seeds run: {seeds})".split())


def fenced(code: str) -> str:
    """A block of code whose fence is longer than any inside."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", code)), default=0))
    return f"{fence}sh\n{code}\n{fence}"


# -- LaTeX -----------------------------------------------------------------------------------------------------------

ESCAPES = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
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
    **{letter: f"${command}$" for letter, command in {"α": r"\alpha", "β": r"\beta", "λ": r"\lambda", "ρ": r"\rho",
       "τ": r"\tau", "μ": r"\mu", "σ": r"\sigma", "ε": r"\varepsilon", "Δ": r"\Delta"}.items()},
}  # fmt: skip


def tex(text: str) -> str:
    """Text that means itself in LaTeX."""
    # A tabular row that begins with a bracket would be taken for an option of the row break before
    # it.
    return (
        "".join(ESCAPES.get(sign, sign) for sign in " ".join(text.split()))
        .replace("[", "{[}")
        .replace("]", "{]}")
    )


def latex(result: StudyResult) -> str:
    """`table` environments that need the packages booktabs and graphicx; notes are below the
    last."""
    table = table_of(result)
    parts = table.parts()
    lines = ["% needs \\usepackage{booktabs} and, for the width, \\usepackage{graphicx}"]
    for part in parts:
        lines += [
            "\\begin{table}",
            "\\centering",
            f"\\caption{{{tex(part.title)}}}",
            *tabular(part),
        ]
        lines += [footnote(result, table)] if part is parts[-1] else []
        lines.append("\\end{table}")
    return "\n".join(lines) + "\n"


def tabular(table: Table) -> list[str]:
    """The table itself, no wider than the text."""
    columns = "l" * len(table.row_axes) + "r" * table.width * len(table.columns)
    lines = ["\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"]
    lines += [f"\\begin{{tabular}}{{{columns}}}", "\\toprule", *tex_head(table), "\\midrule"]
    for row in table.rows:
        cells = [
            text
            for column in table.columns
            for text in tex_slot(table.slots.get((row, column)), table.width)
        ]
        lines.append(tex_row([*map(tex, table.row_titles(row)), *cells]))
    return [*lines, "\\bottomrule", "\\end{tabular}}"]


def footnote(result: StudyResult, table: Table) -> str:
    paper = f"{result.study.paper}." if result.study.paper else ""
    notes = [paper, reading(table), scale_note(result), *tex_missing(result)]
    return f"\\par\\smallskip\\footnotesize {' '.join(tex(note) for note in notes if note)}"


def tex_head(table: Table) -> list[str]:
    """Column titles; where the paper's figures stand beside ours, over three columns each."""
    titles = [tex(table.column_title(column)) for column in table.columns]
    names, width = [tex(name) for name in table.row_heads()], table.width
    if width == 1:
        return [tex_row([*names, *titles])]
    spans = [f"\\multicolumn{{{width}}}{{c}}{{{title}}}" for title in titles]
    first = len(names) + 1
    rules = [
        f"\\cmidrule(lr){{{first + width * i}-{first + width * i + width - 1}}}"
        for i in range(len(titles))
    ]
    return [
        tex_row([*[""] * len(names), *spans]),
        " ".join(rules),
        tex_row([*names, *HEADS * len(titles)]),
    ]


def tex_slot(slot: Slot | None, width: int) -> list[str]:
    signed = [
        (re.sub(r"^-(?=\d)", "−", text) if text != "-" else "–", bold) for text, bold in texts(slot)
    ]
    return [f"\\textbf{{{tex(text)}}}" if bold else tex(text) for text, bold in signed][:width]


def tex_row(cells: Sequence[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def tex_missing(result: StudyResult) -> list[str]:
    return [f"Without runs: {', '.join(cells)} ({why})." for why, cells in absent(result).items()]


# -- CSV -------------------------------------------------------------------------------------------------------------


def long_csv(result: StudyResult) -> str:
    """One line a cell and score, with everything that is known about it."""
    axes = list(result.study.axes)
    heads = [
        "study",
        *axes,
        SCORE,
        "kind",
        "mean",
        "std",
        "n",
        "values",
        "seeds",
        "printed",
        "printed_std",
    ]
    heads += [
        "printed_value",
        "difference",
        "best",
        "printed_best",
        "missing",
        "scale",
        "scaled",
        "rounds",
    ]
    heads += ["scenarios", "digests", "command"]
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(heads)
    for slot in table_of(result).slots.values():
        writer.writerow(fields(result, slot, axes))
    return buffer.getvalue()


def fields(result: StudyResult, slot: Slot, axes: Sequence[str]) -> list[object]:
    cell, value = slot.cell, slot.value
    runs = [cell.records[seed] for seed in sorted(cell.records)]
    numbers = [
        number(value.mean),
        number(value.std),
        value.n,
        spaced(value.values),
        spaced(value.seeds),
    ]
    printed = [
        value.printed,
        value.printed_std,
        number(value.printed_value),
        number(value.difference),
    ]
    about = [cell.missing, result.scale, cell.scaled, spaced(sorted({run.rounds for run in runs}))]
    behind = [
        spaced(run.scenario for run in runs),
        spaced(run.digest for run in runs),
        cell.command,
    ]
    titles = [cell.titles[axis] for axis in axes]
    marks = [int(slot.best), int(slot.printed_best)]
    return [
        result.name,
        *titles,
        value.title,
        cell.kind,
        *numbers,
        *printed,
        *marks,
        *about,
        *behind,
    ]


def number(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.10g}"


def spaced(values: object) -> str:
    return " ".join(f"{value:.10g}" if isinstance(value, float) else str(value) for value in values)  # type: ignore[attr-defined]
