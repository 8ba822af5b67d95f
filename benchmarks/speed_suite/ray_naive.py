"""One Ray call per client: what a person writes who knows Ray but not what a simulator needs.

The weights are put into the object store once a round; every call trains one client and returns its
weights, which the driver adds up as they come. Two actors, so that data and network are loaded
once."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.util import ActorPool

from speed_suite.federation import Federation, answer, arguments
from speed_suite.plain import clock_of, images, labels, load, network_of, tested, train, versions

ACTORS = 2
Weights = dict[str, NDArray[np.float32]]


class Worker:
    """An actor with the data and a network."""

    def __init__(self, folder: Path, seed: int) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.federation = Federation.load(folder)
        self.net = network_of(self.federation)

    def train(self, weights: Weights, client: int) -> tuple[Weights, int]:
        rows = self.federation.rows(client)
        self.net.load_state_dict({name: torch.tensor(array) for name, array in weights.items()})
        train(
            self.net,
            images(self.federation.x[rows]),
            labels(self.federation.y[rows]),
            self.federation.settings,
        )
        return arrays_of(self.net), self.federation.size(client)


def arrays_of(net: torch.nn.Module) -> Weights:
    return {name: tensor.numpy() for name, tensor in net.state_dict().items()}


def one_round(pool: Any, weights: Weights, cohort: list[int]) -> Weights:
    """Train the cohort and average."""
    sent = ray.put(weights)
    samples = 0
    sums = {name: np.zeros_like(array) for name, array in weights.items()}
    for trained, size in pool.map_unordered(
        lambda actor, client: actor.train.remote(sent, client), cohort
    ):
        samples += size
        for name, array in trained.items():
            sums[name] += size * array
    return {name: total / np.float32(samples) for name, total in sums.items()}


def main() -> None:
    told = arguments()
    federation = Federation.load(told.folder)
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    ray.init(include_dashboard=False, logging_level=logging.WARNING)
    worker = ray.remote(num_cpus=1)(Worker)
    pool = ActorPool([worker.remote(told.folder, seed) for seed in range(ACTORS)])
    net = network_of(federation)
    weights = arrays_of(net)
    clock = clock_of(told)
    clock.begin()
    for t in range(told.rounds):
        weights = one_round(pool, weights, federation.cohorts[t].tolist())
        clock.tick()
    load(net, [torch.from_numpy(array) for array in weights.values()])
    answer(**clock.facts(), **tested(federation, net), versions=versions(ray))
    ray.shutdown()


if __name__ == "__main__":
    main()
