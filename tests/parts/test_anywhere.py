"""The pieces of the kit leave nothing behind: clients in the opposite order have the same bits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.fedavg import Global
from rayfl.fleet.executor import Done, Task
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.resident import Vector
from rayfl.protocol import ClientId, Phase
from tests.learn.kit import build_linear, build_normed, first_weights, make_learner
from tests.parts.fleets import open_fleet
from tests.parts.kit_method import KitMethod


def build_wide(i: int = 0) -> nn.Module:
    """More than 2^18 numbers, whose memory is given away at the end of a visit."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(i)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 14000), nn.ReLU(), nn.Linear(14000, 3))


class Backwards(InlineFleet):
    """Visits the clients of every map in the opposite order."""

    def execute(
        self,
        number: int,
        phase: Phase,
        tasks: Mapping[ClientId, Task],
        shared: Mapping[str, Any],
        chain: bool = False,
    ) -> tuple[dict[ClientId, Done], dict[ClientId, Any]]:
        ordered = {client: tasks[client] for client in sorted(tasks, reverse=True)}
        return super().execute(number, phase, ordered, shared, chain)


def run(build: Callable[..., nn.Module], kind: type[InlineFleet]) -> Vector:
    method = KitMethod()
    with open_fleet(build=build, kind=kind) as fleet:
        start = first_weights(make_learner(build))
        state = Global(fleet.put(start))
        for t in range(3):
            fleet.round = t
            state = method.round(state, fleet, t)
        found: Vector = fleet.get(state.model)
    assert not np.array_equal(found, start)
    return found


@pytest.mark.parametrize("build", [build_linear, build_normed, build_wide])
def test_the_order_of_the_clients_does_not_matter(build: Callable[..., nn.Module]) -> None:
    forwards = run(build, InlineFleet)
    assert np.isfinite(forwards).all()
    assert np.array_equal(run(build, Backwards), forwards)
