"""CIFAR: one dataset, whatever form it is in; nothing that a pickle asks for is run."""

from __future__ import annotations

import io
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfl.errors import DataError
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.array_pickles import read_pickle
from rayfl.federation.datasets.cifar import Cifar10, Cifar100, compact_cifar10

Writer = Callable[[Path, Images, tuple[str, ...]], None]
TRAIN = Cifar10.train_files
TEST = Cifar10.test_files


def planes(images: Images) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.ascontiguousarray(images.x.transpose(0, 3, 1, 2).reshape(len(images), -1))


def batches(images: Images, names: tuple[str, ...]) -> list[tuple[str, Images]]:
    rows = np.array_split(np.arange(len(images)), len(names))
    return [
        (name, Images(images.x[part], images.y[part]))
        for name, part in zip(names, rows, strict=True)
    ]


def write_pickles(folder: Path, images: Images, names: tuple[str, ...]) -> None:
    for name, part in batches(images, names):
        # Keys as bytes, as Python 2 left them.
        content = {b"data": planes(part), b"labels": part.y.tolist(), b"batch_label": b"one"}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))


def write_binary(folder: Path, images: Images, names: tuple[str, ...]) -> None:
    for name, part in batches(images, names):
        np.concatenate([part.y[:, None].astype(np.uint8), planes(part)], axis=1).tofile(
            folder / f"{name}.bin"
        )


def write_pictures(folder: Path, images: Images, names: tuple[str, ...]) -> None:
    for name, part in batches(images, names):
        Image.fromarray(part.x.reshape(len(part), 1024, 3)).save(folder / f"{name}.png")
    listing = "test_lables.json" if names == TEST else "train_lables.json"
    (folder / listing).write_text(json.dumps(images.y.tolist()))


def png(pixels: np.ndarray[Any, np.dtype[np.uint8]]) -> dict[str, bytes]:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": b"x.png"}


def write_parquet(folder: Path, images: Images, names: tuple[str, ...]) -> None:
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    table = pa.table({"img": pa.array([png(x) for x in images.x], kind), "label": images.y})
    pq.write_table(table, folder / f"{'test' if names == TEST else 'train'}-00000-of-00001.parquet")


WRITERS: list[Writer] = [write_pickles, write_binary, write_pictures, write_parquet]


