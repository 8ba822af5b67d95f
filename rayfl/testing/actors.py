"""Pools of client actors that one run after another takes, and a fleet that loses one of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import Any

from rayfl.fleet.base import BaseFleet, Errand, Spec, WhenDone
from rayfl.fleet.executor import Holdings
from rayfl.fleet.on_ray.coordinator import store_for_hiring
from rayfl.fleet.on_ray.hiring import Hiring
from rayfl.fleet.on_ray.placement import Placement
from rayfl.fleet.on_ray.pool import Place
from rayfl.fleet.on_ray.ray_fleet import RayFleet
from rayfl.protocol import ClientId, Phase
from rayfl.testing.places import Executed, MakeFleet, Tasks

# Of a processor, for Ray's books: three actors must find room on a machine that has one.
SHARE = 0.1


class ActorReserve:
    """Client actors between two runs: to start a process costs more than to run a toy on it."""

    def __init__(self) -> None:
        self.idle: list[Any] = []

    def fleet_maker(self, actors: int, fleet_class: type[LendingFleet] | None = None) -> MakeFleet:
        """Makes fleets of so many actors, started before where there are some."""
        kind = fleet_class or LendingFleet

        def make_fleet(spec: Spec, holdings: Holdings) -> BaseFleet:
            hiring = store_for_hiring(spec, holdings, Placement(actors=actors, cpus=SHARE))
            return kind(self, spec, holdings, hiring)

        return make_fleet

    def lend(self, actors: int, hiring: Hiring) -> list[Any]:
        """At most so many actors, which serve this federation from now on."""
        lent = self.idle[:actors]
        del self.idle[:actors]
        for actor in lent:
            actor.become.remote(hiring.spec, hiring.placement, hiring.holdings)
        return lent

    def close(self) -> None:
        """End all actors."""
        for actor in self.idle:
            Place(0, actor).dismiss()
        self.idle.clear()


class LendingFleet(RayFleet):
    """Gives its actors back instead of ending them."""

    def __init__(
        self, reserve: ActorReserve, spec: Spec, holdings: Holdings, hiring: Hiring
    ) -> None:
        self.reserve = reserve
        super().__init__(spec, holdings, hiring, reserve.lend(hiring.placement.actors, hiring))

    def close(self) -> None:
        self.routes.close()
        for place in self.pool:
            # A standing line belongs to this fleet; the actor will lay the next one another.
            if place.line is not None:
                place.line.close()
            self.reserve.idle.append(place.actor)


class KillingFleet(LendingFleet):
    """Kills the process of its last actor before a map, or an evaluation, of the second round."""

    killed = 0

    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Tasks,
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> Executed:
        self._kill_before(len(tasks))
        return super().execute(number, phase, tasks, shared, chain)

    def start_errand(
        self,
        phase: Phase,
        each: Mapping[ClientId, Mapping[str, Any]],
        when_done: WhenDone,
        **shared: Any,
    ) -> Errand:
        self._kill_before(len(each))
        return super().start_errand(phase, each, when_done, **shared)

    def _kill_before(self, tasks: int) -> None:
        # One task might go to another actor, and nobody would notice.
        if self.round == 1 and not self.killed and tasks > 1:
            self.killed = self.pool[-1].greeting["pid"]
            os.kill(self.killed, signal.SIGKILL)
