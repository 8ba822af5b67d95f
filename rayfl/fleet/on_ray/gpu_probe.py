"""How much of a GPU a client needs: measured on one, before the pool of actors is hired."""

from __future__ import annotations

import numpy as np

from rayfl.fleet.base import Spec
from rayfl.fleet.executor import Executor, Holdings
from rayfl.fleet.on_ray.placement import Placement
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.protocol import Client, Out

HEADROOM = 1.5
"""Methods keep further networks beside the one in training; and a full GPU is slow at finding
room."""
STEPS = 3


def visit_shortly(client: Client) -> Fitting[Out]:
    """A few steps of training and a batch of evaluation: what takes memory."""
    from rayfl.learn.fit import compute_outputs

    learner = client.learner
    trained = yield Fit(learner.first_weights(), settings={"steps": STEPS})
    compute_outputs(learner, trained.weights, client.x[: learner.evaluation_batch])
    return Out()


def measure_footprint(executor: Executor) -> tuple[int, int]:
    """Bytes of the GPU that are in use after visiting the largest client (the driver's own share
    included), of how many."""
    import torch

    from rayfl.fleet.executor import Task

    largest = int(np.argmax(np.diff(executor.holdings.offsets)))
    for done, _ in executor.run(-1, visit_shortly, [Task(largest, 0, {}, {})], {}):
        if done.error is not None:
            raise RuntimeError(done.error)
    free, total = torch.cuda.mem_get_info()
    return total - free, total


def compute_share(used: int, total: int) -> float:
    """The fraction of a GPU that holds a client with some headroom, in the steps of 0.0001 that Ray
    knows."""
    # Whole clients only: room for half of another helps nobody.
    at_once = max(int(total / (used * HEADROOM)), 1)
    return int(10_000 / at_once) / 10_000


def measure_gpu_share(spec: Spec, holdings: Holdings, cpus: float) -> float:
    """The share that an actor with a GPU of its own measures."""
    import ray

    from rayfl.fleet.on_ray.hiring import Hiring

    actor = Hiring(ray.put(spec), ray.put(holdings), Placement(1, cpus, 1.0, cuda=True)).hire()
    try:
        return compute_share(*ray.get(actor.measure_footprint.remote()))
    finally:
        ray.kill(actor)
