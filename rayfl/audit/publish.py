"""An audit on disk and in MLflow: tables, corrected labels, contact sheet, figures and the page."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import yaml

from rayfl.audit.contact_sheet import draw_contact_sheet
from rayfl.audit.figures import draw_figures
from rayfl.audit.page import PageContent, write_page
from rayfl.audit.tables import (
    Columns,
    list_clients,
    list_labels,
    list_samples,
    list_transitions,
    write_csv,
    write_mlflow,
)
from rayfl.durable import write_file
from rayfl.errors import StorageError, broken
from rayfl.federation.scenario_store import write_table
from rayfl.plots.style import render_png
from rayfl.report.material import make_slug
from rayfl.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rayfl.arrays import Ints
    from rayfl.audit.story import Audit

LOCAL = "clients"
"""The folder below which every client's own findings lie, with --local."""


def publish_audit(made: Audit, directory: Path, *, local: bool, images: bool, track: bool) -> None:
    """Write an audit.

    Parameters
    ----------
    directory
        Where it goes: new or empty, for nothing is overwritten.
    local
        Whether findings of samples stay in one folder a client.
    images
        Whether the page shows images.
    track
        Whether MLflow gets it, where the configuration tracks at all."""
    refuse_full(directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_settings(made, directory)
        figures = draw_figures(made.findings)
        _write_tables(made, directory, local)
        _write_figures(directory, figures)
        sheet = None if local else _write_sheet(made, directory)
        content = PageContent(
            findings=made.findings,
            subject=made.subject,
            figures=figures,
            facts=collect_facts(made),
            samples=not local,
            images=images and not local,
            sheet=sheet if images else None,
        )
        write_file(directory / "index.html", write_page(content))
    except OSError as error:
        rule = "an audit needs a writable folder"
        raise StorageError(broken(rule, f"{directory} ({error})")) from error
    if track and made.subject.config.tracking.enabled:
        from rayfl.audit.track import track_audit

        track_audit(made, directory)


def refuse_full(directory: Path) -> None:
    """Nothing that is there is overwritten."""
    if directory.exists() and any(directory.iterdir()):
        rule = "an audit is written to a new or empty folder"
        remedy = "Choose another with -o, or remove it first."
        raise StorageError(broken(rule, directory, remedy))


def _write_settings(made: Audit, directory: Path) -> None:
    """What was audited, and how."""
    resolved = yaml.safe_dump(made.subject.config.resolved(), sort_keys=False)
    write_file(directory / "config.yaml", resolved)
    facts = {"scenario": made.subject.scenario.sha256, "rayfl": __version__}
    write_file(directory / "audit.json", json.dumps({**facts, **collect_facts(made)}, indent=1))


def _write_tables(made: Audit, directory: Path, local: bool) -> None:
    findings = made.findings
    clients = list_clients(findings)
    write_both(directory / "clients", clients)
    write_both(directory / "transitions", list_transitions(findings))
    write_file(directory / "clients.json", json.dumps(write_mlflow(clients)))
    everything = np.arange(len(findings.samples))
    if not local:
        _write_samples(made, directory, everything)
        return
    for client in findings.clients:
        mine = everything[findings.samples.clients == client.client]
        name = f"{client.client}-{make_slug(client.name)}".rstrip("-")
        _write_samples(made, directory / LOCAL / name, mine)


def _write_samples(made: Audit, directory: Path, places: Ints) -> None:
    """All samples, those that are flagged, and the corrected labels."""
    directory.mkdir(parents=True, exist_ok=True)
    samples = made.findings.samples
    order = places[np.argsort(samples.score[places], kind="stable")]
    flagged = order[samples.flagged[order]]
    write_both(directory / "suspects", list_samples(made.findings, made.subject, flagged))
    columns = list_samples(made.findings, made.subject, places)
    write_table(directory / "samples.parquet", columns)
    write_both(directory / "labels", list_labels(made.findings, made.subject, places))


def write_both(stem: Path, columns: Columns) -> None:
    """One table as CSV and as Parquet."""
    write_file(stem.with_suffix(".csv"), write_csv(columns))
    write_table(stem.with_suffix(".parquet"), columns)


def _write_figures(directory: Path, figures: Mapping[str, Figure]) -> None:
    folder = directory / "figures"
    folder.mkdir()
    for name, figure in figures.items():
        (folder / f"{name}.png").write_bytes(render_png(figure))


def _write_sheet(made: Audit, directory: Path) -> bytes:
    subject = made.subject
    sheet = draw_contact_sheet(made.findings, subject.dataset, subject.client_names)
    (directory / "contact_sheet.png").write_bytes(sheet)
    return sheet


def collect_facts(made: Audit) -> dict[str, str]:
    """What an audit was made from."""
    subject, plan = made.subject, made.plan
    encoder = type(plan.encoder).__name__
    seconds = {name: f"{value:.1f} s" for name, value in made.findings.seconds.items()}
    return {
        "dataset": f"{subject.dataset.name}, sha256 {subject.dataset.sha256[:16]}",
        "scenario sha256": subject.scenario.sha256,
        "seed": str(subject.config.seed),
        "run": str(subject.run or "none: the configuration itself was audited"),
        "encoder": encoder,
        "folds": str(plan.folds),
        **{f"seconds of {name}": text for name, text in seconds.items()},
        "rayfl": __version__,
    }
