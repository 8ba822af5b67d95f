"""What makes an audit's figures unsure, in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rayfl.arrays import Floats
from rayfl.audit.course import Evidence
from rayfl.audit.shares import Share
from rayfl.protocol import ClientId

if TYPE_CHECKING:
    from rayfl.audit.findings import ClientFinding, Twins

FEW = 50
"""Samples below which a client is called small."""
APART = 0.2
"""Difference of shares from which estimators are said to disagree."""
SKEWED = 0.5
"""Distance of a client's classes from the federation's (half the summed differences of shares) from
which on its figures are called unsure."""
NOBODY_CLEAN = 0.15
"""Rate of the best client from which on nobody is called clean."""
SHARES = ("losses", "confident", "votes")
"""Estimators whose figures are shares of wrong labels, and may be held against the joined one."""


def list_client_notes(
    client: ClientId,
    evidence: Evidence,
    classes: Sequence[str],
    share: Share,
    single: Mapping[str, float],
) -> list[str]:
    """A sentence for everything that makes a client's figures unsure."""
    counts = {other: np.asarray(found, np.float64) for other, found in evidence.counts.items()}
    return [
        *_note_size(counts[client]),
        *_note_classes(client, counts, classes),
        *_note_disagreement(share, single),
    ]


def _note_size(counts: Floats) -> Iterator[str]:
    samples = int(counts.sum())
    if samples < FEW:
        yield f"It has {samples} samples: the interval is wide."


def _note_classes(
    client: ClientId, counts: Mapping[ClientId, Floats], classes: Sequence[str]
) -> Iterator[str]:
    own = counts[client]
    total = np.sum([*counts.values()], axis=0)
    others = total - own
    present = np.flatnonzero(own > 0)
    if len(present) == 1:
        label = classes[int(present[0])]
        yield f"All its labels are '{label}': which class is meant, only other sites tell."
    alone = [classes[label] for label in present.tolist() if not others[label]]
    if alone and len(counts) > 1:
        named = ", ".join(f"'{label}'" for label in alone)
        yield f"Nobody else has {named}: its labels of this class are judged by its own alone."
    distance = 0.5 * np.abs(own / max(own.sum(), 1) - total / max(total.sum(), 1)).sum()
    if len(present) > 1 and distance > SKEWED:
        yield (
            f"Its classes differ from the federation's (distance {distance:.2f} of 1): wrong "
            "labels and unusual classes look alike, so that its figures are unsure."
        )


def _note_disagreement(share: Share, single: Mapping[str, float]) -> Iterator[str]:
    apart = [name for name in SHARES if abs(single[name] - share.value) > APART]
    if apart:
        told = ", ".join(f"{name} {single[name]:.0%}" for name in apart)
        yield f"Estimators disagree: joined {share.value:.0%}, {told}."


def list_federation_notes(
    found: Sequence[ClientFinding],
    evidence: Evidence,
    classes: Sequence[str],
    twins: Sequence[Twins],
) -> list[str]:
    """What a reader must know before all figures."""
    return [
        *_note_best(found),
        *_note_majority(found),
        *_note_missing(evidence, classes),
        *_note_lonely(found),
        *_note_twins(twins),
    ]


def _note_best(found: Sequence[ClientFinding]) -> Iterator[str]:
    best = min(client.share.value for client in found)
    if best > NOBODY_CLEAN:
        yield (
            f"No client's labels look clean (the best has {best:.0%} wrong ones): nobody can be "
            "taken as a measure for the others, and mistakes that all make are not seen."
        )


def _note_majority(found: Sequence[ClientFinding]) -> Iterator[str]:
    samples = sum(client.samples for client in found)
    wrong = sum(client.samples * client.share.value for client in found)
    if wrong > samples / 2:
        yield (
            "More than half of all labels look wrong: if they go wrong the same way everywhere, "
            "right and wrong may have changed places."
        )


def _note_missing(evidence: Evidence, classes: Sequence[str]) -> Iterator[str]:
    total = np.sum([*evidence.counts.values()], axis=0)
    missing = [classes[label] for label in np.flatnonzero(np.asarray(total) == 0).tolist()]
    if missing:
        named = ", ".join(missing)
        yield f"Nobody has samples labelled {named}: these classes are never suggested."


def _note_lonely(found: Sequence[ClientFinding]) -> Iterator[str]:
    if len(found) == 1:
        yield "There is one client: nobody else can judge its labels."


def _note_twins(twins: Sequence[Twins]) -> Iterator[str]:
    within = [twin for twin in twins if twin.client == twin.other_client]
    across = [twin for twin in twins if twin.client != twin.other_client]
    if across:
        yield (
            f"Near duplicates at different clients: {_count_twins(across)}. Where labels differ, "
            "one of the two is wrong or the image shows both."
        )
    if within:
        yield (
            f"Near duplicates at one client: {_count_twins(within)}. Heads may have seen the twin "
            "of what they judge, so that a wrong label that both have can look right."
        )


def _count_twins(twins: Sequence[Twins]) -> str:
    """How many pairs, and of how many the labels differ."""
    differ = sum(not twin.same_label for twin in twins)
    noun = "pair" if len(twins) == 1 else "pairs"
    return f"{len(twins):,} {noun}, {differ:,} with different labels"
