from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rayfl.errors import DataError
from rayfl.federation.arrays import Ints

from .truths import corrupt, truth_of

CLEAN = np.array([0, 1, 2, 0, 1, 2])
NOISY = np.array([0, 2, 2, 1, 1, 0])
TRUTH = replace(
    truth_of([[1, 1, 0], [0, 1, 0]]), labels=CLEAN[[4, 0, 1]], position=np.array([4, 0, 1])
)


@pytest.fixture
def human_file(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of human labels, whose reader is replaced."""

    def read_human_labels(path: Path, key: str) -> tuple[Ints, Ints]:
        return CLEAN, {"worse_label": NOISY, "out_of_range": NOISY + 1}[key]

    reader = ModuleType("rayfl.federation.datasets.cifar_n")
    reader.read_human_labels = read_human_labels  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "rayfl.federation.datasets.cifar_n", reader)
    return Path("human.pt")


def test_no_noise_is_a_copy_of_the_truth() -> None:
    result = corrupt("none", TRUTH)
    assert (result.given == TRUTH.labels).all()
    assert result.given is not TRUTH.labels
    assert result.nominal.tolist() == [0, 0]


def test_human_labels_are_those_of_the_samples_positions(human_file: Path) -> None:
    """One benchmark reads the human labels and trains on the clean ones."""
    result = corrupt({"name": "human", "file": human_file, "key": "worse_label"}, TRUTH)
    assert result.given.tolist() == [1, 0, 2]
    assert np.isnan(result.nominal).tolist() == [True, True]


def test_human_labels_of_another_order_are_refused(human_file: Path) -> None:
    other = replace(TRUTH, labels=np.array([1, 0, 2]))
    with pytest.raises(
        DataError, match=r"got 1 of 3 differ, first at position 1\. Use the dataset"
    ):
        corrupt({"name": "human", "file": human_file, "key": "worse_label"}, other)


def test_human_labels_out_of_range_are_refused(human_file: Path) -> None:
    with pytest.raises(DataError, match=r"labels lie in \[0, 3\); got 3 at position 1"):
        corrupt({"name": "human", "file": human_file, "key": "out_of_range"}, TRUTH)


def test_too_few_read_human_labels_are_refused(human_file: Path) -> None:
    far = replace(TRUTH, position=np.array([4, 0, 6]))
    with pytest.raises(DataError, match=r"a label for every training sample, 7 at least; got 6"):
        corrupt({"name": "human", "file": human_file, "key": "worse_label"}, far)


@pytest.mark.parametrize("suffix", ["csv", "npy", "json"])
def test_labels_from_a_file(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"labels.{suffix}"
    if suffix == "csv":
        path.write_text(
            "file,label\n" + "\n".join(f"{i}.png,{label}" for i, label in enumerate(NOISY))
        )
    elif suffix == "npy":
        np.save(path, NOISY)
    else:
        path.write_text(json.dumps({"label": NOISY.tolist()}))
    result = corrupt({"name": "explicit", "file": str(path)}, TRUTH)
    assert result.given.tolist() == [1, 0, 2]
    assert result.given.dtype == np.int64


@pytest.mark.parametrize(
    ("labels", "rule"),
    [
        ([0, 1, 2, 0], r"a label for every training sample, 5 at least; got 4"),
        ([0, 3, 0, 0, 0], r"labels lie in \[0, 3\); got 3 at position 1"),
        ([0, 0, 0, 0, -1], r"labels lie in \[0, 3\); got -1 at position 4"),
    ],
)
def test_labels_that_do_not_fit_are_refused(tmp_path: Path, labels: list[int], rule: str) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps(labels))
    with pytest.raises(DataError, match=rule):
        corrupt({"name": "explicit", "file": path}, TRUTH)


def test_another_column_may_hold_the_labels(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(json.dumps({"label": [0] * 6, "second": NOISY.tolist()}))
    assert corrupt(
        {"name": "explicit", "file": path, "column": "second"}, TRUTH
    ).given.tolist() == [1, 0, 2]
