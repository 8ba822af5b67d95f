"""The cache of features: whole or not at all, and never damaged."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rayfl.arrays import Features
from rayfl.errors import StorageError
from rayfl.models.feature_store import FeatureKey, FeatureStore, slice_rows

KEY = FeatureKey(dataset="d" * 64, encoder="e" * 64, view="train")


@pytest.fixture
def features() -> Features:
    return np.random.default_rng(0).random((7, 5), np.float32)


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    return FeatureStore(tmp_path / "cache")


def test_what_is_put_is_got_read_only_and_mapped(store: FeatureStore, features: Features) -> None:
    assert store.get(KEY) is None
    store.put(KEY, features)
    got = store.get(KEY)
    assert isinstance(got, np.memmap)
    assert np.array_equal(got, features)
    with pytest.raises(ValueError, match="read-only"):
        got[0, 0] = 1


@pytest.mark.parametrize(
    "other",
    [
        FeatureKey("x" * 64, KEY.encoder, KEY.view),
        FeatureKey(KEY.dataset, "x" * 64, KEY.view),
        FeatureKey(KEY.dataset, KEY.encoder, "test"),
    ],
)
def test_every_part_of_the_key_counts(
    store: FeatureStore, features: Features, other: FeatureKey
) -> None:
    store.put(KEY, features)
    assert store.get(other) is None
    assert len({KEY.digest, other.digest}) == 2


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-8])


def spoil_note(path: Path) -> None:
    path.with_suffix(".json").write_text("{")


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (flip, "sha256 is"),
        (truncate, "sha256 is"),
        (Path.unlink, "No such file"),
        (spoil_note, "Expecting"),
    ],
)
def test_damaged_features_are_logged_and_can_be_put_again(
    store: FeatureStore,
    features: Features,
    damage: object,
    reason: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = store.put(KEY, features)
    assert callable(damage)
    damage(path)
    with caplog.at_level(logging.WARNING):
        assert store.get(KEY) is None
    assert "must be computed again" in caplog.text
    assert reason in caplog.text
    store.put(KEY, features)
    again = store.get(KEY)
    assert again is not None
    assert np.array_equal(again, features)


def test_without_its_note_an_array_counts_as_absent(
    store: FeatureStore, features: Features
) -> None:
    store.put(KEY, features).with_suffix(".json").unlink()
    assert store.get(KEY) is None


def test_a_failed_write_leaves_the_old_features(
    store: FeatureStore, features: Features, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put(KEY, features)

    def full(*_args: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(
        StorageError, match=r"written to the cache; got .*disk full\. Free some space"
    ):
        store.put(KEY, features + 1)
    kept = store.get(KEY)
    assert kept is not None
    assert np.array_equal(kept, features)
    assert not list(store.root.glob(".*"))


def test_a_cache_folder_that_is_a_file_is_refused(tmp_path: Path, features: Features) -> None:
    (tmp_path / "cache").write_text("")
    with pytest.raises(StorageError, match="choose another cache folder"):
        FeatureStore(tmp_path / "cache").put(KEY, features)


@pytest.mark.parametrize("wrong", [np.zeros((2, 3)), np.zeros(3, np.float32)])
def test_features_are_float32_rows(store: FeatureStore, wrong: Features) -> None:
    with pytest.raises(StorageError, match="features are float32, one row a sample; got float"):
        store.put(KEY, wrong)


def test_no_rows_are_rows_too(store: FeatureStore) -> None:
    store.put(KEY, np.zeros((0, 4), np.float32))
    got = store.get(KEY)
    assert got is not None
    assert got.shape == (0, 4)


@given(count=st.integers(0, 500), size=st.integers(1, 60))
def test_chunks_cover_every_row_once(count: int, size: int) -> None:
    rows = np.arange(count)
    parts = [rows[part] for part in slice_rows(count, size)]
    assert np.array_equal(np.concatenate([np.zeros(0, np.int64), *parts]), rows)
    assert all(0 < len(part) <= size for part in parts)
    assert all(len(part) == size for part in parts[:-1])
