"""What an audit says in words: its estimators, its headlines, what would have been sent."""

from __future__ import annotations

from collections.abc import Mapping

from rayfl.audit.findings import ClientFinding, Findings

ESTIMATORS: Mapping[str, str] = {
    "disagreement": "share of labels that heads of trusted clients, which never saw the sample, "
    "contradict",
    "losses": "share in the upper of two groups of losses under these heads (FedRN, FedCorr)",
    "confident": "wrong share of the confident joint: where a class reaches its own threshold",
    "neighbours": "1 - the given label's share among the nearest samples of the same client",
    "subspaces": "1 - the given class's share of a sample's projections on classes' directions "
    "(FB-NLL)",
    "votes": "wrong share by Dawid and Skene's model of other clients' votes",
    "lid": "local intrinsic dimensionality of the heads' answers (FedCorr)",
    "expertise": "accuracy of the client's own head on its own labels (FedRN)",
    "reliability": "how reliable others find the client's own head (Dawid and Skene)",
}


LEAST_WORST = 0.05
"""Share of wrong labels from which on a class is named among a client's worst."""


def name_worst(client: ClientFinding) -> str:
    """A client's worst classes with their shares of wrong labels; nothing where all are right."""
    return ", ".join(f"{label} {rate:.0%}" for label, rate in client.worst if rate >= LEAST_WORST)


def list_headlines(findings: Findings) -> dict[str, str]:
    """The most important figures by what they are."""
    share = findings.share
    accused = sum(client.accused for client in findings.clients)
    flagged = float(findings.samples.flagged.mean())
    across = sum(twin.client != twin.other_client for twin in findings.twins)
    return {
        f"of labels are wrong ({share.low:.1%} to {share.high:.1%})": f"{share.value:.1%}",
        f"of {len(findings.clients)} clients have wrong labels beyond doubt": str(accused),
        "of labels are flagged": f"{flagged:.1%}",
        "near duplicates across sites": str(across),
    }


def describe_sending(findings: Findings, samples: bool) -> str:
    """Who would have learned what."""
    up = sum(sent.up for sent in findings.sent)
    clients = len(findings.clients)
    told = (
        f"In a real federation {clients} clients would have sent {format_bytes(up)} in all, and no "
        "image, no feature of an image and no label of one. "
    )
    if samples:
        return told + (
            "What is said of single samples would stay with their owners; this page joins it, "
            "because this is a simulation or because their owners agreed. With --local it does not."
        )
    return told + "What is said of single samples lies in one folder a client and is not joined."


def format_bytes(count: int) -> str:
    """Bytes as a person reads them."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
