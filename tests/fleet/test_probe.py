"""What a client takes of a GPU, as far as there need be none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rayfl.errors import ResourceError
from rayfl.fleet.executor import Executor, Task
from rayfl.fleet.on_ray import coordinator
from rayfl.fleet.on_ray.gpu_probe import HEADROOM, STEPS, compute_share, measure_footprint
from rayfl.learn.learner import Learner
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.protocol import Client
from tests.fleet.toys import holdings, network, spec

GIB = 1 << 30


@pytest.mark.parametrize(
    ("used", "total", "share"),
    [
        (10 * GIB, 24 * GIB, 1.0),
        (8 * GIB, 24 * GIB, 0.5),
        (2 * GIB, 24 * GIB, 0.125),
        (GIB, 80 * GIB, 0.0188),
        (9, 5, 1.0),
    ],
)
def test_as_many_clients_as_fit_with_headroom(used: int, total: int, share: float) -> None:
    assert compute_share(used, total) == share
    at_once = int(1 / share + 1e-9)
    assert at_once == 1 or at_once * used * HEADROOM <= total


def test_the_largest_client_is_visited_for_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Learner(network, LocalTraining(epochs=50, batch_size=2), Normalisation())
    executor = Executor(holdings(), place, spec().streams)
    visited: list[Client] = []
    assemble = executor._client

    def assembled(task: Task, rng: np.random.Generator) -> Client:
        visited.append(assemble(task, rng))
        return visited[-1]

    monkeypatch.setattr(executor, "_client", assembled)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (6 * GIB, 24 * GIB))
    backward: list[int] = []
    take = place.passes.take

    def taken() -> tuple[int, int]:
        backward.append(place.passes.backward)
        return take()

    monkeypatch.setattr(place.passes, "take", taken)
    assert measure_footprint(executor) == (18 * GIB, 24 * GIB)
    assert [client.id for client in visited] == [3]
    assert sum(backward) == 2 * STEPS


class Asked(Exception):
    """The probe was used."""


def ask() -> float:
    raise Asked


def test_auto_is_nothing_on_a_cpu(cluster: None) -> None:
    assert coordinator.fit_placement(1, 1.0, "auto", "cpu", 9, ask).gpus == 0


def test_auto_measures_on_a_gpu(cluster: None) -> None:
    with pytest.raises(Asked):
        coordinator.fit_placement(1, 1.0, "auto", "cuda", 9, ask)
    assert coordinator.fit_placement(2, 0.5, "auto", "cuda", 9, lambda: 0.125).gpus == 0.125


def test_auto_is_refused_where_nothing_can_measure(cluster: None) -> None:
    with pytest.raises(
        ResourceError,
        match=r"gpus_per_client is a number where several runs share the GPUs; got auto",
    ):
        coordinator.fit_placement(1, 1.0, "auto", "cuda", 9)
