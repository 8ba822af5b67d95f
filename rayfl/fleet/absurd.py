"""Updates that are finite but absurd: so large that they are no client's honest work.

An update's norm is here its largest absolute value, which comes with every report. It is exact
wherever it is found, in any order and on any processor, and it grows with a scaled update as the
Euclidean one does; one absurd element among millions shows in it, and not in that one."""

from __future__ import annotations

import logging
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping

import numpy as np

from rayfl.fleet.executor import Done
from rayfl.fleet.safeguards import Safeguards
from rayfl.protocol import ClientId

log = logging.getLogger("rayfl")

LARGEST = float(np.finfo(np.float32).max)

Norms = Mapping[str, float]
"""Of the vectors of one update, by name."""


def find_absurd(outcomes: Iterable[Done], multiple: float) -> dict[ClientId, Norms]:
    """The clients whose updates are absurd, and how large each of their vectors may be at most.

    It may be `multiple` times the median norm of the map (of two, the lower one), and as large as
    so many could be added up in float32. Where the median is zero, only the latter counts."""
    by_name: dict[str, dict[ClientId, float]] = defaultdict(dict)
    for done in outcomes:
        if done.finite and done.client >= 0:
            for name, peak in done.peaks.items():
                by_name[name][done.client] = peak
    found: dict[ClientId, dict[str, float]] = {}
    for name, peaks in by_name.items():
        for client, most in _find_largest(peaks, multiple).items():
            found.setdefault(client, {})[name] = most
    return dict(found)


def _find_largest(peaks: Mapping[ClientId, float], multiple: float) -> dict[ClientId, float]:
    """The clients beyond the limit, and the limit."""
    norms = peaks.values()
    sum_limit = LARGEST / len(peaks)
    largest = max(norms)
    # Nearly always all are alike, which takes no sorting to see.
    if largest <= sum_limit and largest <= multiple * min(norms):
        return {}
    median = statistics.median_low(norms)
    most = min(multiple * median, sum_limit) if median else sum_limit
    return {client: most for client, peak in peaks.items() if peak > most}


def say_absurd(
    t: int, absurd: Mapping[ClientId, Norms], done: Mapping[ClientId, Done], rules: Safeguards
) -> None:
    """Name every absurd vector."""
    for client, limits in sorted(absurd.items()):
        for name, most in limits.items():
            log.warning(
                "round %d: the update '%s' of client %d is absurd: its largest value is %.3g, and "
                "%.3g is the most beside those of its cohort (safety.norm_multiple; "
                "safety.absurd: %s)",
                t,
                name,
                client,
                done[client].peaks[name],
                most,
                rules.absurd,
            )


def clip_norms(done: Done, most: Norms) -> Done:
    """The outcome of an update that is clipped."""
    return done._replace(peaks={**done.peaks, **most})
