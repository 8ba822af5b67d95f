"""How actors are hired."""

from __future__ import annotations

from dataclasses import dataclass

import ray
from ray import ObjectRef
from ray.actor import ActorHandle

from rayfl.fleet.on_ray.client_actor import ClientActor
from rayfl.fleet.on_ray.placement import Placement


@dataclass(frozen=True)
class Hiring:
    """How actors are hired: all by reference, so that whoever hires need not understand what they
    get."""

    spec: ObjectRef
    holdings: ObjectRef
    placement: Placement

    def hire(self) -> ActorHandle:
        # Ray would start the dead again without what they held; the fleet does it, and knows what
        # is lost.
        remote = ray.remote(ClientActor).options(
            num_cpus=self.placement.cpus,
            num_gpus=self.placement.gpus,
            max_restarts=0,
            max_task_retries=0,
        )
        return remote.remote([self.spec], self.placement, [self.holdings])
