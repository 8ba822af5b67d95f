"""What a fleet on Ray remembers of its actors: who holds which position of the pool, which calls
run, who adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray

from rayfl.fleet.executor import Task
from rayfl.fleet.on_ray.client_actor import ClientActor
from rayfl.fleet.on_ray.placement import Placement
from rayfl.fleet.on_ray.socket_calls import Line
from rayfl.fleet.sums.early_sums import Answer
from rayfl.protocol import ClientId

FAN_IN = 8  # partial sums that one actor adds up; with more actors than this, sums meet in a tree


@dataclass(frozen=True)
class Hiring:
    """How actors are hired: all by reference, so that whoever hires need not understand what they
    get."""

    spec: Any
    holdings: Any
    placement: Placement

    def hire(self) -> Any:
        # Ray would start the dead again without what they held; the fleet does it, and knows what
        # is lost.
        remote = ray.remote(ClientActor).options(
            num_cpus=self.placement.cpus,
            num_gpus=self.placement.gpus,
            max_restarts=0,
            max_task_retries=0,
        )
        return remote.remote([self.spec], self.placement, [self.holdings])


@dataclass(frozen=True)
class Call:
    """A call that runs: first the tasks, then, once there is an answer, the collection of the
    states that they left."""

    place: int
    generation: int
    batch: list[Task]
    answer: Answer | None = None
    states: Mapping[ClientId, Any] = field(default_factory=dict)


@dataclass
class Place:
    """A position of the pool: its present actor, how many it has had, and the maps whose updates it
    may drop."""

    actor: Any
    generation: int = 0
    stillbirths: int = 0
    freed: list[int] = field(default_factory=list)
    short_calls: int = 0
    line: Line | None = None

    def dismiss(self) -> None:
        """The actor goes, wherever it is."""
        if self.line is not None:
            self.line.close()
        ray.kill(self.actor)


def in_a_tree(actors: Sequence[Any], partials: list[Any]) -> list[Any]:
    """At most FAN_IN partial sums that stand for all; exact sums may meet in any grouping."""
    while len(partials) > FAN_IN:
        groups = [slice(start, start + FAN_IN) for start in range(0, len(partials), FAN_IN)]
        partials = [actors[group.start].merge.remote(*partials[group]) for group in groups]
    return partials
