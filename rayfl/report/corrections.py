"""What corrected labels changed: runs on the labels of a table, each beside the run that differs
from it in nothing but them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rayfl.config.schema import PLACE
from rayfl.report.material import iterate_records
from rayfl.run.client_table import CHANGED, WRONG, ClientRow, read_clients
from rayfl.run.store import Record
from rayfl.study.result import StudyResult

METRIC = "test/accuracy"
NOTHING = "-"
UNKNOWN_TRUTH = (
    "Nobody knows the true labels of these data: accuracy is agreement with the labels that test "
    "images were given."
)


@dataclass(frozen=True)
class CorrectedRun:
    """A run on the labels of a table.

    Attributes
    ----------
    title
        What the run is, in the words of the report.
    before
        The run on the given labels; None where there is none.
    """

    title: str
    seed: int
    run: Record
    before: Record | None

    @property
    def gain(self) -> float:
        """Accuracy on the table's labels minus that on the given ones; nan without the latter."""
        return math.nan if self.before is None else _score(self.run) - _score(self.before)

    @property
    def knows_truth(self) -> bool:
        """Whether clients' wrong labels are known."""
        return any(WRONG in row for row in _list_clients(self.run))


def find_corrections(result: StudyResult) -> list[CorrectedRun]:
    """All runs on the labels of a table, in the order of the report."""
    given = {}
    for _, _, record in iterate_records(result):
        if not isinstance(record.config.get("labels"), Mapping):
            given[_identify(record, record.config.get("labels"))] = record
    found = []
    for title, seed, record in iterate_records(result):
        labels = record.config.get("labels")
        if isinstance(labels, Mapping):
            before = given.get(_identify(record, labels["over"]))
            found.append(CorrectedRun(title, seed, record, before))
    return found


def _identify(record: Record, labels: Any) -> str:
    """All that decides a run, with these labels in place of its own."""
    decisive = {key: value for key, value in record.config.items() if key not in PLACE}
    return repr(sorted({**decisive, "labels": labels}.items()))


def list_corrections(found: list[CorrectedRun]) -> list[dict[str, str]]:
    """A row a run: its labels, what they changed, and its accuracy beside that on given labels."""
    return [
        {
            "run": each.title,
            "seed": str(each.seed),
            "labels of": str(each.run.config["labels"]["table"]),
            "changed labels": _tell_share(_join(each.run, CHANGED)),
            "wrong before": _tell_share(_join(each.before, WRONG)),
            "wrong after": _tell_share(_join(each.run, WRONG)),
            "accuracy on given": _tell_share(_score(each.before)),
            "on corrected": _tell_share(_score(each.run)),
            "difference": _tell_points(each.gain),
        }
        for each in found
    ]


def list_client_corrections(found: list[CorrectedRun]) -> list[dict[str, str]]:
    """A row a client of every such run, the most changed first."""
    rows = []
    for each in found:
        names = each.run.facts.get("client_names")
        before = {row["client"]: row for row in _list_clients(each.before)}
        changed = [row for row in _list_clients(each.run) if row.get(CHANGED) is not None]
        for row in sorted(changed, key=lambda row: -row[CHANGED]):
            client = row["client"]
            rows.append(
                {
                    "client": str(client if names is None else names[client]),
                    "run": each.title,
                    "seed": str(each.seed),
                    "samples": f"{row['samples']:,}",
                    "changed labels": _tell_share(row[CHANGED]),
                    "wrong before": _tell_share(before.get(client, {}).get(WRONG)),
                    "wrong after": _tell_share(row.get(WRONG)),
                }
            )
    return rows


def explain_corrections(found: list[CorrectedRun]) -> list[str]:
    """What a reader of these tables must know."""
    alone = sorted({each.title for each in found if each.before is None})
    notes = []
    if alone:
        named = "; ".join(alone)
        notes.append(
            f"Without a run on the given labels to compare with: {named}. Run the same "
            "configuration without labels=."
        )
    if not all(each.knows_truth for each in found):
        notes.append(UNKNOWN_TRUTH)
    return notes


# -- what runs have left ---------------------------------------------------------------------------


def _list_clients(record: Record | None) -> list[ClientRow]:
    return [] if record is None else read_clients(record.directory) or []


def _join(record: Record | None, column: str) -> float | None:
    """A share of clients as that of all their samples; None where it is not known."""
    rows = [row for row in _list_clients(record) if row.get(column) is not None]
    samples = sum(row["samples"] for row in rows)
    return sum(row["samples"] * row[column] for row in rows) / samples if samples else None


def _score(record: Record | None) -> float:
    return math.nan if record is None else record.score(METRIC)


def _tell_share(share: float | None) -> str:
    return NOTHING if share is None or math.isnan(share) else f"{share:.1%}"


def _tell_points(difference: float) -> str:
    return NOTHING if math.isnan(difference) else f"{100 * difference:+.1f} points"
