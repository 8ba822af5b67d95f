"""docs/results.md: every recorded figure beside the printed one, with its row and its command."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rayfl.ledger.ledger import Ledger
from rayfl.ledger.rows import Row
from rayfl.report.agreement import (
    GainAgreement,
    OrderAgreement,
    measure_gains,
    measure_orders,
)
from rayfl.report.causes import Causes, Place, read_causes
from rayfl.report.inference import mean_interval
from rayfl.report.markdown import escape_markdown, fence_code, write_row
from rayfl.report.wording import format_decimal
from rayfl.study.recorded import RecordedStudy
from rayfl.study.recording import ANEW
from rayfl.study.result import LEAST_SEEDS, StudyResult
from rayfl.study.text_table import Entry, group_blocks, name_row

COMMAND = "rayfl report --recorded -o docs"
HEAD = f"""# Results

Written by `{COMMAND}` from the rows of the ledger, [results/](../results); no figure is written by
hand. Every figure is of rows, every row has the command that repeats it in its last column, and
`rayfl study --verify N` repeats N of them and compares the models.

Ours is the mean over seeds ± the sample deviation (n seeds), with Student's 95 % interval of the
mean. One seed has no difference from print and no share of a gain; a scaled table has levels of its
own and no difference either; neither has an order to compare. `not explained` stands wherever
nobody has shown a cause."""
TALLY = ("table", "rows", "seeds", "precision and scale")
FIGURES = ("ours", "95 % interval", "printed")
ORDERS = ("among", "methods", "seeds", "Kendall's tau", "95 % of resampled seeds", "cause")
GAINS = (
    "gain",
    "ours (points)",
    "95 % interval",
    "printed",
    "sign",
    "share of print",
    "interval of the share",
    "cause",
)


def write_results(ledger: Ledger, recorded: Sequence[RecordedStudy]) -> str:
    """The whole page.

    Parameters
    ----------
    recorded
        The tables, in the order in which they are to stand."""
    lines = [HEAD, ""]
    lines += _write_tally(recorded)
    for each in recorded:
        causes = read_causes(ledger.folder, each.result.name, each.result.study)
        lines += ["", *_write_study(each, causes)]
    return "\n".join(lines).rstrip() + "\n"


def _write_tally(recorded: Sequence[RecordedStudy]) -> Iterator[str]:
    """What there is, with links."""
    if not recorded:
        yield "There are no rows yet."
        return
    yield write_row(TALLY)
    yield write_row(["---", "---:", "---", "---"])
    for each in recorded:
        link = f"[{escape_markdown(_title(each))}](#{_make_anchor(_title(each))})"
        seeds = sorted({row.seed for row in each.rows})
        yield write_row([link, str(len(each.rows)), _join(seeds), each.grade])


def _title(recorded: RecordedStudy) -> str:
    grade = f" ({recorded.grade})" if recorded.grade != "fp32" else ""
    return f"{recorded.result.study.title}{grade}"


def _make_anchor(title: str) -> str:
    """What a heading is called in links: letters, digits, hyphens for spaces."""
    kept = [sign for sign in title.lower() if sign.isalnum() or sign in " -_"]
    return "".join(kept).replace(" ", "-")


def _join(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


# -- one study -------------------------------------------------------------------------------------


def _write_study(recorded: RecordedStudy, causes: Causes) -> Iterator[str]:
    result = recorded.result
    yield from (f"## {escape_markdown(_title(recorded))}", "")
    for text in (result.study.paper, result.study.notes):
        if text.strip():
            yield from (escape_markdown(text), "")
    yield from (_describe_rows(recorded), "")
    for heading, block in group_blocks(result):
        yield from _write_block(recorded, heading, block)
    orders, gains = measure_orders(recorded), measure_gains(recorded)
    yield from _write_orders(orders, causes)
    yield from _write_gains(gains, causes)
    told = [order.choices for order in orders if order.needs_cause]
    told += [gain.choices for gain in gains if gain.needs_cause]
    asked = {frozenset(choices.items()) for choices in told}
    yield from _write_findings(recorded, list(causes.find_others(asked)))
    yield from _write_commands(result)


def _describe_rows(recorded: RecordedStudy) -> str:
    """Where the figures come from."""
    name = recorded.result.name
    scaled = next((cell.scaled for cell in recorded.result.cells if cell.scaled), "")
    facts = [
        f"{len(recorded.rows)} rows of [{name}.csv](../results/{name}.csv)",
        recorded.grade,
        f"scaled: {scaled}" if scaled else "",
        f"torch {_list_values(recorded.rows, 'torch')}",
        f"commit {_list_values(recorded.rows, 'commit')}",
        f"processor {_list_values(recorded.rows, 'capability')}",
        f"{recorded.outdated} rows of settings that have changed stand aside"
        if recorded.outdated
        else "",
    ]
    return f"{'; '.join(filter(None, facts))}."


def _list_values(rows: Sequence[Row], name: str) -> str:
    return _join(sorted({row.environment.get(name, "") or "unknown" for row in rows}))


def _write_block(recorded: RecordedStudy, heading: str, block: Sequence[Entry]) -> Iterator[str]:
    """The cells of one column of the paper's table, one below the other."""
    if heading:
        yield from (f"### {escape_markdown(heading)}", "")
    axes = [axis.replace("_", " ") for axis in recorded.result.study.table.rows]
    heads = [", ".join(axes), *FIGURES]
    heads += ["difference"] if recorded.is_comparable else []
    yield write_row(heads)
    yield write_row(["---", *["---:"] * (len(heads) - 1)])
    for entry in block:
        value = entry.value
        name = escape_markdown(name_row(recorded.result, entry))
        interval = mean_interval(value.values).format(value.digits)
        # What a table stands for besides its runs, an average of cells, has no seeds.
        interval = interval if value.seeds else "-"
        cells = [name, value.text(), interval, value.printed_text()]
        told = value.difference_text() if value.n >= LEAST_SEEDS else "-"
        cells += [told] if recorded.is_comparable else []
        yield write_row(cells)
    yield ""


