"""How recorded results go with printed ones: the order of the methods, and what one gains over
another, with how certain either is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rayfl.report.inference import (
    UNKNOWN,
    Interval,
    bootstrap_interval,
    mean_interval,
    measure_kendall,
)
from rayfl.report.ranking import LEAST_METHODS, group_rivals
from rayfl.report.slots import TableSlot, find_compared_axis, list_slots
from rayfl.study.recorded import RecordedStudy
from rayfl.study.result import LEAST_SEEDS, StudyResult, Value

TAU = 0.8
SHARE = 0.8
"""Below these, a difference from print asks for its cause."""


@dataclass(frozen=True)
class OrderAgreement:
    """Whether the methods of one setting rank as printed."""

    title: str
    choices: Mapping[str, str]
    """Of the setting, by axis."""
    methods: int
    seeds: int
    tau: float = math.nan
    interval: Interval = UNKNOWN
    refused: str = ""
    """Why there is none, where there is none."""

    @property
    def needs_cause(self) -> bool:
        """Whether it is far from print."""
        return self.tau < TAU


@dataclass(frozen=True)
class GainAgreement:
    """What one method gains over another, paired by seed, and what the paper prints."""

    title: str
    choices: Mapping[str, str]
    value: Value
    interval: Interval
    share: float = math.nan
    """Of the printed gain; nan of one seed, and where levels are not comparable."""
    share_interval: Interval = UNKNOWN

    @property
    def sign(self) -> str:
        """How its sign goes with the printed one, and whether the interval is sure of it."""
        same = math.copysign(1, self.value.mean) == math.copysign(1, self.value.printed_value)
        said = "as printed" if same else "opposite"
        if not self.interval.is_known:
            return f"{said} (one seed)"
        sure = self.interval.low > 0 or self.interval.high < 0
        return said if sure else f"{said} (0 within)"

    @property
    def needs_cause(self) -> bool:
        """Whether it is far from print: the other sign, or too small a share. One seed is not."""
        known = self.value.n >= LEAST_SEEDS
        return known and ("opposite" in self.sign or self.share < SHARE)


# -- the order of the methods ----------------------------------------------------------------------


def measure_orders(recorded: RecordedStudy) -> list[OrderAgreement]:
    """Kendall's tau within each setting that has printed figures, or why there is none."""
    result = recorded.result
    found = []
    for group in group_rivals(result, list_slots(result.cells)).values():
        slots = [slot for slot in group if slot.value.n and math.isfinite(slot.value.printed_value)]
        if len(slots) > 1:
            found.append(_measure_order(recorded, slots))
    return found


def _measure_order(recorded: RecordedStudy, slots: Sequence[TableSlot]) -> OrderAgreement:
    choices, title = describe_setting(recorded.result, slots[0])
    seeds = find_common_seeds([slot.value for slot in slots])
    refused = _refuse_order(recorded, len(slots), len(seeds))
    if refused:
        return OrderAgreement(title, choices, len(slots), len(seeds), refused=refused)
    ours = np.array([pick_seeds(slot.value, seeds) for slot in slots])
    printed = np.array([slot.value.printed_value for slot in slots])
    return OrderAgreement(
        title,
        choices,
        len(slots),
        len(seeds),
        measure_kendall(ours.mean(axis=1), printed),
        bootstrap_interval(ours, lambda means: measure_kendall(means, printed)),
    )


def _refuse_order(recorded: RecordedStudy, methods: int, seeds: int) -> str:
    """Why an order would say nothing."""
    if not recorded.is_comparable:
        return "scaled: not comparable"
    if methods < LEAST_METHODS:
        return "one pair"
    return "" if seeds >= LEAST_SEEDS else "fewer than two seeds that all methods have"


def describe_setting(result: StudyResult, slot: TableSlot) -> tuple[dict[str, str], str]:
    """The choices of a slot but for the one that competes, and their titles where there are
    several."""
    compared = find_compared_axis(result)
    choices = {axis: name for axis, name in slot.cell.choices.items() if axis != compared}
    several = [axis for axis in choices if len(result.study.axes[axis]) > 1]
    titles = [slot.cell.titles[axis] for axis in several or choices]
    if len(result.study.scores) > 1:
        titles.append(slot.value.title)
    return choices, ", ".join(titles)


def find_common_seeds(values: Sequence[Value]) -> list[int]:
    """The seeds that all of them have, sorted."""
    common = set(values[0].seeds)
    for value in values[1:]:
        common &= set(value.seeds)
    return sorted(common)


def pick_seeds(value: Value, seeds: Sequence[int]) -> list[float]:
    """A score of these seeds."""
    by_seed = dict(zip(value.seeds, value.values, strict=True))
    return [by_seed[seed] for seed in seeds]


# -- gains -----------------------------------------------------------------------------------------


def measure_gains(recorded: RecordedStudy) -> list[GainAgreement]:
    """Every printed gain that the rows have pairs for."""
    result = recorded.result
    slots = [slot for slot in list_slots(result.cells) if slot.cell.kind == "difference"]
    known = [slot for slot in slots if slot.value.n and math.isfinite(slot.value.printed_value)]
    return [_measure_gain(recorded, slot) for slot in known]


def _measure_gain(recorded: RecordedStudy, slot: TableSlot) -> GainAgreement:
    value = slot.value
    interval = mean_interval(value.values)
    _, setting = describe_setting(recorded.result, slot)
    title = f"{slot.cell.titles[find_compared_axis(recorded.result)]}, {setting}"
    if not recorded.is_comparable or not value.printed_value or value.n < LEAST_SEEDS:
        return GainAgreement(title, slot.cell.choices, value, interval)
    unit = 1 / value.printed_value
    return GainAgreement(
        title,
        slot.cell.choices,
        value,
        interval,
        value.mean * unit,
        interval.scale(unit) if interval.is_known else UNKNOWN,
    )
