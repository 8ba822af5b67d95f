"""The published datasets themselves, where they are on disk (`rayfl data get NAME` brings them)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rayfl.federation.dataset import Dataset
from rayfl.federation.dataset_display import summarize_images
from rayfl.federation.datasets import DATASETS, find_data_root
from rayfl.federation.datasets.cifar_n import check_clean_labels, read_human_labels
from rayfl.federation.datasets.on_disk import OnDisk
from rayfl.federation.sources import find_origin

pytestmark = pytest.mark.slow


def real(name: str) -> Dataset:
    part = DATASETS.build(name)
    assert isinstance(part, OnDisk)
    if not part.where(find_data_root()).exists():
        pytest.skip(f"no {name} in {find_data_root()}")
    dataset = part.load(find_data_root())
    assert dataset.sha256 == find_origin(part).sha256
    return dataset


@pytest.mark.parametrize(
    ("name", "mean", "std"),
    [
        ("mnist", [0.1307], [0.3081]),
        ("fashion-mnist", [0.2860], [0.3530]),
        ("cifar10", [0.49139968, 0.48215841, 0.44653091], [0.24703223, 0.24348513, 0.26158784]),
    ],
)
def test_moments_are_the_known_ones(name: str, mean: list[float], std: list[float]) -> None:
    dataset = real(name)
    summary = summarize_images(dataset.train, 10)
    tolerance = 5e-9 if name == "cifar10" else 5e-5
    assert np.allclose(summary.mean, mean, rtol=0, atol=tolerance)
    assert np.allclose(summary.std, std, rtol=0, atol=tolerance)
    assert len(dataset.test) == 10_000


def test_cifar10_is_in_the_publishers_order() -> None:
    dataset = real("cifar10")
    assert dataset.train.y[:5].tolist() == [6, 9, 9, 4, 1]
    assert dataset.test.y[:5].tolist() == [3, 8, 8, 0, 6]


@pytest.mark.parametrize("form", ["CIFAR-10_human.pt", "cifar10n_train_labels.parquet"])
@pytest.mark.parametrize(
    ("key", "percent"),
    [
        ("aggregate", 9.01),
        ("random1", 17.23),
        ("random2", 18.12),
        ("random3", 17.64),
        ("worse", 40.21),
    ],
)
def test_human_labels_join_with_the_published_noise(form: str, key: str, percent: float) -> None:
    file: Path = find_data_root() / "cifar-n" / form
    if not file.is_file():
        pytest.skip(f"no {file}")
    clean, noisy = read_human_labels(file, key)
    check_clean_labels(clean, real("cifar10").train.y, file)
    assert round(100 * float((clean != noisy).mean()), 2) == percent
