"""A small federation for tests of the fleets, in this process or on a pool of actors that all tests
share."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from rayfl.fleet.base import BaseFleet, Spec
from rayfl.fleet.executor import Holdings
from rayfl.fleet.on_ray.placement import Placement
from rayfl.fleet.safeguards import Safeguards, VisitTimes
from rayfl.fleet.streams import Streams
from rayfl.learn.learner import Learner
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.protocol import Shard
from tests.lent_actors import ACTORS

SIZES = (5, 1, 0, 7, 3, 4)
CLIENTS = (0, 1, 3, 4, 5)
"""Those that own something."""
OWN: dict[str, Any] = {"cpus": 0.5}
"""What an actor takes."""


def network(i: int = 0) -> nn.Module:
    """First weights number `i`, the same in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(i)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def learner() -> Learner:
    return Learner(network, LocalTraining(), Normalisation())


def holdings(sizes: tuple[int, ...] = SIZES, **more: Any) -> Holdings:
    """Client k owns sizes[k] images of 2 x 2 x 1; a public set without labels and a labelled test
    set."""
    total = sum(sizes)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (total, 2, 2, 1), dtype=np.uint8)
    labels = np.arange(total) % 3
    sets = {
        "test": Shard(images[:4].copy(), labels[:4].copy()),
        "public": Shard(images[4:9].copy(), None),
    }
    offsets = np.cumsum([0, *sizes])
    given = {"sets": sets, "classes": 3, **more}
    return Holdings(images, labels, rng.permutation(total), offsets, **given)


def spec(seed: int = 7, cohort: int = 3) -> Spec:
    return Spec(learner, Streams(seed), cohort)


def ray_fleet(
    actors: int, held: Holdings | None = None, made: Spec | None = None, **pinned: Any
) -> Any:
    """A pool with processes of its own; whoever asks for it closes it."""
    from rayfl.fleet.on_ray.ray_fleet import RayFleet

    held, made = held or holdings(), made or spec()
    return RayFleet(made, held, _store_hiring(made, held, Placement(actors, **OWN | pinned)))


def lent_fleet(actors: int, **pinned: Any) -> Any:
    """A pool of actors that an earlier test has given back, where there are some; whoever asks for
    it closes it."""
    from rayfl.testing.actors import LendingFleet

    held, made = holdings(), spec()
    hiring = _store_hiring(made, held, Placement(actors, **OWN | pinned))
    fleet = LendingFleet(ACTORS, made, held, hiring)
    # Some may have been given back while they were still starting.
    await_actors(fleet)
    return fleet


def _store_hiring(made: Spec, held: Holdings, placement: Placement) -> Any:
    import ray

    from rayfl.fleet.on_ray.hiring import Hiring

    return Hiring(ray.put(made), ray.put(held), placement)


def cleared(fleet: BaseFleet) -> BaseFleet:
    """As good as new, for the next test."""
    fleet.round = 0
    fleet.table.clear()
    fleet.left.clear()
    fleet.spec = replace(fleet.spec, safeguards=Safeguards())
    fleet.times = VisitTimes(fleet.spec.safeguards)
    fleet.absences.remember({})
    for take in (
        fleet.take_logged,
        fleet.take_estimates,
        fleet.clock.take,
        fleet.take_diverged,
        fleet.take_absurd,
        fleet.absences.take,
        fleet.costs.take,
    ):
        take()
    return fleet


def pids(fleet: Any) -> list[int]:
    import ray

    return [hello["pid"] for hello in ray.get([place.actor.hello.remote() for place in fleet.pool])]


def await_actors(fleet: Any) -> None:
    """Until all have greeted: a fleet does without those that start late."""
    from rayfl.fleet.on_ray.ray_calls import wait_for_ray

    while fleet.pool.awaited:
        wait_for_ray(fleet.pool.awaited)
        fleet.pool.present()


failing_learner = partial(
    Learner, network, LocalTraining(), Normalisation(), device="no such device"
)
