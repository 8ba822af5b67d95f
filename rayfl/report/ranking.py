"""Which figure is the best, and whether the methods rank as they do in the paper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rayfl.report.slots import (
    SCORE,
    TableSlot,
    find_compared_axis,
    is_comparable,
    list_slots,
    place_slot,
)
from rayfl.study.result import LEAST_SEEDS, StudyResult
from rayfl.study.schema import ChoiceKey

LEAST_METHODS = 3
"""An order of two is one pair, which agrees or does not."""


@dataclass(frozen=True)
class Agreement:
    """How the order of methods that we find goes with the printed one, among cells that differ in
    the method alone."""

    title: str
    methods: int
    kendall: float
    spearman: float
    concordant: int
    pairs: int


def _list_fixed_axes(result: StudyResult) -> ChoiceKey:
    """All axes but the one whose choices compete."""
    compared = find_compared_axis(result)
    return tuple(axis for axis in (*result.study.axes, SCORE) if axis != compared)


def group_rivals(
    result: StudyResult, slots: Iterable[TableSlot]
) -> dict[ChoiceKey, list[TableSlot]]:
    """Slots that differ in the compared axis alone, by everything else."""
    fixed = _list_fixed_axes(result)
    groups: dict[ChoiceKey, list[TableSlot]] = {}
    for slot in slots:
        # A difference of two methods is no method.
        if slot.cell.kind != "difference":
            groups.setdefault(place_slot(slot, fixed), []).append(slot)
    return groups


def mark_best(result: StudyResult, slots: list[TableSlot]) -> list[TableSlot]:
    """The slots, with the best of each group of rivals marked; one alone is not the best of
    anything, and ours is not of one pair or one seed, or where levels are not comparable."""
    ours: set[int] = set()
    printed: set[int] = set()
    for group in group_rivals(result, slots).values():
        if _can_rank(group):
            ours |= _find_best(group, [slot.value.mean for slot in group])
        printed |= _find_best(group, [slot.value.printed_value for slot in group])
    return [
        replace(slot, best=id(slot) in ours, printed_best=id(slot) in printed) for slot in slots
    ]


def _can_rank(group: Sequence[TableSlot]) -> bool:
    """Whether an order of our figures would say anything."""
    known = [slot for slot in group if slot.value.n]
    repeated = all(slot.value.n >= LEAST_SEEDS for slot in known)
    return len(known) >= LEAST_METHODS and repeated and all(map(is_comparable, known))


def _find_best(group: Sequence[TableSlot], values: Sequence[float]) -> set[int]:
    """The identities of the slots with the best of these values."""
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return set()
    best = min(known) if group[0].value.lower_is_better else max(known)
    return {id(slot) for slot, value in zip(group, values, strict=True) if value == best}


# -- agreement -------------------------------------------------------------------------------------


def measure_agreements(result: StudyResult) -> list[Agreement]:
    """Rank agreement within each group of rivals whose order says something: of three methods or
    more with both figures, two seeds or more, comparable levels. The last is of all.

    Overall, Kendall's tau and Spearman's rho are means over the groups, weighted by their pairs of
    methods."""
    found = []
    for key, group in group_rivals(result, list_slots(result.cells)).items():
        both = [slot for slot in group if slot.value.n and math.isfinite(slot.value.printed_value)]
        known = [(slot.value.mean, slot.value.printed_value) for slot in both]
        if _can_rank(both):
            found.append(_measure_agreement(_name_group(result, key), known))
    if len(found) > 1:
        found.append(_average_agreements(found))
    return found


def _name_group(result: StudyResult, key: ChoiceKey) -> str:
    """What the rivals of a group have in common, on axes that have several choices."""
    names = zip(_list_fixed_axes(result), key, strict=True)
    titles = [result.title(axis, name) for axis, name in names if len(result.used(axis)) > 1]
    return ", ".join(titles) or "all cells"


def _measure_agreement(title: str, pairs: Sequence[tuple[float, float]]) -> Agreement:
    """Kendall's tau-b and Spearman's rho of ours and printed; nan where one side does not differ at
    all."""
    ours, printed = np.array(pairs).T
    first, second = np.triu_indices(len(pairs), 1)
    signs = np.sign(ours[first] - ours[second]) * np.sign(printed[first] - printed[second])
    kendall, spearman = _correlate_ranks(ours, printed)
    concordant = int((signs > 0).sum())
    return Agreement(
        title,
        len(pairs),
        kendall,
        spearman,
        concordant,
        len(signs),
    )


def _correlate_ranks(
    ours: NDArray[np.float64], printed: NDArray[np.float64]
) -> tuple[float, float]:
    """Kendall's tau-b and Spearman's rho."""
    from scipy.stats import kendalltau, spearmanr

    # Neither is defined, and scipy warns, where all values of a side are the same.
    if len(np.unique(ours)) < 2 or len(np.unique(printed)) < 2:
        return math.nan, math.nan
    kendall = kendalltau(ours, printed).statistic
    spearman = spearmanr(ours, printed).statistic
    return float(kendall), float(spearman)


def _average_agreements(found: Sequence[Agreement]) -> Agreement:
    """The agreement over all groups."""
    kendall = spearman = math.nan
    known = [each for each in found if math.isfinite(each.kendall)]
    if known:
        weights = [each.pairs for each in known]
        kendall = float(np.average([each.kendall for each in known], weights=weights))
        spearman = float(np.average([each.spearman for each in known], weights=weights))
    return Agreement(
        "overall",
        sum(each.methods for each in found),
        kendall,
        spearman,
        sum(each.concordant for each in found),
        sum(each.pairs for each in found),
    )
