"""Tables of an audit: samples, suspects, clients, corrected labels. As columns, which CSV, Parquet
and MLflow all take."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rayfl.arrays import Ints
from rayfl.audit.findings import OPINIONS, ClientFinding, Findings
from rayfl.audit.subject import Subject

Columns = Mapping[str, Sequence[Any]]

DIGITS = 4
"""Digits of a score in a table."""


def list_samples(findings: Findings, subject: Subject, places: Ints) -> dict[str, list[Any]]:
    """One row a sample, in cleanlab's form: score in [0, 1] (low is suspicious), flag, given and
    suggested label; and what single estimators say.

    Parameters
    ----------
    places
        Positions among the samples of the findings, in the order of the rows."""
    samples = findings.samples
    classes = np.array(findings.classes)
    names = subject.client_names
    opinions = samples.opinions[places].astype(np.float64).round(DIGITS)
    return {
        key_of(subject): name_rows(subject, samples.rows[places]),
        "site": [names[client] for client in samples.clients[places].tolist()],
        "score": samples.score[places].round(DIGITS).tolist(),
        "is_label_issue": samples.flagged[places].tolist(),
        "given_label": classes[samples.given[places]].tolist(),
        "suggested_label": classes[samples.suggested[places]].tolist(),
        "disputed": samples.disputed[places].tolist(),
        **{name: column.tolist() for name, column in zip(OPINIONS, opinions.T, strict=True)},
    }


def list_labels(findings: Findings, subject: Subject, places: Ints) -> dict[str, list[Any]]:
    """The label table that `labels=` reads: flagged samples have the suggested label, all others
    the one that was given."""
    samples = findings.samples
    classes = np.array(findings.classes)
    given = samples.given[places]
    label = np.where(samples.flagged[places], samples.suggested[places], given)
    return {
        key_of(subject): name_rows(subject, samples.rows[places]),
        "label": classes[label].tolist(),
        "given": classes[given].tolist(),
        "score": samples.score[places].round(DIGITS).tolist(),
    }


def key_of(subject: Subject) -> str:
    """What a sample is known by: its file, or its row where there are no files."""
    return "id" if subject.scenario.names is None else "file"


def name_rows(subject: Subject, rows: Ints) -> list[Any]:
    """Files, or rows as numbers."""
    if subject.scenario.names is None:
        return [int(row) for row in rows]
    return subject.name_files(rows)


def list_clients(findings: Findings) -> dict[str, list[Any]]:
    """One row a client."""
    rows = [describe_client(client, findings) for client in findings.clients]
    return {name: [row[name] for row in rows] for name in rows[0]}


def describe_client(client: ClientFinding, findings: Findings) -> dict[str, Any]:
    """A client's row."""
    mine = findings.samples.clients == client.client
    worst = "; ".join(f"{label} {rate:.0%}" for label, rate in client.worst)
    return {
        "client": client.client,
        "site": client.name,
        "samples": client.samples,
        "verdict": client.verdict,
        **_name_interval("trust", client.trust),
        **_name_interval("wrong_share", client.share),
        "flagged": int(findings.samples.flagged[mine].sum()),
        "worst_labels": worst,
        **{name: round(value, DIGITS) for name, value in client.evidence.items()},
        "notes": " ".join(client.notes),
    }


def _name_interval(name: str, interval: tuple[float, float, float]) -> dict[str, float]:
    value, low, high = (round(part, DIGITS) for part in interval)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def list_transitions(findings: Findings) -> dict[str, list[Any]]:
    """Every client's transition matrix, one row an entry."""
    rows: list[dict[str, Any]] = []
    for client in findings.clients:
        for true, entries in zip(findings.classes, client.transition.tolist(), strict=True):
            for written, chance in zip(findings.classes, entries, strict=True):
                row = {"site": client.name, "true": true, "written": written}
                rows.append({**row, "chance": round(chance, DIGITS)})
    return {name: [row[name] for row in rows] for name in rows[0]}


def write_csv(columns: Columns) -> str:
    """A table as CSV with a head."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return buffer.getvalue()


def write_mlflow(columns: Columns) -> dict[str, Any]:
    """A table in the form that MLflow shows as one."""
    rows = [list(row) for row in zip(*columns.values(), strict=True)]
    return {"columns": list(columns), "data": rows}
