"""Where the figures of a report come from: versions, machines, dates, hashes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rayfl.ledger.rows import Row
from rayfl.run.store import Record
from rayfl.study.result import CellResult, StudyResult
from rayfl.version import __version__

TAGS = ("rayfl", "git", "machine", "python", "numpy", "torch")
HASH_LETTERS = 16
"""Letters of a hash that tell runs apart."""


def collect_facts(result: StudyResult) -> dict[str, str]:
    """What is true of the report as a whole; where runs differ, all that occurs."""
    runs = list(_iterate_runs(result))
    starts = [_read_start(run) for _, _, run in runs]
    seeds = sorted({seed for _, seed, _ in runs})
    found = {
        "runs": str(len(runs)),
        "seeds": ", ".join(map(str, seeds)) or "none",
    }
    for tag in TAGS:
        values = {str(start["tags"][tag]) for start in starts if start["tags"].get(tag)}
        if values:
            found[tag] = "; ".join(sorted(values))
    days = sorted(_format_day(start["time"]) for start in starts if start.get("time"))
    if days:
        found["run between"] = days[0] if days[0] == days[-1] else f"{days[0]} and {days[-1]}"
    today = _format_day(time.time() * 1000)
    found["report written"] = f"{today}, by rayfl {__version__}"
    return found


def list_hashes(result: StudyResult) -> list[Mapping[str, str]]:
    """One row a run: which directory it has, and the hashes that make it the same run elsewhere."""
    return [
        {
            "cell": ", ".join(cell.titles.values()),
            "seed": str(seed),
            "run": run.directory.name if isinstance(run, Record) else "in the ledger",
            "rounds": str(run.rounds),
            "configuration": run.digest[:HASH_LETTERS],
            "scenario": run.scenario[:HASH_LETTERS],
            "model": (run.sha256 if isinstance(run, Record) else run.model)[:HASH_LETTERS],
        }
        for cell, seed, run in _iterate_runs(result)
    ]


def _iterate_runs(result: StudyResult) -> Iterator[tuple[CellResult, int, Record | Row]]:
    """Every run with its cell and seed."""
    for cell in result.cells:
        for seed, run in cell.made.items():
            yield cell, seed, run


def _read_start(run: Record | Row) -> dict[str, Any]:
    """A run's first words to the tracking store: its tags and the time, where they are known."""
    if isinstance(run, Row):
        return {"tags": {**run.environment, "git": run.environment.get("commit", "")}}
    return _read_first_words(run)


def _read_first_words(record: Record) -> dict[str, Any]:
    journal = record.directory / "journal.jsonl"
    if journal.exists():
        with journal.open(encoding="utf-8") as lines:
            for line in lines:
                entry = json.loads(line)
                if entry["kind"] == "start":
                    return dict(entry)
    # A run that was not tracked has the same facts beside it.
    facts = json.loads((record.directory / "run.json").read_text())
    tags = {
        "rayfl": facts.get("rayfl", ""),
        **facts.get("tags", {}),
    }
    return {"tags": tags, "time": facts.get("time")}


def _format_day(milliseconds: float) -> str:
    moment = time.gmtime(milliseconds / 1000)
    return time.strftime("%Y-%m-%d %H:%M UTC", moment)
