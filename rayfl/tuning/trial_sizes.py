"""How many trials run at a time, and what the cluster gives to each."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray import tune

from rayfl.config.schema import Config
from rayfl.fleet.on_ray.coordinator import fit_placement
from rayfl.tuning.book import Book
from rayfl.tuning.points import config_of, list_corners


@dataclass(frozen=True)
class TrialSizes:
    """How many trials run at a time, and what each is given: a bundle for every client actor."""

    book: Book
    at_once: int

    @classmethod
    def of(cls, book: Book) -> TrialSizes:
        """What was asked for, or what the cluster can hold: rather many trials than many actors for
        one."""
        sweep = book.sweep
        if sweep.at_once != "auto":
            return cls(book, sweep.at_once)
        config = config_of(sweep, next(list_corners(sweep)), sweep.seeds[0])
        wanted = config.resources.actors
        most = _count_places(config) // (wanted if isinstance(wanted, int) else 1)
        return cls(book, max(1, min(most, book.count)))

    def __call__(self, told: Mapping[str, Any]) -> tune.PlacementGroupFactory:
        """The trial's placement group. The trial and its coordinator wait more than they work, and
        take no share."""
        config = config_of(self.book.sweep, told["trial"]["values"], told["trial"]["seed"])
        wanted = config.resources
        if config.fleet == "inline":
            return tune.PlacementGroupFactory([{"CPU": wanted.cpus_per_client}])
        fits = _count_places(config) // self.at_once
        actors = (
            max(1, min(config.training.cohort(config.clients), fits))
            if wanted.actors == "auto"
            else wanted.actors
        )
        pinned = fit_placement(
            actors, wanted.cpus_per_client, wanted.gpus_per_client, config.device, actors
        )
        bundle = {"CPU": pinned.cpus, **({"GPU": pinned.gpus} if pinned.gpus else {})}
        return tune.PlacementGroupFactory([{}, *[bundle] * pinned.actors], strategy="PACK")

    def __str__(self) -> str:
        return f"{self.at_once} at a time"


def _count_places(config: Config) -> int:
    """How many client actors the cluster holds."""
    wanted = config.resources
    least = wanted.actors if isinstance(wanted.actors, int) else 1
    fit_placement(least, wanted.cpus_per_client, wanted.gpus_per_client, config.device, least)
    return fit_placement(
        "auto", wanted.cpus_per_client, wanted.gpus_per_client, config.device, sys.maxsize
    ).actors
