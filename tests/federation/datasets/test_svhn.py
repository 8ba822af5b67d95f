"""SVHN's MATLAB files: the label 10 is the digit 0, the image index comes last."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from rayfl.errors import DataError
from rayfl.federation.datasets.svhn import Svhn

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture
def files(tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Pixels:
    """Three images in each part; answers their pixels."""
    monkeypatch.setattr(Svhn, "expected", (3, 3))
    x = rng.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    (tmp_path / "svhn").mkdir()
    for name in ("train", "test"):
        content = {"X": x.transpose(1, 2, 3, 0), "y": np.array([[10], [1], [9]], dtype=np.uint8)}
        savemat(tmp_path / "svhn" / f"{name}_32x32.mat", content, do_compression=True)
    return x


def test_images_and_labels(tmp_path: Path, files: Pixels) -> None:
    dataset = Svhn().load(tmp_path)
    assert np.array_equal(dataset.train.x, files)
    assert dataset.train.y.tolist() == [0, 1, 9]
    assert dataset.shape == (32, 32, 3)


def test_the_published_counts() -> None:
    train, test = Svhn.expected
    assert isinstance(train, tuple)
    assert (sum(train), test) == (73_257, 26_032)
    assert (train[0], train[1], train[9]) == (4948, 13861, 4659)


@pytest.mark.usefixtures("files")
def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "svhn" / "test_32x32.mat"
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(DataError, match=r"test_32x32\.mat must be a whole \.mat file with X and y"):
        Svhn().load(tmp_path)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (
            {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": np.ones((3, 1))},
            "with N labels; got uint8",
        ),
        ({"X": np.zeros((32, 32, 3, 2)), "y": np.ones((2, 1))}, "with N labels; got float64"),
        ({"Z": np.zeros(3)}, "with X and y; got 'X'"),
    ],
)
@pytest.mark.usefixtures("files")
def test_another_content_is_refused(
    tmp_path: Path, content: dict[str, Any], complaint: str
) -> None:
    savemat(tmp_path / "svhn" / "train_32x32.mat", content)
    with pytest.raises(DataError, match=complaint):
        Svhn().load(tmp_path)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("label", "complaint"),
    [
        (11, r"labels lie in \[1, 11\); got 11 at position 1"),
        # The digit 0 is written 10.
        (0, r"labels lie in \[1, 11\); got 0 at position 1"),
        (1.5, r"train_32x32\.mat: y holds whole numbers; got 1\.5 at row 1"),
    ],
)
def test_a_label_out_of_range_is_refused(tmp_path: Path, label: float, complaint: str) -> None:
    content = {"X": np.zeros((32, 32, 3, 3), np.uint8), "y": np.array([1, label, 2])}
    savemat(tmp_path / "svhn" / "train_32x32.mat", content)
    with pytest.raises(DataError, match=complaint):
        Svhn().load(tmp_path)
