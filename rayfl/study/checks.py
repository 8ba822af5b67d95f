"""What would keep a run from starting, found before anything starts: files that are not there, a
federation that cannot be drawn, a method that cannot work on it. Each distinct part of a study is
tried once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from rayfl.config.schema import Config
from rayfl.errors import RayflError
from rayfl.federation.dataset import Dataset
from rayfl.federation.datasets import find_data_root
from rayfl.federation.scenario import Scenario, build_scenario, open_federation
from rayfl.federation.split import Role
from rayfl.protocol import Algorithm
from rayfl.run.assembly import (
    NetworkRecipe,
    build_holdings,
    build_spec,
    narrow_scenario,
    normalisation_of,
    refuse_missing_sets,
)

T = TypeVar("T")


@dataclass(frozen=True)
class TrialFacts:
    """What a configuration came to when it was tried."""

    problem: str = ""
    shape: tuple[int, int, int] = (0, 0, 0)
    classes: int = 0
    mean_samples: float = 0.0
    """Images of a client, of those that hold any."""
    labelled: int = 0
    """Images that the server trains on."""
    tested: int = 0


@dataclass
class ConfigTrials:
    """Tries configurations, and remembers what was tried."""

    facts: dict[str, TrialFacts] = field(default_factory=dict)
    built: dict[str, RayflError | None] = field(default_factory=dict)
    """Networks and encoders that were built for a trial, with the error where one could not be."""
    _loaded: tuple[str, Dataset | RayflError] | None = None
    _drawn: tuple[str, Scenario | RayflError] | None = None

    def of(self, config: Config) -> TrialFacts:
        """Whether a configuration can run, and what it will run on."""
        key = _describe_trial(config)
        if key not in self.facts:
            self.facts[key] = self._try_config(config)
        return self.facts[key]

    def _try_config(self, config: Config) -> TrialFacts:
        try:
            dataset, scenario = self._open_federation(config)
            classes = len(scenario.classes)
            self._build_parts(config, dataset.shape, classes)
            _try_method(config, dataset, scenario)
        except RayflError as error:
            return TrialFacts(str(error))
        sizes = scenario.sizes()
        test = dataset.test if scenario.test is None else scenario.test
        return TrialFacts(
            shape=dataset.shape,
            classes=classes,
            mean_samples=float(sizes[sizes > 0].mean()) if sizes.any() else 0.0,
            labelled=len(scenario.indices(Role.LABELLED)),
            tested=len(test),
        )

    def scenario_hash(self, config: Config) -> str:
        """What tells the scenario of a run from others."""
        _, scenario = self._open_federation(config)
        return scenario.sha256

    def close(self) -> None:
        """Let go of what is held in memory."""
        self._loaded = None
        self._drawn = None

    def _open_federation(self, config: Config) -> tuple[Dataset, Scenario]:
        """The dataset and the scenario of a run. The last of each is kept: studies change methods
        most often."""
        dataset = self._load_dataset(config)
        drawn_from = [config.recorded(), str(config.scenario), config.seeds_for("data")]
        key = json.dumps(drawn_from, sort_keys=True)
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = (key, _keep_error(lambda: _open_scenario(config, dataset)))
        return dataset, _raise_kept_error(self._drawn[1])

    def _load_dataset(self, config: Config) -> Dataset:
        root = config.data_root or find_data_root()
        key = json.dumps([config.resolved()["data"], str(root)], sort_keys=True)
        if self._loaded is None or self._loaded[0] != key:
            # The old one goes first: two large datasets may not fit into memory together.
            self._loaded = None
            self._loaded = (key, _keep_error(lambda: config.data.load(root)))
        return _raise_kept_error(self._loaded[1])

    def _build_parts(
        self,
        config: Config,
        shape: tuple[int, int, int],
        classes: int,
    ) -> None:
        """Build the network and the frozen encoders, whose weights may be missing."""
        resolved = config.resolved()
        network = [resolved["model"], resolved["method"]]
        recipe = NetworkRecipe(config, shape, classes)
        self._build_once(json.dumps([network, shape, classes]), recipe)
        for spec in config.method.encoders().values():
            self._build_once(json.dumps([repr(spec), shape]), partial(spec.build, shape))

    def _build_once(self, key: str, make: Callable[[], object]) -> None:
        if key not in self.built:
            made = _keep_error(make)
            self.built[key] = made if isinstance(made, RayflError) else None
        _raise_kept_error(self.built[key])


ASIDE = {
    "seed",
    "seeds",
    "tracking",
    "output",
    "checkpoint",
    "resources",
    "evaluation",
    "fleet",
    "device",
}
"""Settings that do not decide whether a run can start."""


def _describe_trial(config: Config) -> str:
    """What two configurations share of which one trial is enough: all but their seeds and where
    they run."""
    settings = config.model_dump(mode="json", exclude=ASIDE)
    return json.dumps(settings, sort_keys=True)


def _keep_error(make: Callable[[], T]) -> T | RayflError:
    """What is made, or the error that it ends in, to be raised again for every cell that needs
    it."""
    try:
        return make()
    except RayflError as error:
        return error


def _raise_kept_error(made: T | RayflError) -> T:
    """What was made, where it was."""
    if isinstance(made, RayflError):
        raise made
    return made


def _open_scenario(config: Config, dataset: Dataset) -> Scenario:
    """The scenario that the run itself would open."""
    seeds = config.seeds_for("data")
    if config.scenario is not None:
        return open_federation(config, seeds)[1]
    return build_scenario(config, dataset, seeds)


def _try_method(config: Config, dataset: Dataset, scenario: Scenario) -> None:
    """Name the sets that the method needs, and let it check its federation, as a run does before
    its first round."""
    method = config.method
    holdings = build_holdings(config, dataset, narrow_scenario(method, scenario))
    refuse_missing_sets(method, holdings)
    normalisation_of(config, dataset)
    # A fleet costs a network and copies: it is made only for methods that have something to check.
    if type(method).check is Algorithm.check:
        return
    from rayfl.fleet.inline import InlineFleet

    fleet = InlineFleet(build_spec(config, dataset, scenario, "cpu"), holdings)
    try:
        # The round before the first one.
        fleet.round = -1
        method.check(fleet)
    finally:
        fleet.close()
