"""Two studies at once: each run is made by one of them, and found finished by the other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rayfl.config.schema import Config
from rayfl.locks import FileLock, take_lock
from rayfl.run.store import Record, Shelf, read_record

Find = Callable[[Shelf, Config], Record | None]
"""The finished run that a study takes for one of its own, where the shelf has it."""


class CellLocks:
    """The runs of an output folder that several processes may want to make.

    Parameters
    ----------
    output : Path
        The output folder, which all of them share.
    find : callable
        Looks for a run on a shelf.
    """

    def __init__(self, output: Path, find: Find) -> None:
        self.output = output
        self.find = find
        self.shelf = Shelf(output)
        self.seen = {record.directory for record in self.shelf}

    def take(self, config: Config, title: str) -> FileLock:
        """Keep others from making a run with this configuration; or LockHeldError, which says who
        is making it."""
        rounds = config.training.rounds
        path = self.output / "locks" / f"{config.digest[:16]}-{rounds}"
        return take_lock(path, title)

    def is_finished(self, config: Config) -> bool:
        """Whether somebody has made it meanwhile."""
        for path in sorted(self.output.glob("runs/*/result.json")):
            if path.parent not in self.seen:
                self._note(path.parent)
        return self.find(self.shelf, config) is not None

    def _note(self, directory: Path) -> None:
        record = read_record(directory)
        if record is not None:
            self.seen.add(directory)
            self.shelf.add(record)
