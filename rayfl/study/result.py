"""What a study came to: for every cell its runs, its scores beside the printed ones, or why there
are none.

`rayfl.study.gather.gather_results` makes a `StudyResult` out of what an output folder holds; the
table on the command line and the report read nothing else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Literal

import numpy as np

from rayfl.ledger.rows import Row
from rayfl.run.store import Record
from rayfl.study.schema import Study

if TYPE_CHECKING:
    import pandas

Kind = Literal["run", "difference", "average"]

LEAST_SEEDS = 2
"""What one seed has found may be chance."""


@dataclass(frozen=True)
class Value:
    """One score of one cell: ours, a number a seed, and the printed one. Everything is as shown:
    percent is percent."""

    title: str
    values: tuple[float, ...] = ()
    """One a seed, in the order of `seeds`; of a cell that is an average, one a cell that it is the
    average of."""
    seeds: tuple[int, ...] = ()
    printed: str = ""
    """The printed mean, exactly as it is printed; empty where the paper prints none."""
    printed_std: str = ""
    printed_value: float = math.nan
    """The printed mean as a number, where it is one (or a formula whose symbols the study
    gives)."""
    digits: int = 2
    lower_is_better: bool = False

    @property
    def n(self) -> int:
        """How many values there are."""
        return len(self.values)

    @property
    def mean(self) -> float:
        """Ours; nan where there is none."""
        return float(np.mean(self.values)) if self.values else math.nan

    @property
    def std(self) -> float:
        """The sample deviation, which one value does not have."""
        return float(np.std(self.values, ddof=1)) if self.n > 1 else math.nan

    @property
    def difference(self) -> float:
        """Ours minus the printed mean."""
        return self.mean - self.printed_value

    def text(self) -> str:
        """`95.41 ± 0.12 (n=3)`, `95.41 (n=1)`, or a dash."""
        if not self.values:
            return "-"
        mean = f"{self.mean:.{self.digits}f}"
        spread = "" if math.isnan(self.std) else f" ± {self.std:.{self.digits}f}"
        return f"{mean}{spread} (n={self.n})"

    def printed_text(self) -> str:
        """`95.57`, `71.58 ± 0.43`, or a dash."""
        if self.printed_std:
            return f"{self.printed} ± {self.printed_std}"
        return self.printed or "-"

    def difference_text(self) -> str:
        """`+0.12`, or a dash."""
        if math.isnan(self.difference):
            return "-"
        return f"{self.difference:+.{self.digits}f}"


@dataclass(frozen=True)
class CellResult:
    """One cell: a choice on every axis."""

    choices: Mapping[str, str]
    """By axis, the name of the choice as the study file has it."""
    titles: Mapping[str, str]
    """By axis, what a reader calls it."""
    kind: Kind = "run"
    """Whether the cell is run, or computed from other cells: a difference of two, an average of
    several."""
    records: Mapping[int, Record] = field(default_factory=dict)
    """Finished runs by seed; empty for computed cells."""
    scores: Mapping[str, Value] = field(default_factory=dict)
    """By the score's name; every score of the cell is here, with or without values."""
    missing: str = ""
    """Why there are no runs, where there are none: not built, not possible here, or not run yet."""
    scaled: str = ""
    """What `--scale` changed, in words; empty at full size."""
    command: str = ""
    """The command that runs this cell."""
    rows: Mapping[int, Row] = field(default_factory=dict)
    """Rows of the ledger, by seed, of runs that the store does not hold: scores without curves."""

    @property
    def made(self) -> dict[int, Record | Row]:
        """Its runs by seed, in the order of seeds, whether they are here or recorded."""
        runs: dict[int, Record | Row] = {**self.rows, **self.records}
        return {seed: runs[seed] for seed in sorted(runs)}

    @property
    def value(self) -> Value:
        """The first score."""
        return next(iter(self.scores.values()))

    def difference(self, score: str) -> float:
        """Ours minus the printed mean; nan of one seed, and where levels are not comparable.

        Parameters
        ----------
        score
            Its name."""
        value = self.scores[score]
        told = not self.scaled and value.n >= LEAST_SEEDS
        return value.difference if told else math.nan

    def difference_text(self, score: str) -> str:
        """The same as `+0.12`, or a dash.

        Parameters
        ----------
        score
            Its name."""
        told = not math.isnan(self.difference(score))
        return self.scores[score].difference_text() if told else "-"


@dataclass(frozen=True, repr=False)
class StudyResult:
    """All cells of a study, in the order of its axes."""

    name: str
    """The study file's stem."""
    study: Study
    cells: Sequence[CellResult]
    scale: float = 1.0
    seeds: Sequence[int] = ()

    def frame(self) -> pandas.DataFrame:
        """A line a score of a cell: its choices, ours, the printed one, and why it is missing."""
        import pandas

        rows = []
        for cell in self.cells:
            for name, value in cell.scores.items():
                measured = {
                    "score": value.title,
                    "n": value.n,
                    "mean": value.mean,
                    "std": value.std,
                    "printed": value.printed_value,
                    "difference": cell.difference(name),
                }
                told = {"scaled": cell.scaled, "missing": cell.missing}
                rows.append({**cell.titles, **measured, **told})
        return pandas.DataFrame(rows)

    def __repr__(self) -> str:
        made = sum(bool(cell.made) for cell in self.cells)
        return f"<StudyResult of {self.study.title}: {made} of {len(self.cells)} cells>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the table that the command line prints."""
        from rayfl.study.text_table import format_table

        return f"<pre>{escape(format_table(self))}</pre>"

    def at(self, **choices: str) -> CellResult | None:
        """The cell with these choices, all of them given, if the study has it."""
        for cell in self.cells:
            if dict(cell.choices) == choices:
                return cell
        return None

    def used(self, axis: str) -> list[str]:
        """The choices of an axis that some cell has, in the study's order; `score` is an axis
        too."""
        if axis == "score":
            return list(dict.fromkeys(name for cell in self.cells for name in cell.scores))
        there = {cell.choices[axis] for cell in self.cells}
        return [name for name in self.study.axes[axis] if name in there]

    def title(self, axis: str, name: str) -> str:
        """What a reader calls a choice."""
        if axis == "score":
            having = [cell for cell in self.cells if name in cell.scores]
            return having[0].scores[name].title
        return self.study.axes[axis][name].title
