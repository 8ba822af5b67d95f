"""MedMNIST: every set, grey and colour, every size, two releases; nothing is unpickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from rayfl.errors import DataError
from rayfl.federation.datasets import DATASETS
from rayfl.federation.datasets.medmnist import FACTS, MedMnist, ReleaseFacts

SETS = sorted(FACTS)


def save(file: Path, side: int, channels: int, labels: int = 1, **others: Any) -> dict[str, Any]:
    """A file with four training and two test images of alternating classes."""
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for name, count in (("train", 4), ("val", 1), ("test", 2)):
        shape = (count, side, side, channels)[: 4 if channels == 3 else 3]
        arrays[f"{name}_images"] = rng.integers(0, 256, shape, dtype=np.uint8)
        arrays[f"{name}_labels"] = np.tile((np.arange(count) % 2)[:, None], (1, labels)).astype(
            np.uint8
        )
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **(arrays | others))
    return arrays


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """All sets with four and two images."""
    for name, facts in FACTS.items():
        monkeypatch.setitem(FACTS, name, ReleaseFacts(((4, 2),), facts.names))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_set_reads(tmp_path: Path, name: str, channels: int) -> None:
    arrays = save(tmp_path / "medmnist" / f"{name}.npz", 28, channels)
    dataset = DATASETS.build(name).load(tmp_path)
    assert dataset.name == name
    assert dataset.shape == (28, 28, channels)
    assert np.array_equal(
        dataset.train.x.reshape(arrays["train_images"].shape), arrays["train_images"]
    )
    assert dataset.train.y.tolist() == [0, 1, 0, 1]
    assert (
        DATASETS.build({"name": "medmnist", "dataset": name}).load(tmp_path).sha256
        == dataset.sha256
    )


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("size", [64, 128, 224])
@pytest.mark.parametrize("as_file", [False, True])
def test_every_size_reads_from_a_folder_or_a_file(tmp_path: Path, size: int, as_file: bool) -> None:
    file = tmp_path / "here" / f"pathmnist_{size}.npz"
    save(file, size, 3)
    spec = {"name": "pathmnist", "size": size, "path": str(file if as_file else file.parent)}
    assert DATASETS.build(spec).load(tmp_path).shape == (size, size, 3)


def test_a_size_that_was_never_published_is_refused() -> None:
    with pytest.raises(ValidationError, match="28, 64, 128 or 224"):
        DATASETS.build({"name": "pathmnist", "size": 32})


def test_published_facts() -> None:
    assert len(SETS) == 12
    assert FACTS["pathmnist"].sizes == ((89_996, 7_180),)
    classes = [9, 2, 7, 4, 2, 5, 2, 8, 8, 11, 11, 11]
    assert [len(facts.names.split("|")) for facts in FACTS.values()] == classes


@pytest.mark.usefixtures("tiny")
def test_chest_findings_become_any_or_none(tmp_path: Path) -> None:
    labels = np.zeros((4, 14), dtype=np.uint8)
    labels[1, 3] = labels[2, [0, 13]] = 1
    save(tmp_path / "medmnist" / "chestmnist.npz", 28, 1, labels=14, train_labels=labels)
    assert DATASETS.build("chestmnist").load(tmp_path).train.y.tolist() == [0, 1, 1, 0]


def test_either_release_of_the_organs_will_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "medmnist" / "organamnist.npz", 28, 1)
    monkeypatch.setitem(
        FACTS, "organamnist", ReleaseFacts(((5, 2), (4, 2)), FACTS["organamnist"].names)
    )
    assert len(DATASETS.build("organamnist").load(tmp_path).train) == 4
    monkeypatch.setitem(
        FACTS, "organamnist", ReleaseFacts(((5, 2), (6, 2)), FACTS["organamnist"].names)
    )
    with pytest.raises(DataError, match="has 5 images; got 4"):
        DATASETS.build("organamnist").load(tmp_path)


def test_wrong_counts_name_the_command(tmp_path: Path) -> None:
    save(tmp_path / "medmnist" / "pathmnist_128.npz", 128, 3)
    with pytest.raises(
        DataError, match=r"has 89996 images; got 4\. Run `rayfl data get pathmnist size=128`"
    ):
        MedMnist(dataset="pathmnist", size=128).load(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"bloodmnist needs the file .*medmnist/bloodmnist_64\.npz"):
        MedMnist(dataset="bloodmnist", size=64).load(tmp_path)


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize(
    ("others", "complaint"),
    [
        ({"test_labels": np.array([[object()], [1]], dtype=object)}, "allow_pickle"),
        ({"test_images": np.zeros((2, 20, 20), np.uint8)}, "where 28x28 were asked for"),
        ({"test_labels": np.array([1, 0])}, r"labels int64 \(2,\) where whole \(n, findings\)"),
        ({"test_labels": np.array([[1.5], [0]])}, "labels float64"),
        (
            {"test_labels": np.array([[0, 1], [0, 2]])},
            r"findings lie in \[0, 2\); got 2 at row 1",
        ),
    ],
)
def test_strange_content_is_refused(tmp_path: Path, others: dict[str, Any], complaint: str) -> None:
    save(tmp_path / "medmnist" / "octmnist.npz", 28, 1, **others)
    with pytest.raises(
        DataError, match=rf"octmnist\.npz must be a whole \.npz of MedMNIST; got .*{complaint}"
    ):
        DATASETS.build("octmnist").load(tmp_path)


@pytest.mark.usefixtures("tiny")
def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "medmnist" / "octmnist.npz"
    save(file, 28, 1)
    file.write_bytes(file.read_bytes()[:-40])
    with pytest.raises(DataError, match=r"octmnist\.npz must be a whole \.npz of MedMNIST"):
        DATASETS.build("octmnist").load(tmp_path)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_each_set_says_what_it_is_and_how_large(name: str) -> None:
    said = DATASETS.find(name).__doc__ or ""
    train, test = FACTS[name].sizes[0]
    assert said.endswith(f": {train:,} and {test:,}.")
    classes = len(FACTS[name].names.split("|"))
    assert classes == 2 or f" {classes} " in said
