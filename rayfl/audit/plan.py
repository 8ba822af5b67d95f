"""The settings of an audit. Those that decide who is suspected were chosen on other data and other
seeds than docs/audit.md measures on, and stay as they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from rayfl.component import Count, Fraction, Natural, NonNegative, Registry, component, slot
from rayfl.models import ENCODERS
from rayfl.models.encoders.base import EncoderSpec
from rayfl.models.encoders.hog import HoG
from rayfl.protocol import Algorithm

ENCODED = "audit"
"""What the encoder's features are called among a client's."""


@component
class AuditPlan(Algorithm):
    """How an audit is carried out."""

    encoder: Annotated[EncoderSpec, slot(ENCODERS)] = HoG(cell=4)
    """Whose features the heads read."""
    folds: Count = 5
    """Parts of every client's samples; each is judged by a head that was trained on the others."""
    axes: Count = 256
    """Main axes of the features that heads see."""
    ridge: NonNegative = 0.1
    """Mean variances that are added to an axis's own before axes are evened out."""
    decay: NonNegative = 0.01
    """Strength of the heads' ridge."""
    warmup: Count = 40
    """Steps on all clients, which all count the same."""
    trusting: Count = 30
    """Steps on trusted clients, each time that they are chosen."""
    choices: Natural = 2
    """How often trusted clients are chosen."""
    trusted: Fraction = 0.4
    """Share of all samples that trusted clients hold at least."""
    slack: NonNegative = 0.05
    """Whoever disagrees by no more than this above the best is trusted as well."""
    turns: Count = 5
    """How often clients' mistakes are counted anew."""
    steps: Count = 8
    """Steps on all clients, knowing their mistakes, after each count."""
    strength: NonNegative = 10.0
    """Samples of a class that the federation's ways to go wrong count in a client's matrix."""
    best: Fraction = 0.05
    """Share of all samples, of the clients whose labels look best, that heads' own mistakes are
    measured on at least."""
    alike: NonNegative = 0.5
    """Standard errors of the best client's rate within which another's is as good."""
    supposed: Fraction = 0.02
    """Rate of wrong labels that the best clients have at most where it is measured how sure heads
    may be."""
    doubtful: tuple[Fraction, Fraction] = (0.05, 0.15)
    """Rates of these clients between which what is wrong with them ceases to be the heads' own."""
    spread: NonNegative = 0.01
    """Standard deviation of what heads get wrong of all samples of a client alike, at least; more
    where they have learned from few."""
    neighbours: Count = 10
    """Nearest samples that are asked."""
    peers: Natural = 10
    """Most clients whose heads vote on a client's samples."""
    span_axes: Count = 32
    """Axes on which classes span their subspaces."""
    span: Count = 8
    """Directions of a class's subspace."""

    def encoders(self) -> Mapping[str, Any]:
        """The one encoder."""
        return {ENCODED: self.encoder}


AUDITS: Registry[AuditPlan] = Registry("audit", {"audit": "rayfl.audit.plan:AuditPlan"})
