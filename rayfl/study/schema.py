"""What a study file says.

    title: "FedDS, Table 4"
    like: fedds_table5.yaml                     another study that this one changes (optional)
    base: fedds_mnist.yaml                      configuration files, as in a run's own `base`
    set: {evaluation.every: 1}                  what every cell changes
    axes:
      method:
        fedavg: {title: FedAvg, set: {method: fedavg}}
        fedds: {title: FedAvg + FedDS, set: {method: fedds}}
        gain: {title: Delta, difference: [fedds, fedavg]}
        rhfl: {title: RHFL, missing: "RHFL is not built"}
      dataset:
        mnist: {title: MNIST, set: {data: mnist, model: mnist_cnn}}
    seeds: [0, 1, 2]
    scores:
      accuracy: {title: "accuracy (%)", metric: test/accuracy, over: last, percent: true}
    table: {rows: [method], columns: [dataset]}
    printed:
      file: printed/fedds.csv
      where: {table: Table 4, dataset: "{dataset}", method: "{method}"}

A cell is one choice on every axis; it runs once a seed. Its settings are those of `base`, changed
by `set`, then by each axis' choice in the order of the axes, then by the `rules` that hold for it,
just as a file changes its base; dotted keys reach inside. The text `{seed}` stands for the run's
seed, `{data}` for the folder of the datasets. `{axis}` in `printed.where` stands for the choice's
`printed` or else its title, `{score}` for the score's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from rayfl.component import Count, NonNegative
from rayfl.config.files import merge_settings, put_setting, read_file
from rayfl.config.schema import Section, Seed
from rayfl.errors import broken, suggest_nearest

FIGURES = (
    "curves",
    "precision_recall",
    "reliability",
    "confusion",
    "similarity",
    "dendrogram",
    "tsne",
    "distributions",
    "sensitivity",
    "retrieved",
    "costs",
)

ChoiceKey = tuple[str, ...]
"""Names of choices, one an axis."""
Combination = Mapping[str, str | list[str]]
"""By axis, the choice or the choices that are meant."""


class Score(Section):
    """A number that a run is worth."""

    title: str
    metric: str | None = "test/accuracy"
    """The metric of a round, a clock reading or a derived measure that is summed up; or null, and
    `array` names what the method left."""
    over: Literal["final", "best", "mean", "last"] = "last"
    window: Count = 10
    """How many rounds `last` takes the mean of."""
    percent: bool = False
    """Shown a hundredfold."""
    digits: int = 2
    array: str | None = None
    at: tuple[int, ...] = ()
    """The entry of `array`."""
    lower_is_better: bool = False
    printed: str | None = None
    """What the printed file calls it, where that is not the title."""


class Choice(Section):
    """One value of an axis."""

    title: str
    set: dict[str, Any] = Field(default_factory=dict)
    """What it changes in the configuration, by the same rules as a file on its `base`; dotted keys
    reach inside."""
    missing: str | None = None
    """Why it cannot run; the choice stays in the table."""
    difference: tuple[str, str] | None = None
    """Two other choices of this axis: the cell is not run, it is the first one's score minus the
    second one's."""
    average: tuple[str, ...] = ()
    """Other choices of this axis: the cell is not run, it is the mean (and deviation) of their
    means."""
    scores: dict[str, Score] = Field(default_factory=dict)
    """Replaces the study's scores of the same name in this choice's cells."""
    printed: str | None = None
    """What the printed file calls it, where that is not the title."""

    @property
    def parts(self) -> tuple[str, ...]:
        """The choices that a computed one is computed from."""
        return self.difference or self.average


class Rule(Section):
    """What changes where several choices meet: a method's setting for one dataset, for instance."""

    when: dict[str, str | list[str]]
    """By axis, the choice or choices for which this holds."""
    set: dict[str, Any]


class Printed(Section):
    """Where a paper's figures are, and which column says what."""

    file: str
    where: dict[str, str]
    mean: str = "mean"
    std: str = "std"
    symbols: dict[str, float] = Field(default_factory=dict)
    """Numbers for the letters of a printed formula, such as `(k + 1)M`."""


