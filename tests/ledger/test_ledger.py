"""The ledger's files: rows that come back as they were, one writer at a time, and nothing lost."""

from __future__ import annotations

import math
import multiprocessing
from pathlib import Path

import pytest

from rayfl.errors import DataError, StorageError
from rayfl.ledger.ledger import FOLDER, LOCK, Ledger, Written, find_ledger
from rayfl.ledger.rows import (
    COLUMNS,
    is_ledger_text,
    name_entry,
    name_summary,
    read_rows,
    write_rows,
)
from rayfl.locks import LockHeldError, take_lock
from tests.ledger.made_rows import make_row


def test_a_row_comes_back_as_it_was() -> None:
    row = make_row(overrides=("training.lr=0.1", "model={name: mlp, hidden: [8]}"), scale=0.1)
    (back,) = read_rows(write_rows([row]), "x.csv")
    assert (back.axes, back.scores, back.overrides) == (row.axes, row.scores, row.overrides)
    assert (back.scale, back.down_mb, back.command) == (row.scale, row.down_mb, row.command)
    assert math.isnan(back.up_mb)
    assert back.environment["torch"] == "2.0"
    assert back.environment["capability"] == ""
    assert write_rows([back]) == write_rows([row])


def test_rows_have_one_order_and_a_line_each() -> None:
    rows = [make_row(seed=seed, scale=scale) for seed in (10, 2) for scale in (1.0, 0.5)]
    text = write_rows(rows)
    assert text == write_rows(rows[::-1])
    lines = text.splitlines()
    assert lines[0].split(",") == COLUMNS
    assert len(lines) == 5
    assert [(row.scale, row.seed) for row in read_rows(text, "x")] == [
        (0.5, 2), (0.5, 10), (1.0, 2), (1.0, 10),
    ]  # fmt: skip


def test_a_score_that_a_run_does_not_have_is_kept_apart_from_one_that_nobody_asked_for() -> None:
    row = make_row(scores={"labels/precision:best": math.nan})
    (back,) = read_rows(write_rows([row]), "x.csv")
    assert list(back.scores) == ["labels/precision:best"]
    assert math.isnan(back.scores["labels/precision:best"])


@pytest.mark.parametrize(
    ("old", "new"),
    [(",0,1,,fp32,2,", ",zero,1,,fp32,2,"), (",0,1,,fp32,2,", ",0,1,,fp32,,"), ("=0.5;", "=half;")],
)
def test_a_damaged_row_is_named_with_its_line(old: str, new: str) -> None:
    text = write_rows([make_row(seed=3), make_row(seed=0)])
    assert old in text
    with pytest.raises(DataError, match=r"x\.csv, line 2"):
        read_rows(text.replace(old, new, 1), "x.csv")


def test_names_that_would_tear_a_row_are_refused() -> None:
    with pytest.raises(DataError, match="no `;`"):
        write_rows([make_row(axes={"method": "a;b"})])


def test_names_of_scores() -> None:
    assert name_summary("test/loss", "best", 10, lower_is_better=True) == "test/loss:least"
    assert name_summary("test/accuracy", "best", 10) == "test/accuracy:best"
    assert name_summary("test/accuracy", "last", 2) == "test/accuracy:last2"
    assert name_entry("similarity", (0, 1)) == "similarity[0,1]"


# -- files -----------------------------------------------------------------------------------------


def test_rows_are_written_beside_those_that_are_there(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "results")
    assert list(ledger) == []
    assert ledger.record([make_row(seed=0), make_row(seed=0, study="other")]) == Written(new=2)
    assert Ledger(ledger.folder).record([make_row(seed=1)]) == Written(new=1)
    again = Ledger(ledger.folder)
    assert sorted((row.study, row.seed) for row in again) == [
        ("other", 0), ("tiny", 0), ("tiny", 1),
    ]  # fmt: skip
    assert again.studies() == ["other", "tiny"]
    assert sorted(path.name for path in ledger.folder.iterdir()) == [LOCK, "other.csv", "tiny.csv"]


def test_recording_twice_changes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.record([make_row()])
    before = (tmp_path / "tiny.csv").read_bytes()
    later = make_row(seconds=99.0, finished="2027-01-01T00:00Z", environment={"commit": "new"})
    assert ledger.record([later]) == Written(kept=1)
    assert (tmp_path / "tiny.csv").read_bytes() == before


def test_another_model_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.record([make_row()])
    assert ledger.record([make_row(model="n" * 64)]) == Written(replaced=1)
    assert [row.model for row in ledger] == ["n" * 64]


def test_a_score_that_is_asked_for_later_is_added_to_the_row(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.record([make_row()])
    later = make_row(scores={"test/loss:final": 1.0}, seconds=99.0)
    assert ledger.record([later]) == Written(replaced=1)
    (row,) = ledger
    assert set(row.scores) == {"test/accuracy:best", "test/accuracy:last10", "test/loss:final"}
    assert row.seconds == 2.0


@pytest.mark.parametrize(
    "change",
    [{"scale": 0.5}, {"overrides": ("training.precision=bf16",)}, {"digest": "e" * 64}],
)
def test_runs_of_another_kind_are_other_rows(tmp_path: Path, change: dict[str, object]) -> None:
    ledger = Ledger(tmp_path)
    ledger.record([make_row()])
    assert ledger.record([make_row(**change)]) == Written(new=1)
    assert len(list(ledger)) == 2


def test_a_run_is_found_by_what_it_is(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.record([make_row(study="a", scores={"x:best": 1.0}), make_row(study="b")])
    found = ledger.find("d" * 64, 2, ["test/accuracy:best"])
    assert found is not None
    assert found.study == "b"
    assert ledger.find("d" * 64, 3) is None
    assert ledger.find("d" * 64, 2, ["test/loss:best"]) is None
    assert ledger.find("d" * 64, 2, scenario="t" * 64) is None


def test_other_tables_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "tiny.csv").write_text("name,age\nEve,3\n")
    ledger = Ledger(tmp_path)
    assert list(ledger) == []
    assert not is_ledger_text("")
    with pytest.raises(StorageError, match="files of its own alone"):
        ledger.record([make_row()])
    assert (tmp_path / "tiny.csv").read_text() == "name,age\nEve,3\n"


def test_the_second_writer_waits_and_says_for_whom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfl.ledger.ledger.PATIENCE", 0.0)
    with take_lock(tmp_path / LOCK, "x"), pytest.raises(LockHeldError, match="the ledger"):
        Ledger(tmp_path).record([make_row()])


def _record_seed(folder: Path, seed: int) -> None:
    Ledger(folder).record([make_row(seed=seed)])


def test_two_writers_lose_no_row(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_record_seed, args=(tmp_path, seed)) for seed in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(row.seed for row in Ledger(tmp_path)) == [0, 1, 2, 3]


def test_the_ledger_is_that_of_the_checkout(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    # A worktree has a file where a clone has a folder.
    (tmp_path / "a" / ".git").write_text("gitdir: elsewhere")
    assert find_ledger(tmp_path / "a" / "b") == tmp_path / "a" / FOLDER
