"""Where the rounds of a run take place: in this process, or on Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rayfl.bits import hold_bits
from rayfl.config.schema import Config
from rayfl.errors import ConfigError, broken
from rayfl.federation.dataset import Dataset
from rayfl.federation.scenario import Scenario
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.executor import Holdings
from rayfl.fleet.inline import InlineFleet
from rayfl.fleet.on_ray.connection import connect_ray
from rayfl.run.assembly import build_spec
from rayfl.run.signals import Stop

if TYPE_CHECKING:
    from rayfl.fleet.on_ray.hiring import Hiring
    from rayfl.fleet.on_ray.placement import Placement

Emit = Callable[[dict[str, Any]], int]
Made_co = TypeVar("Made_co", covariant=True)
Made = TypeVar("Made")


class Driven(Protocol[Made_co]):
    """What runs on a fleet: the engine of a run, or of an audit."""

    def run(self, fleet: BaseFleet, emit: Callable[[dict[str, Any]], object]) -> Made_co:
        """All of it."""

    def save(self) -> int:
        """Leave a checkpoint; its round, -1 where there is none."""


class RunPlace(Protocol):
    """Takes the data in, then runs; in this order, once."""

    def take_in(
        self, dataset: Dataset, scenario: Scenario, holdings: Holdings
    ) -> Mapping[str, str]:
        """What the run needs of the data; the caller may drop its own. What there is to say of
        the place."""

    def run(self, engine: Driven[Made], emit: Emit) -> Made:
        """All rounds; interrupted, they leave a checkpoint."""


@contextmanager
def open_place(config: Config, address: str | None, stop: Stop) -> Iterator[RunPlace]:
    """The place that a configuration asks for, with a connection to Ray where that is needed."""
    hold_bits([config.bits])
    if config.fleet == "inline":
        yield InThisProcess(config, stop)
        return
    with stop.later(), connect_ray(address, stop.heed, stop.is_asked):
        yield OnRay(config, stop)


class InThisProcess:
    """Client after client, in the thread that asks."""

    def __init__(self, config: Config, stop: Stop) -> None:
        if config.device == "cuda":
            rule = "fleet: inline runs on the CPU"
            raise ConfigError(broken(rule, "device: cuda", "Use fleet: ray."))
        self.config = config
        self.stop = stop
        self.fleet: InlineFleet

    def take_in(
        self, dataset: Dataset, scenario: Scenario, holdings: Holdings
    ) -> Mapping[str, str]:
        self.fleet = InlineFleet(build_spec(self.config, dataset, scenario, "cpu"), holdings)
        return {}

    def run(self, engine: Driven[Made], emit: Emit) -> Made:
        def emit_and_heed(record: dict[str, Any]) -> int:
            told = emit(record)
            # A method of somebody's may have caught all exceptions.
            self.stop.heed()
            return told

        try:
            return engine.run(self.fleet, emit_and_heed)
        finally:
            self.fleet.close()


class OnRay:
    """Actors for clients and one for the coordinator, which this process follows."""

    def __init__(self, config: Config, stop: Stop) -> None:
        self.config = config
        self.stop = stop
        self.hiring: Hiring

    def take_in(
        self, dataset: Dataset, scenario: Scenario, holdings: Holdings
    ) -> Mapping[str, str]:
        from rayfl.fleet.on_ray.coordinator import (
            describe_cluster,
            describe_job,
            store_for_hiring,
        )

        placement = self._placement(dataset, scenario, holdings)
        device = "cuda" if placement.cuda else "cpu"
        spec = build_spec(self.config, dataset, scenario, device)
        # From here on the arrays lie in the object store.
        self.hiring = store_for_hiring(spec, holdings, placement)
        actors = str(placement.actors)
        return {"cluster": describe_cluster(), "actors": actors, **describe_job()}

    def run(self, engine: Driven[Made], emit: Emit) -> Made:
        from rayfl.fleet.on_ray.coordinator import drive_run

        made: Made = drive_run(engine, self.hiring, emit, self.stop.heed)
        return made

    def _placement(self, dataset: Dataset, scenario: Scenario, holdings: Holdings) -> Placement:
        """What fits the cluster."""
        from rayfl.fleet.on_ray.coordinator import fit_placement
        from rayfl.fleet.on_ray.gpu_probe import measure_gpu_share

        config, wanted = self.config, self.config.resources

        def measure_share() -> float:
            spec = build_spec(config, dataset, scenario, "cuda")
            return measure_gpu_share(spec, holdings, wanted.cpus_per_client)

        return fit_placement(
            wanted.actors,
            wanted.cpus_per_client,
            wanted.gpus_per_client,
            config.device,
            config.training.cohort(config.clients),
            measure_share,
            wanted.keepers,
        )
