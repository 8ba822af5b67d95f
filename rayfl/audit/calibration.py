"""How sure heads may be, and what they get wrong themselves: both from the clients whose labels
look best; and how far a figure is off because heads have learned from few.

Nobody can tell a head's own mistakes from wrong labels that everybody has. Where the best clients
look almost clean, what is left of them is taken for the heads' own; the worse the best ones look,
the less of it, and from some rate on nothing."""

from __future__ import annotations

import math

import numpy as np

from rayfl.arrays import Floats
from rayfl.audit.transitions import Edges, shrink_transition

CONFIDENCES: tuple[float, ...] = tuple(np.geomspace(0.5, 4.0, 26).tolist())
"""How much surer heads may be than they say, on the best clients' labels."""
USUAL_DOUBT = 0.1
"""Of heads that have learned from enough samples."""
ENOUGH = 100.0
"""Samples of a class below which doubt is put down to their number alone."""
LEARNING = 1.2
"""How much of their doubt heads of one sample a class would get wrong of all samples alike;
measured on federations of 200 to 2,000 images, of the rows and seeds that all settings are from."""


def fade(rate: float, edges: Edges) -> float:
    """1 where the best clients look almost clean, 0 where they do not, and a line between.

    Parameters
    ----------
    rate
        Of wrong labels among the best clients' labels, as heads see them.
    edges
        Where the line begins and ends."""
    low, high = edges
    return float(np.clip((high - rate) / (high - low), 0.0, 1.0))


def widen_edges(edges: Edges, doubt: float, per_class: float) -> Edges:
    """Heads that are unsure because they have learned from few samples find fault with clean
    labels, too: then more counts as almost clean.

    Parameters
    ----------
    edges
        For heads that have learned from enough.
    doubt
        Mean chance that heads are wrong, as they say.
    per_class
        Samples of a class that they have learned from."""
    fewness = min(1.0, ENOUGH / max(per_class, 1.0))
    scale = 1.0 + fewness * max(0.0, doubt / USUAL_DOUBT - 1.0)
    return edges[0] * scale, edges[1] * scale


def widen_spread(spread: float, doubt: float, per_class: float) -> float:
    """What heads get wrong of all samples alike: had they learned from other samples, they would
    say something else, and of few samples more so.

    Parameters
    ----------
    spread
        For heads that have learned from enough.
    doubt, per_class
        As for `widen_edges`."""
    return max(spread, LEARNING * doubt / math.sqrt(max(per_class, 1.0)))


def find_floor(counts: Floats, pattern: Floats, strength: float, taken: float) -> Floats:
    """M, what heads get wrong themselves: a part of what they find wrong with the best clients.

    Parameters
    ----------
    counts
        Of the best clients, (classes, classes).
    pattern, strength
        As for `shrink_transition`.
    taken
        The part, from `fade`.
    """
    away = taken * shrink_transition(counts, pattern, strength) * (1.0 - np.eye(len(counts)))
    return np.asarray(away + np.diag(1.0 - away.sum(axis=1)))
