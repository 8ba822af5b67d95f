"""What the disk knows of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfl.config.schema import validate_config
from rayfl.errors import ConfigError
from rayfl.tuning.book import Book, append_line, count_lives, read_lines, score_values, split_rounds
from rayfl.tuning.figure import scale_of
from tests.tuning.tiny import FEDPROX, TINY, sweep_for


def test_a_sweep_is_begun_once_and_resumed_as_it_was(tmp_path: Path) -> None:
    sweep = sweep_for(tmp_path, seeds=[0, 3])
    with pytest.raises(ConfigError, match=r"--resume takes up a sweep that was begun; got .*tiny"):
        Book.begun(sweep, resume=True)
    book = Book.begun(sweep, resume=False)
    assert [(trial.id, trial.status) for trial in book.trials()] == [
        (name, "waiting") for name in ("000-s0", "000-s3", "001-s0", "001-s3")
    ]
    with pytest.raises(
        ConfigError, match=r"there already. Go on with it by --resume, or .* name=\.\.\."
    ):
        Book.begun(sweep, resume=False)
    with pytest.raises(
        ConfigError,
        match=r"a sweep is resumed with the seeds that it began with \(\[0, 3\]\); got \[0\]",
    ):
        Book.begun(sweep_for(tmp_path), resume=True)
    book.stop_file.touch()
    again = Book.begun(sweep.model_copy(update={"at_once": 1, "retries": 0}), resume=True)
    assert (again.stamp, again.points(), again.sweep.retries) == (book.stamp, book.points(), 0)
    assert not again.stop_file.exists(), (
        "what asked the last start to stop is not meant for this one"
    )


def test_lives_of_a_trial_are_told_from_other_trials_and_kept_in_order(tmp_path: Path) -> None:
    book = Book.begun(sweep_for(tmp_path, seeds=[1, 10]), resume=False)
    book.new_life("000-s10", {"training.lr": 0.3}, "d")
    made = [book.new_life("000-s1", {"training.lr": 0.3}, "d") for _ in range(12)]
    assert book.lives("000-s1") == made
    assert len(book.lives("000-s10")) == 1
    assert [
        count_lives(name, "x-000-s1")
        for name in ("x-000-s1", "x-000-s1-7", "x-000-s10", "x-000-s1-a")
    ] == [
        0,
        7,
        -1,
        -1,
    ]


def test_a_line_that_a_crash_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "ended.jsonl"
    append_line(path, {"a": 1})
    path.write_text(path.read_text() + '{"b": ')
    assert list(read_lines(path)) == [{"a": 1}]
    append_line(path, {"c": 3})
    assert list(read_lines(path)) == [{"a": 1}, {"c": 3}]


@pytest.mark.parametrize(
    ("over", "mode", "score"),
    [("final", "max", 2.0), ("best", "max", 4.0), ("best", "min", 1.0), ("last", "max", 3.0)],
)
def test_a_score_sums_up_the_rounds(tmp_path: Path, over: str, mode: str, score: float) -> None:
    sweep = sweep_for(tmp_path, over=over, mode=mode, window=2)
    assert score_values(sweep, [1.0, 4.0, 2.0]) == score


@pytest.mark.parametrize(
    ("interval", "ends"), [(None, [4]), (1, [1, 2, 3, 4]), (3, [3, 4]), (4, [4]), (9, [4])]
)
def test_a_population_s_runs_are_made_in_stretches(interval: int | None, ends: list[int]) -> None:
    config = validate_config(TINY)
    parts = split_rounds(config, interval)
    assert [part.training.rounds for part in parts] == ends
    assert {part.digest for part in parts} == {config.digest}


@pytest.mark.parametrize(
    ("domain", "values", "heights"),
    [
        ({"grid": ["fedavg", FEDPROX]}, ["fedavg", FEDPROX], [0.95, 0.05]),
        ({"grid": [True, False, True]}, [True], [0.95]),
        ({"grid": [0.01, 0.1, 1.0]}, [0.01, 0.1, 1.0], [0.0, 0.5, 1.0]),
        ({"grid": [1, 2, 3]}, [1, 2, 3], [0.0, 0.5, 1.0]),
        ({"loguniform": [1e-3, 1]}, [0.02, 0.04, 0.08], [0.0, 0.5, 1.0]),
        ({"uniform": [0, 1]}, [0.5], [0.5]),
    ],
)
def test_an_axis_places_its_values(
    tmp_path: Path, domain: dict[str, Any], values: list[Any], heights: list[float]
) -> None:
    sweep = sweep_for(tmp_path, {"x": domain}, searcher="random")
    scale = scale_of("x", values, sweep)
    assert [scale.place(value) for value in values] == pytest.approx(heights)
    assert all(0 <= height <= 1 and text for height, text in scale.marks)
