"""Where the figures of a report come from: versions, machines, dates, hashes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rayfl.run.store import Record
from rayfl.study.result import CellResult, StudyResult
from rayfl.version import __version__

TAGS = ("rayfl", "git", "machine", "python", "numpy", "torch")


def began(record: Record) -> dict[str, Any]:
    """A run's first words to the tracking store: its tags and the time, where they are known."""
    journal = record.directory / "journal.jsonl"
    if journal.exists():
        with journal.open(encoding="utf-8") as lines:
            for line in lines:
                entry = json.loads(line)
                if entry["kind"] == "start":
                    return dict(entry)
    facts = json.loads((record.directory / "run.json").read_text())
    return {
        "tags": {"rayfl": facts.get("rayfl", ""), **facts.get("tags", {})},
        "time": facts.get("time"),
    }


def runs_of(result: StudyResult) -> Iterator[tuple[CellResult, int, Record]]:
    """Every run with its cell and seed."""
    for cell in result.cells:
        for seed, record in sorted(cell.records.items()):
            yield cell, seed, record


def facts(result: StudyResult) -> dict[str, str]:
    """What is true of the report as a whole; where runs differ, all that occurs."""
    starts = [began(record) for _, _, record in runs_of(result)]
    found = {"runs": str(len(starts)), "seeds": ", ".join(map(str, seeds_run(result))) or "none"}
    for tag in TAGS:
        values = sorted({str(start["tags"][tag]) for start in starts if start["tags"].get(tag)})
        if values:
            found[tag] = "; ".join(values)
    days = sorted(day(start["time"]) for start in starts if start.get("time"))
    if days:
        found["run between"] = days[0] if days[0] == days[-1] else f"{days[0]} and {days[-1]}"
    return {**found, "report written": f"{day(time.time() * 1000)}, by rayfl {__version__}"}


def seeds_run(result: StudyResult) -> list[int]:
    return sorted({seed for _, seed, _ in runs_of(result)})


def day(milliseconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(milliseconds / 1000))


def hashes(result: StudyResult) -> list[Mapping[str, str]]:
    """One row a run: which directory it has, and the hashes that make it the same run elsewhere."""
    return [
        {
            "cell": ", ".join(cell.titles.values()),
            "seed": str(seed),
            "run": record.directory.name,
            "rounds": str(record.rounds),
            "configuration": record.digest[:16],
            "scenario": record.scenario[:16],
            "model": record.sha256[:16],
        }
        for cell, seed, record in runs_of(result)
    ]
