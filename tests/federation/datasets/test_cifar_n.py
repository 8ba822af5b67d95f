"""Human labels: both forms, every key, and the check against the images' own labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from rayfl.errors import ConfigError, DataError
from rayfl.federation.datasets.cifar_n import check_clean_labels, read_human_labels

CLEAN = np.array([6, 9, 9, 4, 1])
COLUMNS10 = {
    "clean_label": CLEAN,
    "aggre_label": CLEAN + 10,
    "worse_label": CLEAN + 20,
    "random_label1": CLEAN + 30,
    "random_label2": CLEAN + 40,
    "random_label3": CLEAN + 50,
}
COLUMNS100 = {"clean_label": CLEAN, "noisy_label": CLEAN + 60}


def save(
    folder: Path, form: str, columns: dict[str, np.ndarray[tuple[int], np.dtype[np.int64]]]
) -> Path:
    file = folder / f"human.{form}"
    if form == "pt":
        torch.save(columns, file)
    else:
        pq.write_table(pa.table(columns), file)
    return file


@pytest.mark.parametrize("form", ["pt", "parquet"])
@pytest.mark.parametrize(
    ("key", "offset"),
    [
        ("aggregate", 10),
        ("worse", 20),
        ("worse_label", 20),
        ("random1", 30),
        ("random2", 40),
        ("random3", 50),
    ],
)
def test_cifar10n_keys(tmp_path: Path, form: str, key: str, offset: int) -> None:
    clean, noisy = read_human_labels(save(tmp_path, form, COLUMNS10), key)
    assert clean.dtype == noisy.dtype == np.int64
    assert clean.tolist() == [6, 9, 9, 4, 1]
    assert (noisy - clean).tolist() == [offset] * 5


@pytest.mark.parametrize("form", ["pt", "parquet"])
@pytest.mark.parametrize("key", ["fine", "noisy", "noisy_label"])
def test_cifar100n_keys(tmp_path: Path, form: str, key: str) -> None:
    clean, noisy = read_human_labels(save(tmp_path, form, COLUMNS100), key)
    assert (noisy - clean).tolist() == [60] * 5


def test_an_unknown_key_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"human labels are called worse, .* got 'worst'\. Did you mean 'worse'"
    ):
        read_human_labels(tmp_path / "any.pt", "worst")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"need the file .*any\.pt; got no such file\. Put CIFAR-10_human\.pt"
    ):
        read_human_labels(tmp_path / "any.pt", "worse")


@pytest.mark.parametrize("form", ["pt", "parquet"])
def test_a_key_of_the_other_dataset_is_refused(tmp_path: Path, form: str) -> None:
    with pytest.raises(
        DataError, match="must have the labels noisy_label; got only aggre_label, clean_label"
    ):
        read_human_labels(save(tmp_path, form, COLUMNS10), "fine")


@pytest.mark.parametrize(("form", "kind"), [("pt", r"\.pt"), ("parquet", "Parquet")])
def test_a_truncated_file_is_refused(tmp_path: Path, form: str, kind: str) -> None:
    file = save(tmp_path, form, COLUMNS10)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(DataError, match=f"must be a whole {kind} file"):
        read_human_labels(file, "worse")


def test_a_pt_file_with_code_in_it_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "human.pt"
    torch.save({"clean_label": print}, file)
    with pytest.raises(
        DataError,
        match=r"must be a whole \.pt file of arrays; got Weights only load failed\. Fetch",
    ):
        read_human_labels(file, "worse")


@pytest.mark.parametrize(
    "wrong", [np.array([0.5] * 5), np.zeros((5, 2), dtype=np.int64), np.arange(4)]
)
def test_labels_of_another_kind_are_refused(
    tmp_path: Path, wrong: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> None:
    file = save(tmp_path, "pt", COLUMNS10 | {"worse_label": wrong})
    with pytest.raises(DataError, match=r"one row of whole numbers|are equally many"):
        read_human_labels(file, "worse")


def test_equal_clean_labels_pass() -> None:
    assert check_clean_labels(CLEAN, CLEAN.copy()) is None  # type: ignore[func-returns-value]


def test_a_mismatch_is_counted_and_placed() -> None:
    images = CLEAN.copy()
    images[[2, 4]] = 3
    with pytest.raises(
        DataError, match="got 2 that differ, the first at position 2: 9 where the image has 3"
    ):
        check_clean_labels(CLEAN, images, "human.pt")


def test_another_length_is_refused() -> None:
    with pytest.raises(DataError, match="must label the 4 training images; got 5 rows"):
        check_clean_labels(CLEAN, CLEAN[:4])
