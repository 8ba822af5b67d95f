"""What an audit finds: of samples, of clients, of the federation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rayfl.arrays import Bools, Floats, Ints
from rayfl.audit.course import Sent
from rayfl.audit.shares import Share

OPINIONS = ("heads", "losses", "confident", "neighbours", "subspaces", "votes")
"""Single estimators of a sample, in the order of their columns."""


@dataclass(frozen=True)
class SampleFindings:
    """One entry a sample of every client, by client and then by row.

    Attributes
    ----------
    rows
        Rows of the dataset's training set.
    clients
        Who holds them.
    given, suggested
        The label as it was written, and the likeliest one.
    score
        Chance that the given label is right: low is suspicious.
    flagged
        Whether the label is probably wrong.
    disputed
        Whether most single estimators say otherwise.
    opinions
        What these say, (samples, estimators) in the order of `OPINIONS`.
    """

    rows: Ints
    clients: Ints
    given: Ints
    suggested: Ints
    score: Floats
    flagged: Bools
    disputed: Bools
    opinions: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.rows)

    def worst(self, most: int) -> Ints:
        """Positions of the most suspicious samples, the worst first."""
        order = np.argsort(self.score, kind="stable")
        return np.asarray(order[self.flagged[order]][:most])


@dataclass(frozen=True)
class ClientFinding:
    """One client.

    Attributes
    ----------
    share
        Of wrong labels among its samples, with a 90 % interval.
    trust
        1 where all labels are right, 0 where they are no better than drawn at random.
    verdict
        `clean`, `unsure` or `wrong labels`.
    transition
        Chance that a sample of a class (row) was written as another (column).
    worst
        Names of the classes whose labels are worst, with their share of wrong ones.
    evidence
        What single estimators say, by name.
    notes
        What makes the figures unsure, a sentence each.
    """

    client: int
    name: str
    samples: int
    share: Share
    trust: Share
    verdict: str
    transition: Floats
    worst: Sequence[tuple[str, float]]
    evidence: Mapping[str, float]
    notes: Sequence[str] = ()

    @property
    def accused(self) -> bool:
        """Whether wrong labels are beyond doubt."""
        return self.verdict == WRONG


CLEAN, UNSURE, WRONG = "clean", "unsure", "wrong labels"


@dataclass(frozen=True)
class ClassPair:
    """A class, another, and a figure about both."""

    one: str
    other: str
    value: float


@dataclass(frozen=True)
class Twins:
    """Two samples that look alike."""

    row: int
    client: int
    other_row: int
    other_client: int
    bits: int
    same_label: bool


@dataclass(frozen=True)
class Findings:
    """All that an audit finds.

    Attributes
    ----------
    share
        Of wrong labels in the federation.
    rates
        For pairs of classes, how many of all samples were probably written as the second one and
        are of the first; the most frequent first.
    ambiguous
        For pairs of classes, how often heads hesitate between the two.
    agreements
        Rank correlation of each single estimator with the joined figure, over clients.
    """

    classes: Sequence[str]
    clients: Sequence[ClientFinding]
    samples: SampleFindings
    share: Share
    rates: Sequence[ClassPair]
    ambiguous: Sequence[ClassPair]
    twins: Sequence[Twins]
    agreements: Mapping[str, float]
    sent: Sequence[Sent]
    notes: Sequence[str] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    def of(self, client: int) -> ClientFinding:
        """The finding of one client."""
        return next(found for found in self.clients if found.client == client)
