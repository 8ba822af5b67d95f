"""What Ray Tune is told of a sweep: its space, its scheduler, and to be quiet."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from ray import tune
from ray.tune.schedulers import AsyncHyperBandScheduler, PopulationBasedTraining, TrialScheduler

from rayfl.config.schema import Config
from rayfl.errors import ConfigError, broken
from rayfl.secrets import mask_secrets
from rayfl.tuning.book import Book, Trial
from rayfl.tuning.points import config_of, list_corners
from rayfl.tuning.schema import Asha, Domain, Pbt, Sweep

QUIET = {
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
    "RAY_AIR_NEW_OUTPUT": "0",
}
"""Tune's logs, tables and signal handlers: a sweep has its own."""


def space_of(book: Book, trials: list[Trial], uri: str) -> dict[str, Any]:
    """What a trial is told; which trial, Tune fills in."""
    told = [{"id": trial.id, "seed": trial.seed, "values": dict(trial.values)} for trial in trials]
    # Tune writes this to the disk. A URI with credentials is of the environment, where trials find
    # it, too.
    shown = uri if mask_secrets(uri) == uri else None
    common = {"sweep": str(book.directory), "tracking": shown}
    return {**common, "trial": tune.grid_search(told)} if told else common


def name_trial(trial: Any) -> str:
    """A trial's name stays its own when its settings become another's."""
    return str(trial.config["trial"]["id"])


def make_scheduler(sweep: Sweep, configs: list[Config]) -> TrialScheduler | None:
    """Tune's scheduler, if the sweep wants one; its clock is the round."""
    chosen = sweep.scheduler
    if isinstance(chosen, Asha):
        return _make_asha(sweep, chosen, configs)
    if isinstance(chosen, Pbt):
        return _make_population(sweep, chosen)
    return None


def _judged_by(sweep: Sweep) -> dict[str, Any]:
    return {"time_attr": "round", "metric": sweep.metric, "mode": sweep.mode}


def _make_asha(sweep: Sweep, asha: Asha, configs: list[Config]) -> TrialScheduler:
    rounds = max((config.training.rounds for config in configs), default=0) or _longest_run(sweep)
    if asha.grace > rounds:
        rule = f"scheduler.grace is at most the rounds of a run ({rounds})"
        raise ConfigError(broken(rule, asha.grace))
    return AsyncHyperBandScheduler(
        **_judged_by(sweep),
        max_t=rounds,
        grace_period=asha.grace,
        reduction_factor=asha.reduction,
        brackets=asha.brackets,
        stop_last_trials=False,
    )


def _make_population(sweep: Sweep, population: Pbt) -> TrialScheduler:
    rng = np.random.default_rng(sweep.seed)
    drawn = {}
    for path, domain in sweep.search.items():
        drawn[path] = domain.values or partial(domain.draw, rng)
    return PopulationBasedTraining(
        **_judged_by(sweep),
        perturbation_interval=population.interval,
        quantile_fraction=population.quantile,
        resample_probability=population.resample,
        hyperparam_mutations={"trial": {"values": drawn}},
        custom_explore_fn=partial(_within_bounds, sweep.search),
        synch=population.together,
    )


def _longest_run(sweep: Sweep) -> int:
    configs = [config_of(sweep, values, sweep.seeds[0]) for values in list_corners(sweep)]
    return max(config.training.rounds for config in configs)


def _within_bounds(search: Mapping[str, Domain], told: dict[str, Any]) -> dict[str, Any]:
    """Tune multiplies a setting without asking how far it may go."""
    values = {path: search[path].within(value) for path, value in told["trial"]["values"].items()}
    return {**told, "trial": {**told["trial"], "values": values}}


@contextmanager
def draw_from_seed(seed: int) -> Iterator[None]:
    """Tune's population draws from Python's own generator: for as long as this lasts, from a
    seed."""
    before = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(before)


@contextmanager
def keep_tune_quiet() -> Iterator[None]:
    """Tune says nothing: what matters is said by the sweep, in its own words."""
    before = {name: os.environ.get(name) for name in QUIET}
    os.environ.update(QUIET)
    tunes = logging.getLogger("ray.tune")
    level = tunes.level
    tunes.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        tunes.setLevel(level)
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
