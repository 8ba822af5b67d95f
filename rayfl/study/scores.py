"""What a run is worth by a study's scores: of its folder, and of its row in the ledger."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

from rayfl.ledger.rows import Row, name_entry, name_summary
from rayfl.run.store import Record
from rayfl.study.schema import Score

ALWAYS = ("best", "last", "final")
"""How a row sums up every metric that its study names, beside the way that the score asks for."""


def scale_window(score: Score, scale: float) -> Score:
    """A score whose window shrinks with the rounds: the last 10 of 100 are the last 2 of 20."""
    window = max(round(score.window * scale), 1)
    return score.model_copy(update={"window": window})


def score_run(record: Record, score: Score) -> float:
    """A score of one run as it is shown, nan if the run does not have it."""
    if score.array is not None:
        value = read_entry(record.arrays.get(score.array), score.at)
    else:
        metric = score.metric or ""
        value = record.score(metric, score.over, score.window, score.lower_is_better)
    return 100 * value if score.percent else value


def score_row(row: Row, score: Score) -> float:
    """The same of a row."""
    value = row.scores.get(name_score(score), math.nan)
    return 100 * value if score.percent else value


def name_score(score: Score) -> str:
    """What a row calls it."""
    if score.array is not None:
        return name_entry(score.array, score.at)
    return name_summary(score.metric or "", score.over, score.window, score.lower_is_better)


def summarise_run(record: Record, scores: Iterable[Score]) -> dict[str, float]:
    """What a row keeps of a run: every metric that the study names, by its best, its last and its
    final value, and entries of arrays; as measured.

    What the run does not have is kept as nan: so it is told from what nobody has looked for."""
    found: dict[str, float] = {}
    for score in scores:
        plain = score.model_copy(update={"percent": False})
        ways = () if score.array is not None else (*ALWAYS, score.over)
        for over in ways:
            kept = plain.model_copy(update={"over": over})
            found[name_score(kept)] = score_run(record, kept)
        if score.array is not None:
            found[name_score(plain)] = score_run(record, plain)
    return found


def read_entry(array: NDArray[Any] | None, at: tuple[int, ...]) -> float:
    """One entry of what a method left; nan where it left nothing there."""
    if array is None or len(at) != array.ndim:
        return math.nan
    for place, size in zip(at, array.shape, strict=True):
        if not -size <= place < size:
            return math.nan
    return float(array[at])
