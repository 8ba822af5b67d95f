"""Parquet in the Hugging Face form with sites: by column, by table, by the names of old files."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from pydantic import ValidationError

from rayfl.errors import DataError
from rayfl.federation.dataset import Dataset
from rayfl.federation.datasets import DATASETS
from tests.federation.own_images import write_table


def encode(value: int, side: int = 6, mode: str = "L", form: str = "PNG") -> bytes:
    stream = io.BytesIO()
    Image.new(mode, (side, side), value).save(stream, form)
    return stream.getvalue()


def save(file: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Rows of `image` (bytes), `path` and more; images as structs where there are paths."""
    file.parent.mkdir(parents=True, exist_ok=True)
    written = []
    for row in rows:
        image = row["image"]
        if "path" in row:
            image = {"bytes": image, "path": row["path"]}
        others = {key: value for key, value in row.items() if key not in ("image", "path")}
        written.append({"image": image, **others})
    pq.write_table(pa.Table.from_pylist(written), file)


def make_rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"image": encode(i), "path": f"{i}.png", "label": i % 2, "hospital": "ab"[i // 2 % 2]}
        for i in range(start, start + count)
    ]


def load(folder: Path, **settings: Any) -> Dataset:
    return DATASETS.build({"name": "parquet", "path": folder, **settings}).load(folder)


def test_a_column_is_the_site(tmp_path: Path) -> None:
    save(tmp_path / "data" / "train-00000.parquet", make_rows(12))
    save(tmp_path / "data" / "train-00001.parquet", make_rows(8, 12))
    dataset = load(tmp_path, sites={"column": "hospital"})
    assert dataset.sites == ("a", "b")
    for images in (dataset.train, dataset.test):
        assert images.names is not None
        assert images.groups is not None
        for pixels, name, site, y in zip(
            images.x, images.names.tolist(), images.groups, images.y, strict=True
        ):
            i = int(pixels[0, 0, 0])
            assert (name, site, y) == (f"{i}.png", i // 2 % 2, i % 2)


@pytest.mark.parametrize("file", ["dataset_info.json", "dataset_infos.json"])
def test_names_of_classes_come_from_the_file_beside(tmp_path: Path, file: str) -> None:
    info: dict[str, Any] = {"features": {"label": {"names": ["pus", "none"]}}}
    content = info if file == "dataset_info.json" else {"default": info}
    (tmp_path / file).write_text(json.dumps(content))
    save(tmp_path / "train.parquet", make_rows(10))
    assert load(tmp_path).classes == ("pus", "none")


def test_labels_may_be_words(tmp_path: Path) -> None:
    rows = [{**row, "label": ("dog", "cat")[row["label"]]} for row in make_rows(10)]
    save(tmp_path / "train.parquet", rows)
    dataset = load(tmp_path, sites={"column": "hospital"})
    assert dataset.classes == ("cat", "dog")
    assert (dataset.train.y == 1 - dataset.train.x[:, 0, 0, 0] % 2).all()


@pytest.mark.parametrize("twice", [True, False])
def test_rows_without_names_of_their_own_are_numbered(tmp_path: Path, twice: bool) -> None:
    rows = [{**row, "path": "0.png"} for row in make_rows(10)]
    if not twice:
        rows = [{key: row[key] for key in ("image", "label")} for row in rows]
    save(tmp_path / "train-0.parquet", rows)
    dataset = load(tmp_path)
    assert dataset.train.names is not None
    for pixels, name in zip(dataset.train.x, dataset.train.names.tolist(), strict=True):
        assert name == f"train-0.parquet#{pixels[0, 0, 0]}"


def test_a_table_says_site_label_and_truth_by_name(tmp_path: Path) -> None:
    save(tmp_path / "train.parquet", make_rows(10))
    table = [
        {"file": f"{i}.png", "site": "xyz"[i % 3], "label": i // 5, "expert": 1} for i in range(10)
    ]
    write_table(tmp_path / "sites.parquet", table)
    dataset = load(tmp_path, sites={"table": "sites.parquet"}, truth="expert")
    assert dataset.sites == ("x", "y", "z")
    assert dataset.train.truth is not None
    assert (dataset.train.y == dataset.train.x[:, 0, 0, 0] // 5).all()
    assert (dataset.train.truth == 1).all()


def test_a_label_in_the_table_that_is_no_class_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "train.parquet", make_rows(2))
    rows = [{"file": f"{i}.png", "site": "x", "label": 7} for i in range(2)]
    write_table(tmp_path / "sites.csv", rows)
    with pytest.raises(DataError, match=r"labels of a table are classes of the files \(0, 1\)"):
        load(tmp_path, sites={"table": "sites.csv"})


def test_a_column_of_truth(tmp_path: Path) -> None:
    save(tmp_path / "train.parquet", [{**row, "expert": 0} for row in make_rows(10)])
    dataset = load(tmp_path, sites={"column": "hospital"}, truth="expert")
    assert dataset.train.truth is not None
    assert not dataset.train.truth.any()
    assert dataset.train.y.any()
    assert not dataset.test.y.any()


def test_images_of_every_size_and_mode_share_side_and_channels(tmp_path: Path) -> None:
    rows = make_rows(4)
    rows[1]["image"] = encode(1, 9, "RGB", "JPEG")
    rows[2]["image"] = encode(200, 3, "P", "GIF")
    save(tmp_path / "train.parquet", rows)
    dataset = load(tmp_path, side=4)
    assert dataset.shape == (4, 4, 3)


def test_damaged_rows_are_left_out_on_request(tmp_path: Path) -> None:
    rows = make_rows(10)
    rows[3]["image"] = b"no"
    save(tmp_path / "train.parquet", rows)
    with pytest.raises(DataError, match=r"train\.parquet row 3 must be a whole image file"):
        load(tmp_path)
    dataset = load(tmp_path, damaged="skip")
    assert dataset.skipped == ("3.png",)
    assert len(dataset.train) + len(dataset.test) == 9
    assert not np.isin(dataset.train.x[:, 0, 0, 0], 3).any()


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"sites": {"column": "clinic"}}, r"a column clinic; got image, label, hospital"),
        ({"sites": {"pattern": "(?P<site>[a-z])x"}}, r"is found in every image's path"),
    ],
)
def test_sites_that_are_not_there_are_refused(
    tmp_path: Path, settings: dict[str, Any], rule: str
) -> None:
    save(tmp_path / "train.parquet", make_rows(4))
    with pytest.raises(DataError, match=rule):
        load(tmp_path, **settings)


