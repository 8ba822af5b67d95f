"""The similarity matrix of FB-NLL on real CIFAR-10, beside the one that its paper prints.

    python benchmarks/fb_nll_similarity.py [--seed 0] [--images 10000]

Five users, as in Table II of "FB-NLL: a feature-based approach to tackle noisy labels in
personalized federated learning": two with planes, cars, ships and trucks, three with the other six
classes, each with images of its own: 10,000, if CIFAR-10 is distributed among them. The matrix is
computed for both sizes of HoG features and for pixels, and for 5, 9 and 10 directions. Nothing is
written."""

from __future__ import annotations

import argparse

import numpy as np
from numpy.typing import NDArray

from rayfl.estimate import (
    Criterion,
    cluster_by_linkage,
    decompose_features,
    similarity_matrix,
)
from rayfl.federation.dataset import Dataset
from rayfl.federation.datasets import DATASETS, find_data_root
from rayfl.models import ENCODERS

Floats = NDArray[np.float64]

TASKS = ((0, 1, 8, 9), (2, 3, 4, 5, 6, 7))
TASK_OF_USER = (0, 0, 1, 1, 1)
PRINTED = np.array(
    [
        [1.00, 0.97, 0.31, 0.31, 0.32],
        [0.97, 1.00, 0.31, 0.32, 0.32],
        [0.31, 0.31, 1.00, 0.97, 0.98],
        [0.31, 0.32, 0.97, 1.00, 0.98],
        [0.32, 0.32, 0.98, 0.98, 1.00],
    ]
)
FEATURES = {
    "HoG, d = 324": {"name": "hog"},
    "HoG, d = 784": {"name": "hog", "hog784": True},
    "pixels, d = 3072": {"name": "pixels"},
}
RANKS = (10, 9, 5)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The similarity matrix of FB-NLL on CIFAR-10 beside the printed one."
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=10_000, help="Images of a user.")
    given = parser.parse_args()
    if not 1 <= given.images <= 10_000:
        parser.error(
            f"--images lies in [1, 10000], so that no user shares an image; got {given.images}"
        )
    dataset = DATASETS.build("cifar10").load(find_data_root())
    print(f"CIFAR-10 sha256 {dataset.sha256}\nseed {given.seed}, {given.images} images a user\n")
    users = drawn(dataset, given.images, np.random.default_rng(given.seed))
    print_matrix("printed (Table II)", PRINTED)
    for title, encoder in FEATURES.items():
        encode = ENCODERS.build(encoder).build(dataset.shape).encode
        found = decompose_features(
            [encode(dataset.train.x[rows]) for rows in users], keep=max(RANKS)
        )
        for q in RANKS:
            print_matrix(f"{title}, q = {q}", similarity_matrix(found, Criterion(q)))


def drawn(
    dataset: Dataset,
    images: int,
    rng: np.random.Generator,
) -> list[NDArray[np.int64]]:
    """The rows of each user: a share of its task's images, no image twice."""
    pools = [rng.permutation(np.flatnonzero(np.isin(dataset.train.y, task))) for task in TASKS]
    starts = [TASK_OF_USER[:user].count(task) * images for user, task in enumerate(TASK_OF_USER)]
    return [
        pools[task][start : start + images]
        for task, start in zip(TASK_OF_USER, starts, strict=True)
    ]


def print_matrix(title: str, matrix: Floats) -> None:
    """The matrix, its range inside and across the tasks, and the two clusters that it leads to."""
    tasks = np.array(TASK_OF_USER)
    together = tasks[:, None] == tasks
    off = ~np.eye(len(tasks), dtype=bool)
    inside = matrix[together & off]
    across = matrix[~together]
    print(title)
    for row in matrix:
        print("   " + "  ".join(f"{value:.3f}" for value in row))
    clusters = " ".join(map(str, cluster_by_linkage(1 - matrix, len(TASKS))))
    print(
        f"   inside {inside.min():.3f}-{inside.max():.3f}, "
        f"across {across.min():.3f}-{across.max():.3f}",
        end="",
    )
    print(
        f", distance from the printed {np.abs(matrix - PRINTED)[off].mean():.3f}, "
        f"clusters {clusters}\n"
    )


if __name__ == "__main__":
    main()
