"""What few repetitions can say: intervals, paired tests, and how stable an order is."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rayfl.arrays import Floats

LEVEL = 0.95
DRAWS = 4000
MOST_RESAMPLES = 3125
"""Up to five seeds every resample is made, each once; beyond, so many are drawn."""


@dataclass(frozen=True)
class Interval:
    """A range that a value lies in; nan where too little is known."""

    low: float = math.nan
    high: float = math.nan

    @property
    def is_known(self) -> bool:
        """Whether there is one."""
        return math.isfinite(self.low) and math.isfinite(self.high)

    def scale(self, factor: float) -> Interval:
        """The same in another unit."""
        ends = sorted((self.low * factor, self.high * factor))
        return Interval(*ends)

    def format(self, digits: int = 2, signed: bool = False) -> str:
        """`94.10 to 95.73`, or a dash."""
        if not self.is_known:
            return "-"
        sign = "+" if signed else ""
        return f"{self.low:{sign}.{digits}f} to {self.high:{sign}.{digits}f}"


UNKNOWN = Interval()


def mean_interval(values: Sequence[float]) -> Interval:
    """Student's 95 % interval of a mean over seeds; one value has none."""
    from scipy.stats import t

    count = len(values)
    if count < 2:
        return UNKNOWN
    mean = float(np.mean(values))
    error = float(np.std(values, ddof=1)) / math.sqrt(count)
    half = float(t.ppf((1 + LEVEL) / 2, count - 1)) * error
    return Interval(mean - half, mean + half)


# -- tests -----------------------------------------------------------------------------------------


def signed_rank_test(differences: Sequence[float]) -> float:
    """Wilcoxon's signed-rank test of paired differences: the exact two-sided p, ties included.

    Differences of nothing say nothing and are left out."""
    from scipy.stats import rankdata

    known = np.array([value for value in differences if value], dtype=float)
    if not len(known):
        return 1.0
    # Ranks of ties are halves: doubled, all are whole.
    ranks = np.rint(2 * rankdata(np.abs(known))).astype(int)
    ways = np.ones(1)
    for rank in ranks:
        further = np.zeros(len(ways) + rank)
        further[: len(ways)] += ways
        further[rank:] += ways
        ways = further
    ways /= ways.sum()
    positive = int(ranks[known > 0].sum())
    below = float(ways[: positive + 1].sum())
    above = float(ways[positive:].sum())
    return min(1.0, 2 * min(below, above))


def correct_by_holm(values: Sequence[float]) -> list[float]:
    """Holm's correction: p-values that hold for all tests together."""
    order = sorted(range(len(values)), key=lambda place: values[place])
    corrected = [0.0] * len(values)
    highest = 0.0
    for passed, place in enumerate(order):
        highest = max(highest, (len(values) - passed) * values[place])
        corrected[place] = min(1.0, highest)
    return corrected


# -- resampling ------------------------------------------------------------------------------------


def resample_places(count: int) -> NDArray[np.int64]:
    """Places drawn with replacement, a resample a row: all there are of few, or so many of more."""
    if count**count <= MOST_RESAMPLES:
        return np.array(list(itertools.product(range(count), repeat=count)), dtype=np.int64)
    return np.random.default_rng(0).integers(0, count, (DRAWS, count))


def bootstrap_interval(values: Floats, measure: Callable[[Floats], float]) -> Interval:
    """The middle 95 % of a measure of means over seeds.

    Parameters
    ----------
    values
        Methods by seeds: a resample takes the same seeds of all of them, for they share their data.
    measure
        Of the methods' means."""
    seeds = values.shape[1]
    if seeds < 2:
        return UNKNOWN
    found = [measure(values[:, places].mean(axis=1)) for places in resample_places(seeds)]
    known = [value for value in found if math.isfinite(value)]
    if not known:
        return UNKNOWN
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(float(low), float(high))


def rank_methods(means: Floats, lower_is_better: bool = False) -> Floats:
    """Ranks from 1, the best; methods that are level share theirs."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(means if lower_is_better else -means))


def measure_stability(values: Floats, lower_is_better: bool = False) -> Floats:
    """How often a method keeps its rank, and the least and the greatest rank that it has in 95 % of
    the resamples: a row a method, `share, best, worst`; nan of one seed.

    Parameters
    ----------
    values
        Methods by seeds."""
    methods, seeds = values.shape
    if seeds < 2:
        return np.full((methods, 3), math.nan)
    whole = rank_methods(values.mean(axis=1), lower_is_better)
    drawn = np.array([
        rank_methods(values[:, places].mean(axis=1), lower_is_better)
        for places in resample_places(seeds)
    ])  # fmt: skip
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return np.column_stack([(drawn == whole).mean(axis=0), np.floor(low), np.ceil(high)])


def measure_kendall(ours: Sequence[float] | Floats, printed: Sequence[float] | Floats) -> float:
    """Kendall's tau-b; nan where all values of a side are the same."""
    from scipy.stats import kendalltau

    if len(np.unique(ours)) < 2 or len(np.unique(printed)) < 2:
        return math.nan
    return float(kendalltau(ours, printed).statistic)
