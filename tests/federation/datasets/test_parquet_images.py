"""Parquet in the Hugging Face form: several files, names from the metadata, any of the usual
columns."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from rayfl.errors import DataError
from rayfl.federation.datasets import DATASETS
from rayfl.federation.datasets.parquet import Parquet


def encoded(value: int, side: int = 4) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((side, side, 3), value, dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def save(
    file: Path,
    labels: list[Any],
    names: list[str] | None = None,
    image: str = "image",
    label: str = "label",
    side: int = 4,
) -> None:
    """Images whose pixels are their label."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {"bytes": encoded(int(y or 0) % 256, side), "path": f"{i}.png"}
        for i, y in enumerate(labels)
    ]
    table = pa.table({image: rows, label: labels})
    if names:
        features = {label: {"names": names, "_type": "ClassLabel"}}
        table = table.replace_schema_metadata(
            {"huggingface": json.dumps({"info": {"features": features}})}
        )
    pq.write_table(table, file)


@pytest.mark.parametrize("below", ["", "data"])
@pytest.mark.parametrize("held_out", ["test", "validation"])
@pytest.mark.parametrize(("image", "label"), [("image", "label"), ("img", "labels")])
def test_files_in_order_with_names(
    tmp_path: Path, below: str, held_out: str, image: str, label: str
) -> None:
    folder = tmp_path / "pets" / below
    save(folder / "train-00001-of-00002.parquet", [0, 1], ["cat", "dog"], image, label)
    save(folder / "train-00000-of-00002.parquet", [1, 1, 0], ["cat", "dog"], image, label)
    save(folder / f"{held_out}-00000-of-00001.parquet", [1], ["cat", "dog"], image, label)
    dataset = DATASETS.build({"name": "parquet", "path": "pets"}).load(tmp_path)
    assert (dataset.name, dataset.classes, dataset.shape) == ("pets", ("cat", "dog"), (4, 4, 3))
    assert dataset.train.y.tolist() == [1, 1, 0, 0, 1]
    assert np.array_equal(dataset.train.x[:, 0, 0, 0], dataset.train.y)
    assert dataset.test.y.tolist() == [1]


def test_chosen_columns(tmp_path: Path) -> None:
    save(tmp_path / "train.parquet", [3, 0], image="photo", label="species")
    save(tmp_path / "test.parquet", [1], image="photo", label="species")
    dataset = Parquet(path=tmp_path, image="photo", label="species").load(tmp_path)
    assert dataset.classes == ("0", "1", "2", "3")


def test_plain_bytes_will_do(tmp_path: Path) -> None:
    for name in ("train", "test"):
        pq.write_table(
            pa.table({"image": [encoded(0), encoded(1)], "label": [0, 1]}),
            tmp_path / f"{name}.parquet",
        )
    assert Parquet(path=tmp_path, channels=1).load(tmp_path).train.x[:, 0, 0, 0].tolist() == [0, 1]


def test_without_a_test_file_there_is_a_seeded_split(tmp_path: Path) -> None:
    save(tmp_path / "train.parquet", [0, 1] * 10)
    first, same, other = (Parquet(path=tmp_path, seed=seed).load(tmp_path) for seed in (1, 1, 2))
    assert np.bincount(first.test.y).tolist() == [2, 2]
    assert first.sha256 == same.sha256
    assert first.classes == other.classes == ("0", "1")


@pytest.mark.parametrize(
    ("labels", "complaint"),
    [
        ([0, 2], r"train\.parquet: labels lie in \[0, 2\); got 2 at position 1"),
        ([0, -1], r"train\.parquet: labels lie in \[0, 2\); got -1 at position 1"),
        (
            [0, None],
            r"train\.parquet must be labelled with whole numbers throughout; got int64, 1 missing",
        ),
        ([0.0, 1.0], r"with whole numbers throughout; got double"),
    ],
)
def test_wrong_labels_are_refused(tmp_path: Path, labels: list[Any], complaint: str) -> None:
    save(tmp_path / "train.parquet", labels, ["cat", "dog"])
    with pytest.raises(DataError, match=complaint):
        Parquet(path=tmp_path).load(tmp_path)


def test_missing_columns_are_named(tmp_path: Path) -> None:
    save(tmp_path / "train.parquet", [0], image="photo")
    with pytest.raises(
        DataError, match=r"train\.parquet must have a column image or img; got photo, label"
    ):
        Parquet(path=tmp_path).load(tmp_path)


def test_a_row_that_is_no_image_is_named(tmp_path: Path) -> None:
    pq.write_table(
        pa.table({"image": [encoded(0), b"no", None], "label": [0, 0, 0]}),
        tmp_path / "train.parquet",
    )
    with pytest.raises(DataError, match=r"train\.parquet row 1 must be a whole image file"):
        Parquet(path=tmp_path).load(tmp_path)


def test_files_of_two_sizes_need_a_side(tmp_path: Path) -> None:
    save(tmp_path / "train-0.parquet", [0])
    save(tmp_path / "train-1.parquet", [1], side=5)
    save(tmp_path / "test.parquet", [1])
    with pytest.raises(
        DataError, match=r"\(4, 4\); got \(5, 5\) in .*train-1\.parquet row 0\. Set `side`"
    ):
        Parquet(path=tmp_path).load(tmp_path)
    assert Parquet(path=tmp_path, side=3).load(tmp_path).shape == (3, 3, 3)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"parquet must hold train-\*\.parquet; got no such file"):
        Parquet().load(tmp_path)