@pytest.fixture
def tiny(rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Ten training images and four test images."""
    monkeypatch.setattr(Cifar10, "expected", ((1,) * 10, 4))
    train = Images(rng.integers(0, 256, (10, 32, 32, 3), dtype=np.uint8), rng.permutation(10))
    test = Images(rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8), rng.integers(0, 10, 4))
    return Dataset("cifar10", train, test, Cifar10.classes)


def write(folder: Path, dataset: Dataset, writer: Writer) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    writer(folder, dataset.train, TRAIN)
    writer(folder, dataset.test, TEST)


@pytest.mark.parametrize("writer", WRITERS)
def test_every_form_gives_the_same_dataset(tmp_path: Path, tiny: Dataset, writer: Writer) -> None:
    write(tmp_path / "cifar10", tiny, writer)
    found = Cifar10().load(tmp_path)
    assert found.sha256 == tiny.sha256
    assert found.classes[:2] == ("airplane", "automobile")


@pytest.mark.parametrize("writer", [write_pickles, write_binary, write_pictures])
def test_a_wrapping_folder_does_no_harm(tmp_path: Path, tiny: Dataset, writer: Writer) -> None:
    write(tmp_path / "cifar10" / "cifar-10-batches", tiny, writer)
    assert Cifar10().load(tmp_path).sha256 == tiny.sha256


@pytest.mark.parametrize("writer", [write_pictures, write_parquet])
def test_compact_leaves_the_binary_form_alone(
    tmp_path: Path, tiny: Dataset, writer: Writer
) -> None:
    folder = tmp_path / "cifar10"
    write(folder, tiny, writer)
    compact_cifar10(Cifar10(), folder)
    assert sorted(file.name for file in folder.iterdir()) == sorted(
        f"{name}.bin" for name in (*TRAIN, *TEST)
    )
    assert Cifar10().load(tmp_path).sha256 == tiny.sha256


def test_compact_invents_no_coarse_labels(tmp_path: Path, tiny: Dataset) -> None:
    write_parquet(tmp_path, tiny.train, TRAIN)
    compact_cifar10(Cifar100(), tmp_path)
    assert [file.suffix for file in tmp_path.iterdir()] == [".parquet"]


def test_compact_does_not_touch_what_is_quick(tmp_path: Path, tiny: Dataset) -> None:
    write(tmp_path, tiny, write_pickles)
    compact_cifar10(Cifar10(), tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == sorted((*TRAIN, *TEST))


@pytest.mark.parametrize("form", ["binary", "pickle", "parquet"])
def test_cifar100_takes_the_fine_labels(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    monkeypatch.setattr(Cifar100, "expected", (3, 3))
    images = Images(rng.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8), np.array([99, 0, 42]))
    coarse = np.array([1, 2, 3], dtype=np.uint8)
    for name in ("train", "test"):
        if form == "binary":
            labels = np.stack([coarse, images.y.astype(np.uint8)], axis=1)
            np.concatenate([labels, planes(images)], axis=1).tofile(tmp_path / f"{name}.bin")
        elif form == "pickle":
            content = {
                "data": planes(images),
                "fine_labels": images.y.tolist(),
                "coarse_labels": coarse.tolist(),
            }
            (tmp_path / name).write_bytes(pickle.dumps(content))
        else:
            columns = {
                "img": [png(x) for x in images.x],
                "fine_label": images.y,
                "coarse_label": coarse,
            }
            pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    found = Cifar100(path=tmp_path).load(tmp_path)
    assert found.train.y.tolist() == [99, 0, 42]
    assert np.array_equal(found.test.x, images.x)


def test_the_class_names_are_the_publishers() -> None:
    assert len(Cifar10.classes) == 10
    assert len(set(Cifar100.classes)) == 100
    assert (Cifar100.classes[0], Cifar100.classes[19], Cifar100.classes[99]) == (
        "apple",
        "cattle",
        "worm",
    )
    assert Cifar100.expected == ((500,) * 100, (100,) * 100)


def test_a_wrong_count_is_refused(
    tmp_path: Path, tiny: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cifar10, "expected", ((5000,) * 10, (1000,) * 10))
    write(tmp_path / "cifar10", tiny, write_binary)
    with pytest.raises(
        DataError, match=r"cifar10/train has 50000 images; got 10\. Run `rayfl data get cifar10`"
    ):
        Cifar10().load(tmp_path)


def test_an_empty_folder_says_what_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"must hold data_batch_1 .* got none of them\. Run `rayfl data get cifar10`",
    ):
        Cifar10().load(tmp_path)


@pytest.mark.parametrize(
    ("writer", "file", "complaint"),
    [
        (write_pickles, "data_batch_3", "a whole pickle of arrays"),
        (write_binary, "data_batch_3.bin", "a multiple of 3073 bytes long"),
        (write_pictures, "data_batch_3.png", "a whole image file"),
        (write_pictures, "train_lables.json", "JSON"),
        (write_parquet, "train-00000-of-00001.parquet", "a whole Parquet file"),
    ],
)
def test_a_truncated_file_is_refused_by_name(
    tmp_path: Path, tiny: Dataset, writer: Writer, file: str, complaint: str
) -> None:
    write(tmp_path / "cifar10", tiny, writer)
    damaged = tmp_path / "cifar10" / file
    content = damaged.read_bytes()
    damaged.write_bytes(content[: -min(100, len(content) // 2)])
    with pytest.raises(DataError, match=rf"{file} must be {complaint}.*; got "):
        Cifar10().load(tmp_path)


@pytest.mark.parametrize("labels", [[1, 2], ["cat"] * 10])
def test_labels_that_do_not_fit_the_pictures_are_refused(
    tmp_path: Path, tiny: Dataset, labels: list[Any]
) -> None:
    write(tmp_path / "cifar10", tiny, write_pictures)
    (tmp_path / "cifar10" / "train_lables.json").write_text(json.dumps(labels))
    with pytest.raises(DataError, match=r"train_lables\.json must be a list of 10 labels"):
        Cifar10().load(tmp_path)


def test_a_picture_of_another_width_is_refused(tmp_path: Path, tiny: Dataset) -> None:
    write(tmp_path / "cifar10", tiny, write_pictures)
    Image.new("RGB", (1000, 2)).save(tmp_path / "cifar10" / "data_batch_1.png")
    with pytest.raises(
        DataError, match=r"data_batch_1\.png must be a picture 1024 pixels wide; got 1000"
    ):
        Cifar10().load(tmp_path)


class Malicious:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize(
    "content", [Malicious(), {"data": Malicious()}, np.array([Malicious()], dtype=object)]
)
def test_a_pickle_runs_nothing(
    tmp_path: Path, content: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "batch"
    file.write_bytes(pickle.dumps(content))
    with pytest.raises(
        DataError, match=r"batch must be a whole pickle .* got it asks for (posix|nt)\.system"
    ):
        read_pickle(file)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "content",
    [
        {"data": np.zeros((2, 3072), np.uint8)},
        {"data": np.zeros((2, 9)), "labels": [1, 2]},
        {"labels": [1]},
    ],
)
def test_a_pickle_of_something_else_is_refused(
    tmp_path: Path, tiny: Dataset, content: dict[str, Any]
) -> None:
    write(tmp_path / "cifar10", tiny, write_pickles)
    (tmp_path / "cifar10" / "data_batch_2").write_bytes(pickle.dumps(content))
    with pytest.raises(DataError, match="data_batch_2 must be a batch of `data` uint8"):
        Cifar10().load(tmp_path)


def test_a_pickled_list_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "batch"
    file.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(DataError, match="batch must be a pickled mapping; got list"):
        read_pickle(file)
