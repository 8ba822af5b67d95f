"""One row of the ledger: a finished run of a study's cell, what it came to, and what repeats it.

A file holds the rows of one study as CSV, with the same columns in every file:

    study, file         the study's name, and its file from the top of the checkout
    cell, axes          the cell as a reader calls it, and its choices: `method=fedds;dataset=mnist`
    seed, scale, overrides, precision, rounds
    digest, scenario, model    sha256 of the configuration, of who had which data, of the model
    scores              `test/accuracy:best=0.9642;test/accuracy:last10=0.9558`, as measured
    down_mb, up_mb      megabytes from and to the server, in the whole run
    forward, backward   images that passed through a network, in the whole run
    seconds             of rounds and their evaluation
    commit ... capability      the code, the libraries and the machine that the bits stand on
    finished, command   when it ended (UTC), and the command that repeats it"""

from __future__ import annotations

import csv
import io
import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields

from rayfl.errors import DataError, broken

ENVIRONMENT = (
    "commit",
    "rayfl",
    "python",
    "numpy",
    "torch",
    "ray",
    "machine",
    "host",
    "capability",
)
"""What a run's bits and seconds stand on, beside its configuration."""

RowKey = tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A finished run of a study's cell."""

    study: str
    file: str
    cell: str
    axes: Mapping[str, str]
    seed: int
    scale: float
    overrides: tuple[str, ...]
    """Those of the command line that decide the result."""
    precision: str
    rounds: int
    digest: str
    scenario: str
    model: str
    scores: Mapping[str, float]
    """By `name_summary` or `name_entry`; as measured, a share is a share."""
    down_mb: float = math.nan
    up_mb: float = math.nan
    forward: float = math.nan
    backward: float = math.nan
    seconds: float = math.nan
    environment: Mapping[str, str] = field(default_factory=dict)
    finished: str = ""
    command: str = ""

    @property
    def key(self) -> RowKey:
        """What tells it from the other rows of its study: the run, wherever it was made."""
        return (
            f"{self.scale:012.9f}",
            _join_pairs(self.axes),
            f"{self.seed:09d}",
            shlex.join(self.overrides),
            self.digest,
            f"{self.rounds:09d}",
            self.scenario,
        )

    @property
    def grade(self) -> tuple[str, float]:
        """Precision and scale: rows of different ones never share a figure."""
        return self.precision, self.scale

    def shorten(self) -> str:
        """What a reader calls it."""
        scaled = f", scale {self.scale:g}" if self.scale != 1 else ""
        changed = f", {shlex.join(self.overrides)}" if self.overrides else ""
        return f"{self.study}: {self.cell}, seed {self.seed}{scaled}{changed}"


# -- names of scores -------------------------------------------------------------------------------


def name_summary(metric: str, over: str, window: int, lower_is_better: bool = False) -> str:
    """What a row calls one number for a metric's rounds: `test/accuracy:last10`."""
    if over == "last":
        return f"{metric}:last{window}"
    # The best of a loss is its least; a row says which of the two it holds.
    return f"{metric}:{'least' if over == 'best' and lower_is_better else over}"


def name_entry(array: str, at: Iterable[int]) -> str:
    """What a row calls one entry of what a method left: `similarity[0,1]`."""
    return f"{array}[{','.join(map(str, at))}]"


# -- CSV -------------------------------------------------------------------------------------------

PLAIN = [each.name for each in fields(Row) if each.name != "environment"]
_LAST = PLAIN.index("finished")
COLUMNS = [*PLAIN[:_LAST], *ENVIRONMENT, *PLAIN[_LAST:]]
NUMBERS = ("scale", "down_mb", "up_mb", "forward", "backward", "seconds")
COUNTS = ("seed", "rounds")


def write_rows(rows: Iterable[Row]) -> str:
    """Rows as CSV, in an order that does not depend on when they came."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in sorted(rows, key=lambda row: row.key):
        written = _write_row(row)
        writer.writerow([written[column] for column in COLUMNS])
    return buffer.getvalue()


def read_rows(text: str, where: str) -> list[Row]:
    """The rows of a file's text.

    Parameters
    ----------
    where
        What a message calls the file."""
    rows = []
    for line, written in enumerate(csv.DictReader(io.StringIO(text)), start=2):
        try:
            rows.append(_read_row(written))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            rule = "a row of the ledger has its columns, and numbers where they belong"
            remedy = "Mend the line, or take it out; `rayfl study FILE --record` writes rows again."
            raise DataError(broken(rule, f"{where}, line {line} ({error!r})", remedy)) from None
    return rows


def is_ledger_text(text: str) -> bool:
    """Whether a CSV file is the ledger's: people keep other tables in a folder of results, too."""
    head = next(csv.reader(io.StringIO(text)), [])
    return {"study", "axes", "digest", "model", "scores"} <= set(head)


def _write_row(row: Row) -> dict[str, str]:
    written = {name: str(getattr(row, name)) for name in PLAIN}
    written |= {name: _write_number(getattr(row, name)) for name in NUMBERS}
    written["axes"] = _join_pairs(row.axes)
    scores = {name: _write_number(value) for name, value in sorted(row.scores.items())}
    written["scores"] = _join_pairs(scores)
    written["overrides"] = shlex.join(row.overrides)
    return written | {name: row.environment.get(name, "") for name in ENVIRONMENT}


def _read_row(written: Mapping[str, str]) -> Row:
    values: dict[str, object] = {name: written[name] for name in PLAIN}
    values |= {name: int(written[name]) for name in COUNTS}
    values |= {name: float(written[name] or "nan") for name in NUMBERS}
    values["axes"] = _split_pairs(written["axes"])
    scores = _split_pairs(written["scores"])
    values["scores"] = {name: float(value or "nan") for name, value in scores.items()}
    values["overrides"] = tuple(shlex.split(written["overrides"]))
    values["environment"] = {name: written.get(name) or "" for name in ENVIRONMENT}
    return Row(**values)  # type: ignore[arg-type]


def round_row(row: Row) -> Row:
    """A row as it comes back from its file."""
    return _read_row(_write_row(row))


def _write_number(value: float) -> str:
    """Ten digits; nothing where nothing is known."""
    return "" if math.isnan(value) else f"{value:.10g}"


def _join_pairs(pairs: Mapping[str, str]) -> str:
    for name, value in pairs.items():
        if {";", "="} & set(name) or ";" in value:
            rule = "names of axes, choices and scores in a ledger hold no `;`, and no `=` before it"
            raise DataError(broken(rule, f"{name}={value}", "Rename it in the study."))
    return ";".join(f"{name}={value}" for name, value in pairs.items())


def _split_pairs(text: str) -> dict[str, str]:
    pairs = [word.partition("=") for word in text.split(";") if word]
    return {name: value for name, _, value in pairs}
