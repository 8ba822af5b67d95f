"""What would keep a run from starting, found before anything starts: files that are not there, a
federation that cannot be drawn, a method that cannot work on it. Each distinct part of a study is
tried once."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rayfl.config.schema import Config
from rayfl.errors import RayflError
from rayfl.federation.dataset import Dataset
from rayfl.federation.datasets import data_root
from rayfl.federation.scenario import Scenario, build_scenario, open_federation
from rayfl.federation.split import Role
from rayfl.protocol import Algorithm
from rayfl.run.assembly import (
    NetworkRecipe,
    holdings_of,
    normalisation_of,
    refuse_missing_sets,
    seen_by,
    spec_of,
)


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
            self.facts[key] = self.trial(config)
        return self.facts[key]

    def trial(self, config: Config) -> TrialFacts:
        try:
            dataset, scenario = self.federation(config)
            self.parts(config, dataset.shape, len(scenario.classes))
            _try_method(config, dataset, scenario)
        except RayflError as error:
            return TrialFacts(str(error))
        sizes = scenario.sizes()
        return TrialFacts(
            shape=dataset.shape,
            classes=len(scenario.classes),
            mean_samples=float(sizes[sizes > 0].mean()) if sizes.any() else 0.0,
            labelled=len(scenario.indices(Role.LABELLED)),
            tested=len(dataset.test) if scenario.test is None else len(scenario.test),
        )

    def federation(self, config: Config) -> tuple[Dataset, Scenario]:
        """The dataset and the scenario of a run. The last of each is kept: studies change methods
        most often."""
        dataset = self.dataset(config)
        key = json.dumps(
            [config.recorded(), str(config.scenario), config.seeds_for("data")], sort_keys=True
        )
        if self._drawn is None or self._drawn[0] != key:
            self._drawn = (key, _keep_error(lambda: _open_scenario(config, dataset)))
        return dataset, _raise_kept_error(self._drawn[1])

    def dataset(self, config: Config) -> Dataset:
        root = config.data_root or data_root()
        key = json.dumps([config.resolved()["data"], str(root)], sort_keys=True)
        if self._loaded is None or self._loaded[0] != key:
            # The old one goes first: two large datasets may not fit into memory together.
            self._loaded = None
            self._loaded = (key, _keep_error(lambda: config.data.load(root)))
        dataset: Dataset = _raise_kept_error(self._loaded[1])
        return dataset

    def parts(self, config: Config, shape: tuple[int, int, int], classes: int) -> None:
        """Build the network and the frozen encoders, whose weights may be missing."""
        network = [config.resolved()[key] for key in ("model", "method")]
        self.once(
            json.dumps([network, shape, classes]), lambda: NetworkRecipe(config, shape, classes)()
        )
        for spec in config.method.encoders().values():
            self.once(json.dumps([repr(spec), shape]), partial(spec.build, shape))

    def once(self, key: str, make: Callable[[], object]) -> None:
        if key not in self.built:
            made = _keep_error(make)
            self.built[key] = made if isinstance(made, RayflError) else None
        _raise_kept_error(self.built[key])

    def scenario_hash(self, config: Config) -> str:
        return self.federation(config)[1].sha256

    def close(self) -> None:
        """Let go of what is held in memory."""
        self._loaded = self._drawn = None


def _describe_trial(config: Config) -> str:
    """What two configurations share of which one trial is enough: all but their seeds and where
    they run."""
    aside = {
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
    return json.dumps(config.model_dump(mode="json", exclude=aside), sort_keys=True)


def _keep_error(make: Callable[[], Any]) -> Any:
    """What is made, or the error that it ends in, to be raised again for every cell that needs
    it."""
    try:
        return make()
    except RayflError as error:
        return error


def _raise_kept_error(made: Any) -> Any:
    if isinstance(made, RayflError):
        raise made
    return made


def _open_scenario(config: Config, dataset: Dataset) -> Scenario:
    """The scenario that the run itself would open."""
    if config.scenario is not None:
        return open_federation(config, config.seeds_for("data"))[1]
    return build_scenario(config, dataset, config.seeds_for("data"))


def _try_method(config: Config, dataset: Dataset, scenario: Scenario) -> None:
    """Name the sets that the method needs, and let it check its federation, as a run does before
    its first round."""
    method = config.method
    holdings = holdings_of(config, dataset, seen_by(method, scenario))
    refuse_missing_sets(method, holdings)
    normalisation_of(config, dataset)
    # A fleet costs a network and copies: it is made only for methods that have something to check.
    if type(method).check is Algorithm.check:
        return
    from rayfl.fleet.inline import InlineFleet

    fleet = InlineFleet(spec_of(config, dataset, scenario, "cpu"), holdings)
    try:
        fleet.round = -1
        method.check(fleet)
    finally:
        fleet.close()
