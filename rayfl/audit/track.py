"""An audit in MLflow: a run of its own beside the runs of the same experiment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from rayfl.audit.findings import Findings
from rayfl.run.artifacts import track_run

if TYPE_CHECKING:
    from rayfl.audit.story import Audit

KIND = "audit"
TABLE_TAG = "mlflow.loggedArtifacts"
"""By it MLflow knows which artifacts are tables."""
TABLE = "clients.json"


def track_audit(made: Audit, directory: Path) -> None:
    """Log tables, figures and the page of an audit that lies in a directory."""
    config = made.subject.config
    tags = {
        **config.tracking.tags,
        "kind": KIND,
        TABLE_TAG: json.dumps([{"path": TABLE, "type": "table"}]),
    }
    named = config.tracking.model_copy(update={"tags": tags, "run_name": f"audit {directory.name}"})
    own = config.model_copy(update={"tracking": named})
    subject = made.subject
    with track_run(own, directory, subject.scenario, subject.dataset.shape) as tracker:
        tracker.metrics(1, list_metrics(made.findings))
        for name in (TABLE, "clients.csv", "index.html"):
            tracker.artifact(directory / name)
        for figure in sorted((directory / "figures").glob("*.png")):
            tracker.artifact(figure, "figures")


def list_metrics(findings: Findings) -> dict[str, float]:
    """Figures of the federation and of every client, by name."""
    found = {
        "audit/wrong_share": findings.share.value,
        "audit/flagged": float(findings.samples.flagged.mean()),
        "audit/accused": float(sum(client.accused for client in findings.clients)),
    }
    for client in findings.clients:
        found[f"audit/wrong_share/{client.client}"] = client.share.value
    return found
