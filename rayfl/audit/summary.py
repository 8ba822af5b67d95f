"""An audit on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rayfl.audit.findings import ClientFinding, Findings
from rayfl.audit.subject import Subject
from rayfl.audit.wording import format_bytes, name_worst

MOST_CLIENTS = 30
"""More clients than this are told by the best and the worst."""
MOST_SAMPLES = 8


def summarise(findings: Findings, subject: Subject, samples: bool = True) -> Iterator[str]:
    """Line by line: the federation, its clients, the worst labels, what would have been sent.

    Parameters
    ----------
    samples
        Whether single samples are told."""
    share = findings.share
    yield (
        f"wrong labels: {share.value:.1%} ({share.low:.1%} to {share.high:.1%}) of "
        f"{len(findings.samples):,} at {len(findings.clients)} clients"
    )
    yield ""
    yield from _list_clients(findings)
    if samples:
        yield from _list_samples(findings, subject)
    for note in findings.notes:
        yield f"! {note}"
    for client in findings.clients:
        for note in client.notes:
            yield f"! {client.name}: {note}"
    up = sum(sent.up for sent in findings.sent)
    yield f"a real federation would have sent {format_bytes(up)} up, and no image"


def _list_clients(findings: Findings) -> Iterator[str]:
    order = sorted(findings.clients, key=lambda client: -client.share.value)
    width = max(len("client"), *(len(client.name) for client in order))
    yield f"{'client':{width}}  samples  wrong labels (90 %)     trust  verdict       worst labels"
    middle = len(order) > MOST_CLIENTS
    half = MOST_CLIENTS // 2
    for client in order[:half] if middle else order:
        yield _format_client(client, width)
    if middle:
        yield f"... {len(order) - MOST_CLIENTS} more in clients.csv ..."
        for client in order[-half:]:
            yield _format_client(client, width)
    yield ""


def _format_client(client: ClientFinding, width: int) -> str:
    value, low, high = client.share
    interval = f"{value:6.1%} ({low:.1%} to {high:.1%})"
    return (
        f"{client.name:{width}}  {client.samples:7,}  {interval:22}  "
        f"{client.trust.value:5.2f}  {client.verdict:12}  {name_worst(client)}"
    ).rstrip()


def _list_samples(findings: Findings, subject: Subject) -> Iterator[str]:
    samples = findings.samples
    worst = samples.worst(MOST_SAMPLES)
    flagged = int(samples.flagged.sum())
    yield f"{flagged:,} labels are flagged{', the worst of them:' if flagged else ''}"
    files = subject.name_files(samples.rows[worst])
    for place, name in zip(worst.tolist(), files, strict=True):
        given = findings.classes[int(samples.given[place])]
        suggested = findings.classes[int(samples.suggested[place])]
        site = subject.client_names[int(samples.clients[place])]
        yield f"  {name} ({site}): {given} -> {suggested}, score {samples.score[place]:.3f}"
    yield ""
