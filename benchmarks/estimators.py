"""How long the estimators take on what a large round brings.

    python benchmarks/estimators.py [--repeats 5]

Prints a table: the median time of the mixtures of 1,000 clients' losses, of a Dawid-Skene fit to
the votes of 100 clients on 10,000 images, of the votes of neighbours and of LID on one client, on
one thread. Nothing is written."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from rayfl.estimate import DawidSkene, GaussianMixture, LossMixture, mean_lid, vote_labels


def main() -> None:
    parser = argparse.ArgumentParser(description="Times of the estimators.")
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    for name, task in list_tasks().items():
        times = [measure_seconds(task) for _ in range(repeats)]
        print(f"{name:52}{1e3 * statistics.median(times):>10.1f} ms")


def list_tasks() -> dict[str, Callable[[], object]]:
    """What is timed, by its name in the table."""
    rng = np.random.default_rng(0)
    clean = rng.gamma(1, 0.3, (1000, 300))
    wrong = rng.gamma(4, 0.5, (1000, 200))
    losses = list(np.concatenate([clean, wrong], axis=1))
    votes = rng.integers(0, 10, (10_000, 100))
    features = rng.normal(size=(500, 512))
    labels = rng.integers(0, 10, 500)
    table = rng.uniform(size=(100, 10))
    return {
        "LossMixture, 1,000 clients of 500": lambda: LossMixture().fit_many(losses),
        "DawidSkene, 10,000 x 100, 25 steps": lambda: DawidSkene(iterations=25, tol=0).fit(votes),
        "GaussianMixture, 100 x 10": lambda: GaussianMixture().fit(table, np.random.default_rng(0)),
        "vote_labels, 500 x 512": lambda: vote_labels(features, labels),
        "mean_lid, 500 x 512": lambda: mean_lid(features),
    }


def measure_seconds(task: Callable[[], object]) -> float:
    start = time.perf_counter()
    task()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