class TableLayout(Section):
    """Which axes go down a table and which across; `score` is an axis too where there are
    several."""

    rows: list[str] = Field(default_factory=lambda: ["method"])
    columns: list[str] = Field(default_factory=list)


class Scaling(Section):
    """How `--scale` shrinks a study; `rayfl.study.scaling` has the rules. No setting falls below
    its least."""

    least: dict[str, NonNegative] = Field(default_factory=dict)
    """Least values of this study, in place of the usual ones."""


class Study(Section):
    """A table, or a figure, of a paper or of one's own."""

    title: str
    paper: str = ""
    notes: str = ""
    """What a reader of the table must know: what the paper leaves open, what is different here."""
    base: list[str] = Field(default_factory=list)
    set: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, dict[str, Choice]]
    rules: list[Rule] = Field(default_factory=list)
    """Changes after those of the axes, in this order."""
    seeds: list[Seed] = Field(default_factory=lambda: [0, 1, 2], min_length=1)
    scores: dict[str, Score] = Field(
        default_factory=lambda: {"accuracy": Score(title="accuracy (%)", percent=True)},
        validate_default=True,
    )
    table: TableLayout = Field(default_factory=TableLayout)
    printed: Printed | None = None
    figures: list[Literal[FIGURES]] = Field(default_factory=list)  # type: ignore[valid-type]
    """Figures that the report draws besides the table, by name."""
    scaling: Scaling = Field(default_factory=Scaling)
    exclude: list[dict[str, str | list[str]]] = Field(default_factory=list)
    """Combinations of choices that are not cells."""

    @model_validator(mode="after")
    def names_are_known(self) -> Self:
        """Refuse axes and choices that the study does not have."""
        self._check_table()
        self._check_parts()
        for combination in self.exclude:
            self._check_combination("exclude", combination)
        for rule in self.rules:
            self._check_combination("rules", rule.when)
        return self

    def _check_table(self) -> None:
        known = [*self.axes, "score"]
        for axis in (*self.table.rows, *self.table.columns):
            if axis not in known:
                rule = f"table names axes ({', '.join(known)})"
                raise ValueError(broken(rule, axis, suggest_nearest(axis, known)))

    def _check_parts(self) -> None:
        """What a computed choice stands on is run."""
        for axis, choices in self.axes.items():
            for name, choice in choices.items():
                for other in choice.parts:
                    if other in choices and not choices[other].parts:
                        continue
                    rule = f"axes.{axis}.{name} is computed from choices of {axis} that are run"
                    raise ValueError(broken(rule, other, suggest_nearest(other, choices)))

    def _check_combination(self, key: str, combination: Combination) -> None:
        rule = f"{key} name axes and their choices"
        for axis, names in combination.items():
            choices = self.axes.get(axis, {})
            for name in _list_names(names):
                if name in choices:
                    continue
                unknown = (
                    suggest_nearest(name, choices) if choices else suggest_nearest(axis, self.axes)
                )
                raise ValueError(broken(rule, f"{axis}: {name}", unknown))

    @cached_property
    def common(self) -> dict[str, Any]:
        """The plain values of `base` and `set`: what all cells share."""
        merged: dict[str, Any] = {}
        for base in self.base:
            merged = merge_settings(merged, read_file(Path(base)))
        return apply_changes(merged, self.set)

    def shown_axes(self) -> Sequence[str]:
        """Axes of the table, rows first; those that the layout does not name come last, across."""
        named = [*self.table.rows, *self.table.columns]
        return [*named, *(axis for axis in self.axes if axis not in named)]


def apply_changes(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` merged onto `settings`; their dotted keys are put where they point."""
    plain = {key: value for key, value in changes.items() if "." not in key}
    result = merge_settings(settings, plain)
    for key, value in changes.items():
        if "." in key:
            result = put_setting(result, key.split("."), value)
    return result


def is_meant(combination: Combination, choices: Mapping[str, str]) -> bool:
    """Whether a cell with these choices is one that a rule or an exclusion speaks of."""
    return all(choices[axis] in _list_names(names) for axis, names in combination.items())


def _list_names(names: str | list[str]) -> list[str]:
    """One choice or several, as several."""
    return [names] if isinstance(names, str) else names