def test_a_site_without_a_value_is_refused(tmp_path: Path) -> None:
    rows = make_rows(4)
    rows[2]["hospital"] = None
    save(tmp_path / "train.parquet", rows)
    with pytest.raises(DataError, match=r"column 'hospital' has a value in every row.* row 2"):
        load(tmp_path, sites={"column": "hospital"})


def test_a_truth_without_a_place_is_refused() -> None:
    with pytest.raises(ValidationError, match="truth is a column of the files or the table"):
        DATASETS.build({"name": "parquet", "sites": "parent", "truth": "expert"})


def test_a_damaged_description_is_refused(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text("{")
    save(tmp_path / "train.parquet", make_rows(4))
    with pytest.raises(DataError, match=r"dataset_info\.json must be readable JSON"):
        load(tmp_path)


def test_a_site_that_is_no_text_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "train.parquet", [{**row, "hospital": [1, 2]} for row in make_rows(4)])
    with pytest.raises(DataError, match=r"column 'hospital' holds texts or numbers; got list"):
        load(tmp_path, sites={"column": "hospital"})


def test_a_description_of_another_form_names_nothing(tmp_path: Path) -> None:
    (tmp_path / "dataset_info.json").write_text('{"features": {"label": {"names": 7}}, "x": 1}')
    save(tmp_path / "train.parquet", make_rows(4))
    assert load(tmp_path).classes == ("0", "1")
