"""What a sweep file says.

    base: ../quickstart.yaml               configuration files, as in a run's own `base`
    set: {training: {rounds: 20}}          what all trials change in them
    search:                                dotted settings, and where their values come from
      training.lr: {loguniform: [1e-3, 1]}
      method: {choice: [fedavg, {name: fedprox, mu: 0.1}]}
    searcher: random                       grid, random, or optuna (TPE)
    samples: 16                            points to draw
    seeds: [0, 1]                          a point is run once a seed; its score is the mean
    metric: test/accuracy
    scheduler: {name: asha, grace: 5}      none, asha (stops early), or pbt (trains a population)

A point is one value for every setting that is searched; a trial is one run of a point, with one
seed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import (
    AfterValidator,
    Field,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from typing_extensions import Self

from rayfl.component import Count, Fraction, Natural, Registry, component, show_value, slot
from rayfl.config.explain import explain_errors
from rayfl.config.files import apply_override, merge_settings, parse_file, read_file
from rayfl.config.schema import Section, Seed
from rayfl.config.shipped import find_base, find_file, refuse_other_kind
from rayfl.errors import ConfigError, broken, suggest_nearest

KINDS = ("grid", "choice", "uniform", "loguniform", "randint", "quniform")
NOT_SEARCHED = {
    "seed": "Set seeds of the sweep.",
    "output": "Set it in `set`: all trials share it.",
    "tracking": "Set it in `set`: all trials share it.",
    "checkpoint": "Set it in `set`: it decides no result.",
}


class Domain(Section):
    """Where the values of one setting come from: exactly one of these."""

    grid: Annotated[list[Any], Field(min_length=1)] | None = None
    """Each of these."""
    choice: Annotated[list[Any], Field(min_length=1)] | None = None
    """Any of these."""
    uniform: tuple[float, float] | None = None
    loguniform: tuple[float, float] | None = None
    randint: tuple[int, int] | None = None
    """A whole number; the upper bound is not among them."""
    quniform: tuple[float, float, float] | None = None
    """Uniform between the first two, rounded to a multiple of the third."""

    @model_validator(mode="before")
    @classmethod
    def one_kind(cls, written: Any) -> Any:
        keys = list(written) if isinstance(written, Mapping) else []
        if len(keys) != 1 or keys[0] not in KINDS:
            hint = (
                suggest_nearest(str(keys[0]), KINDS)
                if len(keys) == 1
                else "Write for instance {grid: [0.1, 0.01]}."
            )
            raise ValueError(
                broken(f"a domain has exactly one of {', '.join(KINDS)}", show_value(written), hint)
            )
        return written

    @model_validator(mode="after")
    def has_room(self) -> Self:
        if self.values is not None:
            return self
        low, high = self.bounds
        if not low < high or not math.isfinite(high - low):
            raise ValueError(
                broken(f"{self.kind} goes from a lower to a higher bound", f"[{low:g}, {high:g}]")
            )
        if self.loguniform is not None and low <= 0:
            raise ValueError(broken("loguniform needs bounds above 0", f"{low:g}", "Use uniform."))
        if self.quniform is not None and not 0 < self.quniform[2] <= high - low:
            raise ValueError(
                broken("the step of quniform is above 0 and fits the bounds", self.quniform[2])
            )
        return self

    @model_serializer
    def as_written(self) -> dict[str, Any]:
        return {self.kind: getattr(self, self.kind)}

    @property
    def kind(self) -> str:
        return next(kind for kind in KINDS if getattr(self, kind) is not None)

    @property
    def values(self) -> list[Any] | None:
        """What there is to choose from; None for a range of numbers."""
        return self.grid if self.grid is not None else self.choice

    @property
    def bounds(self) -> tuple[float, float]:
        low, high = getattr(self, self.kind)[:2]
        return low, high

    @property
    def text(self) -> str:
        return f"{self.kind} {getattr(self, self.kind)}"

    def draw(self, rng: np.random.Generator) -> Any:
        """One value."""
        if self.values is not None:
            return self.values[rng.integers(len(self.values))]
        low, high = self.bounds
        if self.loguniform is not None:
            return float(np.exp(rng.uniform(np.log(low), np.log(high))))
        if self.randint is not None:
            return int(rng.integers(int(low), int(high)))
        return self.within(float(rng.uniform(low, high)))

    def within(self, value: Any) -> Any:
        """The nearest value that the domain has, for a number that a scheduler has scaled."""
        if self.values is not None:
            return value
        low, high = self.bounds
        if self.randint is not None:
            return min(max(round(value), int(low)), int(high) - 1)
        if self.quniform is not None:
            step = self.quniform[2]
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            return float(np.round(min(max(round(value / step), first), last) * step, 12))
        return min(max(value, low), high)

    def corners(self) -> list[Any]:
        """Values that must be good if all are: every choice, or both ends."""
        if self.values is not None:
            return self.values
        low, high = self.bounds
        return [self.within(low), self.within(high)]


@component
class Straight:
    """Every trial is run to its end."""


@component
class Asha:
    """Asynchronous successive halving: at each rung all but the best share of the trials are
    stopped.

    From: Li et al., A System for Massively Parallel Hyperparameter Tuning, MLSys 2020.
    """

    grace: Count = 1
    """Rounds that every trial is given; the first rung."""
    reduction: Annotated[float, Field(gt=1, allow_inf_nan=False)] = 3.0
    """One in so many goes on, for so many times as long."""
    brackets: Count = 1


@component
class Pbt:
    """Population based training: the worst take over the state of the best, with settings a little
    changed.

    From: Jaderberg et al., Population Based Training of Neural Networks, 2017.
    """

    interval: Count = 5
    """Rounds between two comparisons."""
    quantile: Annotated[float, Field(gt=0, le=0.5)] = 0.25
    """The share of the population that is replaced, and that is taken over."""
    resample: Fraction = 0.25
    """How often a setting is drawn anew rather than changed."""
    together: bool = True
    """Compare all members at the same round; otherwise each with what the others have reached when
    it comes by."""


SCHEDULERS: Registry[Any] = Registry(
    "scheduler",
    {
        name: f"{__name__}:{cls}"
        for name, cls in (("none", "Straight"), ("asha", "Asha"), ("pbt", "Pbt"))
    },
)


def _refuse_odd_name(text: str) -> str:
    """The name of a folder."""
    if (
        not text
        or not all(letter.isalnum() or letter in "-_." for letter in text)
        or text.startswith(".")
    ):
        raise ValueError(broken("a sweep's name is made of letters, digits, - _ and .", repr(text)))
    return text


class Sweep(Section):
    """A search."""

    name: Annotated[str, AfterValidator(_refuse_odd_name)] = "sweep"
    """By default the file's own name; what is known of the sweep is kept below
    output/sweeps/NAME."""
    base: str | list[str] = Field(default_factory=list)
    set: dict[str, Any] = Field(default_factory=dict)
    search: Annotated[dict[str, Domain], Field(min_length=1)]
    seeds: Annotated[list[Seed], Field(min_length=1)] = Field(default_factory=lambda: [0])
    searcher: Literal["grid", "random", "optuna"] = "grid"
    samples: Count = 10
    """Points that optuna tries; draws, for `random`, at every point of the grid that `grid` domains
    span."""
    seed: Seed = 0
    """Decides the draws, not the runs."""
    scheduler: Annotated[Any, slot(SCHEDULERS)] = Field(default="none", validate_default=True)
    metric: str = "test/accuracy"
    mode: Literal["max", "min"] = "max"
    over: Literal["last", "best", "final"] = "last"
    """The score of a trial: the mean of the metric's last few values, its best one, or its final
    one."""
    window: Count = 10
    """How many values `last` takes the mean of."""
    at_once: Count | Literal["auto"] = "auto"
    """Trials at a time; by default as many as the cluster can hold."""
    retries: Natural = 2
    """How often a trial that fails is taken up again from its checkpoint."""

    @field_validator("search", mode="before")
    @classmethod
    def dotted(cls, written: Any) -> Any:
        """`training: {lr: ...}` is the same as `training.lr: ...`."""
        return dict(_flatten(written)) if isinstance(written, Mapping) else written

    @model_validator(mode="after")
    def searchable(self) -> Self:
        for path in self.search:
            first = path.partition(".")[0]
            if first in NOT_SEARCHED:
                raise ValueError(
                    broken("search names settings that decide a result", path, NOT_SEARCHED[first])
                )
        ranges = [path for path, domain in self.search.items() if domain.grid is None]
        if self.searcher == "grid" and ranges:
            rule, got = (
                "searcher: grid needs grids only",
                f"{self.search[ranges[0]].text} for {ranges[0]}",
            )
            raise ValueError(broken(rule, got, "Set searcher: random, or optuna."))
        if len({*self.seeds}) < len(self.seeds):
            raise ValueError(broken("seeds are all different", self.seeds))
        return self

    @model_validator(mode="after")
    def population(self) -> Self:
        """A member goes on with another's state, which must fit: same data, same network, same
        method."""
        if not isinstance(self.scheduler, Pbt):
            return self
        if self.searcher == "optuna" or len(self.seeds) > 1:
            rule = "pbt trains one population: searcher is grid or random, and there is one seed"
            raise ValueError(broken(rule, f"searcher: {self.searcher}, seeds: {self.seeds}"))
        for path in self.search:
            if not path.startswith(("training.", "method.")) or path in (
                "method.name",
                "training.rounds",
            ):
                rule = "pbt searches settings below `training` (not rounds) and `method` (not name)"
                raise ValueError(
                    broken(rule, path, "What else a run is made of cannot change in its middle.")
                )
        return self

    @property
    def stretch(self) -> int | None:
        """Rounds after which a trial waits for the scheduler's word; None where it need not."""
        return self.scheduler.interval if isinstance(self.scheduler, Pbt) else None

    def decisive(self) -> dict[str, Any]:
        """All that decides which trials there are and how they are judged."""
        return self.model_dump(mode="json", exclude={"at_once", "retries"})


