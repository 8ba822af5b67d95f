"""Datasets that are joined: images one after the other, classes numbered on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rayfl.errors import DataError
from rayfl.federation.dataset import Loader
from rayfl.federation.datasets import DATASETS

NAME = "rayfl.study.joined:Joined"


def joined(*parts: object) -> Loader:
    return DATASETS.build({"name": NAME, "parts": list(parts)})


def test_classes_are_numbered_on(tmp_path: Path) -> None:
    blobs = {"name": "blobs", "classes": 3}
    one, both = DATASETS.build(blobs).load(tmp_path), joined(blobs, blobs).load(tmp_path)
    assert len(both.train) == 2 * len(one.train)
    assert both.classes == tuple(f"{one.name}/{name}" for name in one.classes) * 2
    assert np.array_equal(both.train.y[: len(one.train)], one.train.y)
    assert np.array_equal(both.train.y[len(one.train) :], one.train.y + 3)
    assert np.array_equal(both.test.x[len(one.test) :], one.test.x)
    assert both.train.y.dtype == np.int64


def test_images_have_one_shape(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="joined datasets have images of one shape; got"):
        joined("digits", {"name": "blobs", "side": 4}).load(tmp_path)


def test_one_dataset_is_not_joined() -> None:
    with pytest.raises(ValueError, match="at least 2 items"):
        joined("digits")
