"""Files of anybody's end in a sentence, and take neither memory, nor disk, nor the day."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from rayfl.errors import DataError
from rayfl.federation.datasets.folder import Folder
from rayfl.federation.fetch import fetch_dataset
from rayfl.regular_files import read_regular
from tests.reliability.damaged_files import run_drill, summarise
from tests.reliability.forked import REFUSED, Outcome, try_cases
from tests.reliability.hostile_files import HOSTILE

MOST_MB = 250
"""Far less than a bomb unpacks to, and enough for what is imported."""


def refuse(attempt: Callable[[Path], object], said: str, folder: Path) -> None:
    """Raises the refusal again, if it says what it should."""
    with pytest.raises(DataError, match=said) as refusal:
        attempt(folder)
    raise refusal.value


def try_one(case: Callable[[], object]) -> Outcome:
    (outcome,) = try_cases([case])
    return outcome


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_bounded_memory(tmp_path: Path, name: str) -> None:
    attempt, said = HOSTILE[name]
    outcome = try_one(partial(refuse, attempt, said, tmp_path))
    assert outcome.verdict == REFUSED
    assert outcome.grown_mb < MOST_MB


@pytest.mark.slow
def test_damaged_files_of_every_kind_are_read_or_refused(tmp_path: Path) -> None:
    counts = run_drill(tmp_path, files=400, seed=2, tell=lambda counts: None)
    found = summarise(counts)
    assert found["faults"] == {}
    assert found["files"] >= 400
    assert min(found["read"], found["refused"]) > 50
    assert found["most_grown_mb"] < 1024


def test_a_drill_goes_on_where_it_was(tmp_path: Path) -> None:
    first = summarise(run_drill(tmp_path, files=50, seed=3, tell=lambda counts: None))
    again = summarise(run_drill(tmp_path, files=50, seed=3, tell=lambda counts: None))
    assert again == first


def test_a_case_that_ends_its_process_is_named_and_the_next_one_is_tried() -> None:
    outcomes = list(try_cases([lambda: os.kill(os.getpid(), 11), lambda: None, lambda: 1 / 0]))
    verdicts = [outcome.verdict for outcome in outcomes]
    assert verdicts[:2] == ["KILLED by SIGSEGV", "passed"]
    assert verdicts[2].startswith("TRACEBACK ZeroDivisionError")


# -- links -----------------------------------------------------------------------------------------


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two classes; one has a link to a picture elsewhere, and one back to the folder itself."""
    from PIL import Image

    folder = tmp_path / "pictures"
    for label in ("cat", "dog"):
        (folder / label).mkdir(parents=True)
        for at in range(3):
            image = Image.fromarray(np.full((4, 4), at, np.uint8))
            image.save(folder / label / f"{at}.png")
    (tmp_path / "elsewhere.png").write_bytes((folder / "cat" / "0.png").read_bytes())
    (folder / "cat" / "3.png").symlink_to(tmp_path / "elsewhere.png")
    (folder / "cat" / "back").symlink_to(folder)
    return folder


def test_links_to_pictures_are_read_and_those_to_folders_are_not(pictures: Path) -> None:
    dataset = Folder(path=pictures, test_fraction=0.5).load(pictures)
    assert len(dataset.train) + len(dataset.test) == 7


def test_a_folder_is_fetched_with_the_pictures_behind_its_links(
    tmp_path: Path, pictures: Path
) -> None:
    part = Folder(path=Path("mine"), test_fraction=0.5)
    fetch_dataset(part, tmp_path / "data", str(pictures), say=lambda line: None)
    copied = sorted(path for path in (tmp_path / "data" / "mine").rglob("*") if path.is_file())
    assert len(copied) == 7
    assert not any(path.is_symlink() for path in copied)


def test_a_folder_with_a_link_to_nothing_is_not_fetched(tmp_path: Path, pictures: Path) -> None:
    (pictures / "dog" / "9.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(DataError, match=r"9\.png, a pipe, a device or a link to nothing"):
        fetch_dataset(
            Folder(path=Path("mine")), tmp_path / "data", str(pictures), say=lambda line: None
        )


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    assert read_regular(tmp_path / "a", 5) == b"12345"
    with pytest.raises(OSError, match="Has more than 4 bytes"):
        read_regular(tmp_path / "a", 4)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, 4)
