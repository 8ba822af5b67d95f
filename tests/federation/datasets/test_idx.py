"""IDX files: every spelling reads alike, every damage is named."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rayfl.errors import DataError
from rayfl.federation.datasets import DATASETS
from rayfl.federation.datasets.idx import FashionMnist, Mnist, read_idx


def idx(array: NDArray[np.uint8]) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim))
        + np.array(array.shape, dtype=">u4").tobytes()
        + array.tobytes()
    )


def write_parts(
    folder: Path, rng: np.random.Generator, dash: str = "-", zipped: bool = False
) -> NDArray[np.uint8]:
    """Three training images and two test images; answers the training pixels."""
    folder.mkdir(parents=True)
    train = rng.integers(0, 256, (3, 28, 28), dtype=np.uint8)
    arrays = {
        f"train-images{dash}idx3-ubyte": train,
        f"train-labels{dash}idx1-ubyte": np.array([0, 1, 1], dtype=np.uint8),
        f"t10k-images{dash}idx3-ubyte": rng.integers(0, 256, (2, 28, 28), dtype=np.uint8),
        f"t10k-labels{dash}idx1-ubyte": np.array([1, 0], dtype=np.uint8),
    }
    for name, array in arrays.items():
        content = idx(array)
        (folder / f"{name}{'.gz' if zipped else ''}").write_bytes(
            gzip.compress(content) if zipped else content
        )
    return train


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST of three and two images."""
    monkeypatch.setattr(Mnist, "expected", ((1, 2) + (0,) * 8, (1, 1) + (0,) * 8))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("dash", ["-", "."])
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("below", ["", "MNIST/raw"])
def test_all_spellings_read_alike(
    tmp_path: Path, rng: np.random.Generator, dash: str, zipped: bool, below: str
) -> None:
    train = write_parts(tmp_path / "mnist" / below, rng, dash, zipped)
    dataset = DATASETS.build("mnist").load(tmp_path)
    assert dataset.shape == (28, 28, 1)
    assert np.array_equal(dataset.train.x[..., 0], train)
    assert dataset.train.y.tolist() == [0, 1, 1]
    assert dataset.test.y.tolist() == [1, 0]
    assert dataset.name == "mnist"


@pytest.mark.usefixtures("tiny")
def test_path_takes_the_place_of_the_folder(tmp_path: Path, rng: np.random.Generator) -> None:
    write_parts(tmp_path / "elsewhere", rng)
    assert len(Mnist(path=Path("elsewhere")).load(tmp_path).train) == 3
    assert len(Mnist(path=tmp_path / "elsewhere").load(Path("/nowhere")).train) == 3


def test_the_published_counts_hold() -> None:
    assert [sum(part) for part in Mnist.expected if isinstance(part, tuple)] == [60_000, 10_000]
    assert FashionMnist.expected == ((6000,) * 10, (1000,) * 10)


def test_wrong_count_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    write_parts(tmp_path / "mnist", rng)
    with pytest.raises(
        DataError, match=r"mnist/train has 60000 images; got 3\. Run `rayfl data get mnist`"
    ):
        Mnist().load(tmp_path)


def test_wrong_class_count_is_refused(
    tmp_path: Path, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mnist, "expected", ((2, 1) + (0,) * 8, 2))
    write_parts(tmp_path / "mnist", rng)
    with pytest.raises(DataError, match="mnist/train has 2 images of class 0; got 1"):
        Mnist().load(tmp_path)


@pytest.mark.usefixtures("tiny")
def test_label_out_of_range_is_refused(tmp_path: Path, rng: np.random.Generator) -> None:
    write_parts(tmp_path / "mnist", rng)
    (tmp_path / "mnist" / "train-labels-idx1-ubyte").write_bytes(
        idx(np.array([0, 10, 1], dtype=np.uint8))
    )
    with pytest.raises(
        DataError, match=r"mnist/train: labels lie in \[0, 10\); got 10 at position 1"
    ):
        Mnist().load(tmp_path)


@pytest.mark.usefixtures("tiny")
def test_a_missing_file_is_named(tmp_path: Path, rng: np.random.Generator) -> None:
    write_parts(tmp_path / "mnist", rng)
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(
        DataError,
        match=r"needs the file .*t10k-labels-idx1-ubyte; got no such file\. Run `rayfl data",
    ):
        Mnist().load(tmp_path)


GOOD = idx(np.arange(12, dtype=np.uint8).reshape(3, 2, 2))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (GOOD[:-1], "28 bytes long, by its header; got 27"),
        (GOOD + b"x", "28 bytes long, by its header; got 29"),
        (GOOD[:9], r"IDX of 3 dimensions \(first bytes 00000803\)"),
        (idx(np.zeros(3, np.uint8)), r"IDX of 3 dimensions \(first bytes 00000803\); got 00000801"),
        (b"", "IDX of 3 dimensions"),
    ],
)
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, content: bytes, complaint: str) -> None:
    file = tmp_path / "images"
    file.write_bytes(content)
    with pytest.raises(DataError, match=f"images must be .*{complaint}"):
        read_idx(file, 3)


@pytest.mark.parametrize("content", [gzip.compress(GOOD, mtime=0)[:-9], b"not gzip at all"])
def test_a_damaged_gzip_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "images.gz"
    file.write_bytes(content)
    with pytest.raises(
        DataError, match=r"images\.gz must be a whole gzip file; got .*rayfl data get mnist"
    ):
        read_idx(file, 3, "mnist")
