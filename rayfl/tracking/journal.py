"""What is to be tracked, on disk before anything else: `journal.jsonl`, a line each, with
`tracking.json` beside it for how far it was carried and where."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from rayfl.durable import sync_files
from rayfl.errors import StorageError
from rayfl.secrets import mask_secrets

log = logging.getLogger("rayfl")

Entry = Mapping[str, Any]

CONTENT: Mapping[str, Mapping[str, type]] = {
    "start": {"experiment": str, "run_name": str, "tags": dict, "params": dict},
    "datasets": {"datasets": list},
    "metrics": {"step": int, "values": dict},
    "values": {"step": int, "values": dict},
    "tags": {"tags": dict},
    "artifact": {"path": str, "folder": str},
    "model": {"path": str},
    "status": {"status": str},
}
"""What an entry of each kind holds, beside its kind and its time. `metrics` are those of a round,
`values` are of the whole run or of the machine; a `model` may say more of itself."""
UNMASKED = {"metrics", "values", "artifact", "model"}
NOTE: Mapping[str, type] = {"run_id": str, "carried": int, "former": list, "model_id": str}
"""What is noted: the MLflow run, how many lines it has, what the run was called in stores that are
lost, and its last model."""


class Journal:
    """The journal of one run, sweep or study.

    Parameters
    ----------
    directory : Path
        Where it lies; made if it is not there.

    Attributes
    ----------
    last_round : int
        The last round whose metrics are in it.
    fresh : bool
        Whether nothing was in it when it was opened.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / "journal.jsonl"
        self.note = directory / "tracking.json"
        directory.mkdir(parents=True, exist_ok=True)
        self.path.touch()
        self.fresh = self.path.stat().st_size == 0
        steps = [entry["step"] for entry in self.entries() if entry["kind"] == "metrics"]
        self.last_round: int = max(steps, default=0)

    @property
    def directory(self) -> Path:
        return self.path.parent

    # -- entries -------------------------------------------------------------------------------

    def append(self, kind: str, **content: Any) -> None:
        """Add an entry: all of it, or nothing.

        Parameters
        ----------
        kind : str
            One of CONTENT.
        **content
            What an entry of this kind holds.
        """
        # Nothing that is written here, or carried from here, has a credential in it. Numbers have
        # none, and files must be found again by their paths.
        said = content if kind in UNMASKED else mask_secrets(content)
        line = json.dumps({"kind": kind, "time": int(time.time() * 1000), **said})
        whole = self.path.stat().st_size
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            with suppress(OSError):  # half a line would spoil the next one
                os.truncate(self.path, whole)
            remedy = "What is in it is kept. Free some space, then --resume the run."
            raise StorageError(
                f"the journal of a run must be writable; got {self.path} ({error}). {remedy}"
            ) from error

    def settle(self) -> None:
        """Return when all entries have reached the disk."""
        sync_files([self.path])

    def remove(self) -> None:
        """Leave nothing of a run that never began."""
        for path in (self.path, self.note):
            path.unlink(missing_ok=True)

    def mend(self) -> None:
        """Cut off a last line that a crash or a full disk left unfinished: it would spoil the next
        one."""
        os.truncate(self.path, self.path.read_bytes().rfind(b"\n") + 1)

    def entries(self, start: int = 0) -> Iterator[Entry]:
        """The entries from a line on, without lines that are damaged."""
        return (entry for entry in self.lines(start) if entry is not None)

    def lines(self, start: int = 0) -> Iterator[Entry | None]:
        """The lines from one on: an entry each, or None where a line is damaged. A last line that
        was cut short by a crash is not one."""
        with self.path.open("rb") as file:
            for number, line in enumerate(file):
                if number >= start and line.endswith(b"\n"):
                    yield _read_entry(line)

    # -- how far it was carried ----------------------------------------------------------------

    def noted(self) -> dict[str, Any]:
        """`{"run_id": ..., "carried": lines, "former": run ids}`, without what is not known.

        A note that is damaged says nothing: the journal is carried again to the run that it was
        carried to, which the store has under the same name and time."""
        note = read_note(self.note)
        sound = {key: note[key] for key, kind in NOTE.items() if isinstance(note.get(key), kind)}
        # Without its run, what was carried is unknown.
        return sound if "run_id" in sound else {key: sound[key] for key in sound if key == "former"}

    def write_note(self, **facts: Any) -> None:
        """Add to what is noted, or change it; None takes a fact away."""
        note = {**self.noted(), **facts}
        kept = {key: value for key, value in note.items() if value is not None}
        part = self.note.with_suffix(".part")
        part.write_text(json.dumps(kept))
        os.replace(part, self.note)


def read_note(path: Path) -> dict[str, Any]:
    """What is written in a note; nothing where it is missing or damaged."""
    try:
        note = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _read_entry(line: bytes) -> Entry | None:
    try:
        entry = json.loads(line)
    except ValueError:  # damaged JSON, or damaged UTF-8
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("time"), int):
        return None
    content = CONTENT.get(str(entry.get("kind")))
    if content is None:
        return None
    sound = all(isinstance(entry.get(key), kind) for key, kind in content.items())
    return entry if sound else None
