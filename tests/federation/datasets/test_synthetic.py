"""Digits and blobs: seeded, balanced, and the same in pieces of any size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn.datasets import load_digits

from rayfl.federation.dataset import Dataset
from rayfl.federation.datasets import DATASETS, synthetic
from rayfl.federation.datasets.synthetic import Blobs, Digits

NOWHERE = Path("/nowhere")


def test_digits_are_those_of_scikit_learn_once_each() -> None:
    dataset = Digits().load(NOWHERE)
    assert (len(dataset.train), len(dataset.test), dataset.shape) == (1437, 360, (8, 8, 1))
    both = np.concatenate([dataset.train.x, dataset.test.x])
    theirs = np.rint(load_digits().images * 255 / 16).astype(np.uint8)
    assert sorted(map(bytes, both)) == sorted(map(bytes, theirs))
    assert both.max() == 255


def test_digits_are_split_by_class() -> None:
    dataset = Digits().load(NOWHERE)
    share = np.bincount(dataset.test.y) / np.bincount(
        np.concatenate([dataset.train.y, dataset.test.y])
    )
    assert np.abs(share - 360 / 1797).max() < 1 / 170


def test_digits_never_change() -> None:
    assert (
        Digits().load(NOWHERE).sha256
        == "a0deffbce1d70e129ca5e7d159b5862ecad8ca3c1c5b67daacaf6f29afb5de82"
    )


def nearest_pattern_accuracy(dataset: Dataset) -> float:
    flat = dataset.train.x.reshape(len(dataset.train), -1).astype(float)
    centres = np.stack(
        [flat[dataset.train.y == c].mean(axis=0) for c in range(len(dataset.classes))]
    )
    distances = ((dataset.test.x.reshape(len(dataset.test), 1, -1) - centres) ** 2).sum(axis=2)
    return float((distances.argmin(axis=1) == dataset.test.y).mean())


def test_small_spreads_are_separable_and_large_ones_are_not() -> None:
    assert nearest_pattern_accuracy(Blobs(spread=0.15).load(NOWHERE)) == 1
    assert nearest_pattern_accuracy(Blobs(spread=8).load(NOWHERE)) < 0.4


@pytest.mark.parametrize(
    ("settings", "shape"),
    [
        ({"samples": 13, "test_samples": 1, "classes": 3}, (8, 8, 1)),
        ({"samples": 20, "side": 32, "channels": 3}, (32, 32, 3)),
        ({"samples": 1, "classes": 1, "spread": 0}, (8, 8, 1)),
    ],
)
def test_blobs_have_the_asked_sizes(settings: dict[str, int], shape: tuple[int, int, int]) -> None:
    dataset = DATASETS.build({"name": "blobs", **settings}).load(NOWHERE)
    assert dataset.shape == shape
    assert len(dataset.train) == settings["samples"]
    counts = np.bincount(dataset.train.y, minlength=len(dataset.classes))
    assert counts.max() - counts.min() <= 1


def test_blobs_follow_their_seed() -> None:
    assert Blobs(seed=1).load(NOWHERE).sha256 == Blobs(seed=1).load(NOWHERE).sha256
    assert Blobs(seed=1).load(NOWHERE).sha256 != Blobs(seed=2).load(NOWHERE).sha256


def test_spread_is_the_standard_deviation() -> None:
    x = Blobs(samples=4000, classes=1, spread=0.05).load(NOWHERE).train.x / 255
    assert np.abs(x.std(axis=0) - 0.05).max() < 0.003


def test_many_blobs_are_drawn_in_pieces_of_one_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    blobs = Blobs(samples=1000, side=4, seed=3)
    whole = blobs.load(NOWHERE)
    monkeypatch.setattr(synthetic, "_CHUNK_VALUES", 16 * 7)
    assert blobs.load(NOWHERE).sha256 == whole.sha256


@pytest.mark.parametrize("wrong", [{"samples": 0}, {"spread": -1}, {"side": 0}, {"colour": 3}])
def test_impossible_blobs_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        DATASETS.build({"name": "blobs", **wrong})