def _flatten(written: Mapping[Any, Any], above: str = "") -> list[tuple[str, Any]]:
    """Nested settings with dotted names, down to what looks like a domain."""
    pairs: list[tuple[str, Any]] = []
    for key, value in written.items():
        nested = isinstance(value, Mapping) and value and not {*value} & {*KINDS}
        # A mapping at the top that is no domain may as well be one that is misspelt; the message is
        # better there.
        deeper = nested and all(isinstance(inner, Mapping) for inner in value.values())
        pairs += _flatten(value, f"{above}{key}.") if deeper else [(f"{above}{key}", value)]
    return pairs


def load_sweep(path: Path, overrides: Sequence[str] = ()) -> Sweep:
    """The sweep of a file with overrides of it."""
    place = find_file(path.expanduser(), "sweep").absolute()
    settings = parse_file(place)
    refuse_other_kind(settings, path, "sweep")
    for override in overrides:
        settings = apply_override(settings, override)
    return read_sweep({"name": place.stem, **settings}, place.parent, str(path))


def read_sweep(settings: Mapping[str, Any], folder: Path, where: str = "sweep") -> Sweep:
    """A sweep from plain values, complete in itself: what its `base` files say has become its
    `set`."""
    try:
        sweep = Sweep(**settings)
    except ValidationError as error:
        raise ConfigError(explain_errors(error, Sweep, settings, where)) from None
    except TypeError as error:
        raise ConfigError(f"{where}: keys are text; {error}") from None
    merged: dict[str, Any] = {}
    for base in [sweep.base] if isinstance(sweep.base, str) else sweep.base:
        merged = merge_settings(merged, read_file(find_base(folder, base)))
    return sweep.model_copy(update={"base": [], "set": merge_settings(merged, sweep.set)})
