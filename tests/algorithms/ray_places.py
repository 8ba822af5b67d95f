"""Actors as places of the conformance table."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any, ClassVar

import ray

from rayfl.fleet.base import BaseFleet, Errand, Spec, WhenDone
from rayfl.fleet.executor import Done, Holdings, Task
from rayfl.fleet.on_ray.hiring import Hiring
from rayfl.fleet.on_ray.placement import Placement
from rayfl.fleet.on_ray.ray_fleet import RayFleet
from rayfl.protocol import ClientId, Phase


class Warm(RayFleet):
    """Takes actors that earlier tests started, because starting a process costs more than running a
    toy on it."""

    warmed: ClassVar[list[Any]] = []
    hired = 0

    def _hire(self) -> Any:
        self.hired += 1
        if self.hired > self.hiring.placement.actors - self.fresh:
            return super()._hire()
        if len(self.warmed) < self.hired:
            self.warmed.append(super()._hire())
            return self.warmed[-1]
        actor = self.warmed[self.hired - 1]
        actor.become.remote(self.hiring.spec, self.hiring.placement, self.hiring.holdings)
        return actor

    @property
    def fresh(self) -> int:
        """How many actors of the pool must be new."""
        return 0

    def close(self) -> None:
        for place in self.pool:
            if all(place.actor is not actor for actor in self.warmed):
                ray.kill(place.actor)


class Killing(Warm):
    """Kills the process of its last actor before a map, or an evaluation, of the second round."""

    killed = 0

    @property
    def fresh(self) -> int:
        return 1

    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Mapping[ClientId, Task],
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> tuple[dict[ClientId, Done], dict[ClientId, Any]]:
        self.kill_before(len(tasks))
        return super().execute(number, phase, tasks, shared, chain)

    def start_errand(
        self,
        phase: Phase,
        each: Mapping[ClientId, Mapping[str, Any]],
        when_done: WhenDone,
        **shared: Any,
    ) -> Errand:
        self.kill_before(len(each))
        return super().start_errand(phase, each, when_done, **shared)

    def kill_before(self, tasks: int) -> None:
        if self.round == 1 and not self.killed and tasks > 1:
            self.killed = ray.get(self.pool[-1].actor.hello.remote())["pid"]
            os.kill(self.killed, signal.SIGKILL)


def open_fleet(place: str, spec: Spec, holdings: Holdings) -> BaseFleet:
    """`ray1`, `ray3` or `killing`."""
    placement = Placement(actors=1 if place == "ray1" else 3, cpus=0.5)
    hiring = Hiring(ray.put(spec), ray.put(holdings), placement)
    return (Killing if place == "killing" else Warm)(spec, holdings, hiring)
