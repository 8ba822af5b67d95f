"""The story of one audit: configuration, scenario, place, evidence, findings, files."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfl.audit.encoders import COLOURLESS, COLOURS, choose_encoder
from rayfl.audit.engine import AuditEngine
from rayfl.audit.findings import Findings
from rayfl.audit.own_network import LEARNED, OWN, OwnNetwork, describe_own
from rayfl.audit.plan import AUDITS, AuditPlan
from rayfl.audit.subject import Subject, open_subject
from rayfl.audit.verdict import weigh_evidence
from rayfl.config.schema import Config
from rayfl.federation.datasets import find_data_root
from rayfl.fleet.on_ray.connection import connect_ahead
from rayfl.models.encoders.base import EncoderSpec
from rayfl.models.encoders.hog import HoG
from rayfl.run.assembly import build_holdings
from rayfl.run.places import open_place
from rayfl.run.progress import Progress, Silent
from rayfl.run.signals import Stop, stop_on_signals


@dataclass(frozen=True)
class Audit:
    """A finished audit.

    Attributes
    ----------
    findings : Findings
        Of samples, clients and the federation.
    subject : Subject
        What was audited.
    plan : AuditPlan
        How.
    seconds : float
        From the configuration to the findings.
    directory : Path or None
        Where files about it lie, if any were written.
    """

    findings: Findings
    subject: Subject
    plan: AuditPlan
    seconds: float
    directory: Path | None = None


def audit(
    config: Config | Mapping[str, Any] | str | Path,
    *,
    plan: AuditPlan | Mapping[str, Any] | None = None,
    directory: Path | str | None = None,
    local: bool = False,
    images: bool = False,
    track: bool = True,
    address: str | None = None,
    progress: Progress | None = None,
    stop: Stop | None = None,
) -> Audit:
    """Say which clients and which labels of a federation are probably wrong.

    Nothing but features' moments, slopes of linear heads and figures about clients would leave a
    client in a real federation; the findings say how many bytes of each.

    Parameters
    ----------
    config : Config, mapping, str or Path
        A configuration, the plain values of one, or the directory of a run.
    plan : AuditPlan or mapping, optional
        Settings of the audit by name; by default the encoder is chosen by the images. The encoder
        `own` is the network that the audited run has left.
    directory : Path or str, optional
        Where tables, pages and figures go; without it none are written.
    local : bool
        Findings of samples go into one file a client, and only those of clients are joined.
    images : bool
        Whether the page and the contact sheet may show images.
    track : bool
        Whether MLflow gets tables and figures, where the configuration tracks at all.
    address : str, optional
        A Ray cluster, as for `rayfl.run`.
    progress : Progress, optional
        Told what is being done.
    stop : Stop, optional
        As for `rayfl.run`.

    Raises
    ------
    RayflError
        What a user can mend, in a sentence.
    """
    started = time.perf_counter()
    plain = _plain_fleet(config)
    with stop_on_signals(stop) as stop, connect_ahead(plain, address):
        subject = open_subject(config)
        chosen = make_plan(plan, subject)
        findings = _gather_findings(subject, chosen, not local, address, progress or Silent(), stop)
    seconds = time.perf_counter() - started
    made = Audit(findings, subject, chosen, seconds)
    if directory is None:
        return made
    from rayfl.audit.publish import publish_audit

    where = Path(directory).absolute()
    publish_audit(made, where, local=local, images=images, track=track)
    return Audit(findings, subject, chosen, seconds, where)


def make_plan(plan: AuditPlan | Mapping[str, Any] | None, subject: Subject) -> AuditPlan:
    """The settings of an audit, with an encoder that suits the images."""
    if isinstance(plan, AuditPlan):
        return plan
    settings = {"encoder": choose_encoder(subject.dataset.shape), **(plan or {})}
    if settings["encoder"] in (OWN, {"name": OWN}):
        settings["encoder"] = describe_own(subject)
    found: AuditPlan = AUDITS.build({"name": "audit", **settings})
    return found


def _plain_fleet(config: Config | Mapping[str, Any] | str | Path) -> Mapping[str, Any]:
    """What decides, before anything is validated, whether Ray is wanted."""
    if isinstance(config, Config):
        return {"fleet": config.fleet}
    if isinstance(config, Mapping):
        return config
    # A run's directory says it in a file that is read later.
    return {"fleet": "inline"}


def _gather_findings(
    subject: Subject,
    plan: AuditPlan,
    prints: bool,
    address: str | None,
    progress: Progress,
    stop: Stop,
) -> Findings:
    """Findings by evidence that is gathered wherever the configuration says."""
    config = subject.config.model_copy(update={"method": plan})
    dataset, scenario = subject.dataset, subject.scenario
    root = (config.data_root or find_data_root()) / "features"
    engine = AuditEngine(plan, scenario.dataset.sha256, dataset.shape, root, prints)
    holdings = build_holdings(config, dataset, scenario)

    def emit(record: Mapping[str, Any]) -> int:
        progress.note(record["note"])
        return 0

    try:
        with open_place(config, address, stop) as place:
            place.take_in(dataset, scenario, holdings)
            evidence = place.run(engine, emit)
    finally:
        progress.close()
    findings = weigh_evidence(evidence, scenario, subject.client_names)
    notes = [*findings.notes, *note_encoder(plan.encoder, dataset.shape)]
    return dataclasses.replace(findings, notes=notes)


def note_encoder(encoder: EncoderSpec, shape: tuple[int, int, int]) -> Iterator[str]:
    """What an encoder makes unsure."""
    if isinstance(encoder, OwnNetwork):
        yield LEARNED
    if isinstance(encoder, HoG) and shape[2] == COLOURS:
        yield COLOURLESS