# -- beside print ----------------------------------------------------------------------------------


def _write_orders(found: Sequence[OrderAgreement], causes: Causes) -> Iterator[str]:
    if not found:
        return
    yield from ("### Order of the methods, beside the printed one", "")
    yield write_row(ORDERS)
    yield write_row(["---", "---:", "---:", "---:", "---:", "---"])
    for each in found:
        cause = causes.find(each.choices) if each.needs_cause else ""
        yield write_row([
            escape_markdown(each.title),
            str(each.methods),
            str(each.seeds),
            each.refused or format_decimal(each.tau),
            each.interval.format(),
            escape_markdown(cause),
        ])  # fmt: skip
    yield ""


def _write_gains(found: Sequence[GainAgreement], causes: Causes) -> Iterator[str]:
    if not found:
        return
    yield from ("### Gains, beside the printed ones", "")
    yield write_row(GAINS)
    yield write_row(["---", "---:", "---:", "---:", "---", "---:", "---:", "---"])
    for each in found:
        cause = causes.find(each.choices) if each.needs_cause else ""
        yield write_row([
            escape_markdown(each.title),
            f"{each.value.mean:+.2f} (n={each.value.n})",
            each.interval.format(signed=True),
            each.value.printed_text(),
            each.sign,
            _format_percent(each.share),
            each.share_interval.scale(100).format(0) if each.share_interval.is_known else "-",
            escape_markdown(cause),
        ])  # fmt: skip
    yield ""


def _write_findings(recorded: RecordedStudy, found: Sequence[tuple[Place, str]]) -> Iterator[str]:
    """What was written of cells that are in neither of these tables."""
    if not found:
        return
    yield from ("### What was found of single figures", "")
    axes = recorded.result.study.axes
    for place, text in found:
        # In the order of the axes, for a place has none.
        titles = [axes[axis][dict(place)[axis]].title for axis in axes if axis in dict(place)]
        yield f"- **{escape_markdown(', '.join(titles))}.** {escape_markdown(text)}"
    yield ""


def _format_percent(share: float) -> str:
    return "-" if math.isnan(share) else f"{100 * share:.0f} %"


def _write_commands(result: StudyResult) -> Iterator[str]:
    """A command a cell; each row of the CSV has its own."""
    commands = [f"{cell.command} {ANEW}" for cell in result.cells if cell.kind == "run"]
    yield from ("<details><summary>Commands</summary>", "")
    yield fence_code("\n".join(commands))
    yield from ("", "</details>", "")
