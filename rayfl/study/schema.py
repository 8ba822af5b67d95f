"""What a study file says.

    title: "FedDS, Table 4"
    base: fedds_mnist.yaml                      configuration files, as in a run's own `base`
    axes:
      method:
        fedavg: {title: FedAvg, set: {method: fedavg}}
        rhfl: {title: RHFL, missing: "RHFL is not built"}
      dataset:
        mnist: {title: MNIST, set: {data: mnist, model: mnist_cnn}}
    seeds: [0, 1, 2]
    scores: {accuracy: {title: "accuracy (%)", metric: test/accuracy, over: last, percent: true}}
    table: {rows: [method], columns: [dataset]}
    printed: {file: printed/fedds.csv, where: {table: Table 4, dataset: "{dataset}", method: "{method}"}}

A cell is one choice on every axis; it runs once a seed. `{axis}` in `printed.where` stands for the title of the cell's
choice, `{score}` for the score's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from rayfl.component import Count, NonNegative
from rayfl.config import Section, Seed
from rayfl.errors import broken, nearest


class Score(Section):
    """A number that a run is worth."""

    title: str
    metric: str | None = "test/accuracy"
    """The metric of a round that is summed up; or null, and `array` names what the method left."""
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


class Choice(Section):
    """One value of an axis."""

    title: str
    set: dict[str, Any] = Field(default_factory=dict)
    """What it changes in the configuration, by the same rules as a file on its `base`."""
    missing: str | None = None
    """Why it cannot run; the choice stays in the table."""
    difference: tuple[str, str] | None = None
    """Two other choices of this axis: the cell is not run, it is the first one's score minus the second one's."""
    scores: dict[str, Score] = Field(default_factory=dict)
    """Replaces the study's scores of the same name in this choice's cells."""
    printed: dict[str, str] = Field(default_factory=dict)
    """Columns of the printed file whose text is not the title, for this choice."""


class Printed(Section):
    """Where a paper's figures are, and which column says what."""

    file: str
    where: dict[str, str]
    mean: str = "mean"
    std: str = "std"


class Layout(Section):
    """Which axes go down a table and which across; `score` is an axis too where there are several."""

    rows: list[str] = Field(default_factory=lambda: ["method"])
    columns: list[str] = Field(default_factory=list)


class Scaling(Section):
    """How `--scale` shrinks a study: each of these settings is multiplied, rounded, and kept at its least."""

    least: dict[str, NonNegative] = Field(
        default_factory=lambda: {
            "training.rounds": 5.0,
            "clients": 10.0,
            "training.clients_per_round": 4.0,
            "split.train_samples.total": 1000.0,
            "split.test_samples.total": 1000.0,
            "split.public.total": 100.0,
        }
    )


class Study(Section):
    """A table, or a figure, of a paper or of one's own."""

    title: str
    paper: str = ""
    notes: str = ""
    """What a reader of the table must know: what the paper leaves open, what is different here."""
    base: str | list[str] = Field(default_factory=list)
    set: dict[str, Any] = Field(default_factory=dict)
    axes: dict[str, dict[str, Choice]]
    seeds: list[Seed] = Field(default_factory=lambda: [0, 1, 2])
    scores: dict[str, Score] = Field(
        default_factory=lambda: {"accuracy": Score(title="accuracy (%)", percent=True)}, validate_default=True
    )
    table: Layout = Field(default_factory=Layout)
    printed: Printed | None = None
    figures: list[str] = Field(default_factory=list)
    """Figures that the report draws besides the table, by name."""
    scaling: Scaling = Field(default_factory=Scaling)
    exclude: list[dict[str, str]] = Field(default_factory=list)
    """Combinations of choices that are not cells."""

    @model_validator(mode="after")
    def names_are_known(self) -> Self:
        known = [*self.axes, "score"]
        for axis in (*self.table.rows, *self.table.columns):
            if axis not in known:
                raise ValueError(broken(f"table names axes ({', '.join(known)})", axis, nearest(axis, known)))
        for axis, choices in self.axes.items():
            for name, choice in choices.items():
                for other in choice.difference or ():
                    if other not in choices:
                        raise ValueError(broken(f"{name}.difference names choices of {axis}", other))
        return self

    def shown_axes(self) -> Sequence[str]:
        """Axes of the table, rows first; those that the layout does not name come last, across."""
        named = [*self.table.rows, *self.table.columns]
        return [*named, *(axis for axis in self.axes if axis not in named)]
