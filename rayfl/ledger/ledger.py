"""The ledger's folder: `results` at the top of a checkout, one CSV file a study."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rayfl.durable import write_file
from rayfl.errors import StorageError, broken
from rayfl.ledger.rows import Row, RowKey, is_ledger_text, read_rows, round_row, write_rows
from rayfl.locks import take_lock

FOLDER = "results"
LOCK = ".lock"
PATIENCE = 60.0
"""Seconds to wait for another writer, who needs a fraction of one."""


@dataclass(frozen=True)
class Written:
    """What recording changed, by rows."""

    new: int = 0
    replaced: int = 0
    kept: int = 0
    """Those that were there already."""

    def __add__(self, other: Written) -> Written:
        return Written(
            self.new + other.new,
            self.replaced + other.replaced,
            self.kept + other.kept,
        )

    def __str__(self) -> str:
        return f"{self.new} new, {self.replaced} replaced, {self.kept} there already"


class Ledger:
    """The rows below a folder. Every file is read once; a folder that is not there holds none.

    Parameters
    ----------
    folder : Path
        Where the files are; other CSV files there are left alone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[Row] = []
        self._by_run: dict[tuple[str, int], list[Row]] = {}
        self.read()

    @property
    def root(self) -> Path:
        """The top of the checkout, from which rows name their files."""
        return self.folder.parent

    def find(
        self,
        digest: str,
        rounds: int,
        scores: Iterable[str] = (),
        scenario: str | None = None,
    ) -> Row | None:
        """The row of a run, whichever study recorded it.

        Parameters
        ----------
        scores
            What it must have been recorded with.
        scenario
            The hash that its scenario must have, where that is known."""
        wanted = set(scores)
        for row in self._by_run.get((digest, rounds), []):
            if wanted <= set(row.scores) and scenario in (None, row.scenario):
                return row
        return None

    def of_study(self, name: str) -> list[Row]:
        """The rows of a study, by its name."""
        return [row for row in self.rows if row.study == name]

    def studies(self) -> list[str]:
        """Names of the studies that have rows."""
        return sorted({row.study for row in self.rows})

    def record(self, rows: Sequence[Row]) -> Written:
        """Write rows into their studies' files, beside those that are there.

        A run that is there already with the same model keeps its row; with another model it is
        replaced, for the code has changed meanwhile."""
        written = Written()
        for study in dict.fromkeys(row.study for row in rows):
            ours = [row for row in rows if row.study == study]
            written += _merge_into(self.folder, study, ours)
        self.read()
        return written

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def read(self) -> None:
        """Look again: others may have recorded meanwhile."""
        self.rows.clear()
        self._by_run.clear()
        for path in sorted(self.folder.glob("*.csv")):
            for row in _read_file(path):
                self.rows.append(row)
                self._by_run.setdefault((row.digest, row.rounds), []).append(row)


def find_ledger(start: Path) -> Path | None:
    """The ledger's folder of the checkout around a folder; None outside of any."""
    for folder in (start, *start.parents):
        # In a worktree `.git` is a file.
        if (folder / ".git").exists():
            return folder / FOLDER
    return None


def _read_file(path: Path) -> list[Row]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        rule = "the ledger's files are readable"
        raise StorageError(broken(rule, f"{path} ({error})")) from None
    return read_rows(text, str(path)) if is_ledger_text(text) else []


def _read_own_file(path: Path) -> list[Row]:
    """The rows of a file that is to be written; somebody else's table is not written over."""
    if not is_ledger_text(path.read_text(encoding="utf-8")):
        rule = "the ledger writes over files of its own alone"
        raise StorageError(broken(rule, path, "Move the file, or name a folder with --ledger."))
    return _read_file(path)


def _merge_into(folder: Path, study: str, rows: Sequence[Row]) -> Written:
    """One study's file with these rows; it is untouched where they change nothing."""
    path = folder / f"{study}.csv"
    try:
        with take_lock(folder / LOCK, f"the ledger {folder}", PATIENCE):
            # What another writer has put there meanwhile is read under the lock.
            there = _read_own_file(path) if path.exists() else []
            merged, written = _merge_rows(there, rows)
            if written.new or written.replaced:
                write_file(path, write_rows(merged.values()))
    except OSError as error:
        rule = "a ledger needs a writable folder"
        remedy = "Name another with --ledger."
        raise StorageError(broken(rule, f"{folder} ({error})", remedy)) from error
    return written


def _merge_rows(there: Iterable[Row], rows: Iterable[Row]) -> tuple[dict[RowKey, Row], Written]:
    merged = {row.key: row for row in there}
    written = Written()
    for row in map(round_row, rows):
        old = merged.get(row.key)
        if old is None:
            written += Written(new=1)
        elif old.model != row.model:
            written += Written(replaced=1)
        elif set(row.scores) <= set(old.scores):
            written += Written(kept=1)
            continue
        else:
            # The same run, of which the study wants to know more now.
            written += Written(replaced=1)
            row = replace(old, scores={**old.scores, **row.scores})
        merged[row.key] = row
    return merged, written
