"""Whose labels are believed: those that agree best with heads, and of every class some.

Where every client holds a few classes, the best clients hold a few of all, and heads that have
learned from these alone take every sample of another class for a mistake. Then the next best that
hold what is missing are believed as well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from rayfl.arrays import Floats
from rayfl.audit.plan import AuditPlan
from rayfl.audit.transitions import measure_rate
from rayfl.protocol import ClientId

LEAST_RATE = 0.01
"""Rate below which a rate's standard error is not believed."""
MISSING = 0.5
"""Part of what they hold of all samples below which chosen clients lack a class."""
HOLDS = 0.5
"""Part of an average client's samples of a class from which on a client holds it."""

Held = Mapping[ClientId, Sequence[float]]


def choose_trusted(
    disagreement: Mapping[ClientId, float], held: Held, plan: AuditPlan
) -> list[ClientId]:
    """Those that agree best, until they hold enough samples, and whoever is about as good as the
    best of them.

    Parameters
    ----------
    disagreement
        Share of a client's labels that heads contradict.
    held
        As for `cover_classes`.
    plan
        The settings."""
    order = sorted(disagreement, key=lambda client: (disagreement[client], client))
    wanted = plan.trusted * sum(sum(each) for each in held.values())
    best = disagreement[order[0]]
    taken = 0.0
    chosen = []
    for client in order:
        if taken >= wanted and disagreement[client] > best + plan.slack:
            break
        chosen.append(client)
        taken += sum(held[client])
    return sorted(cover_classes(chosen, order, held, plan.trusted))


def choose_best(counts: Mapping[ClientId, Floats], least: float, errors: float) -> list[ClientId]:
    """The clients whose labels look best: the first ones until they hold enough samples, and
    whoever cannot be told from the very best.

    Parameters
    ----------
    counts
        How often each class was written as each label, by client.
    least
        Share of all samples that they hold at least.
    errors
        Standard errors of the best rate within which another is no worse."""
    rates = {client: measure_rate(found) for client, found in counts.items()}
    order = sorted(rates, key=lambda client: (rates[client], client))
    first = rates[order[0]]
    believed = max(first, LEAST_RATE)
    error = np.sqrt(believed * (1.0 - believed) / max(counts[order[0]].sum(), 1.0))
    wanted = least * sum(found.sum() for found in counts.values())
    taken = 0.0
    best = []
    for client in order:
        if taken >= wanted and rates[client] > first + errors * error:
            break
        best.append(client)
        taken += counts[client].sum()
    held = {client: each.sum(axis=0).tolist() for client, each in counts.items()}
    return cover_classes(best, order, held, least)


def cover_classes(
    chosen: Sequence[ClientId], order: Sequence[ClientId], held: Held, share: float
) -> list[ClientId]:
    """Chosen clients, and the next best that hold the classes which these lack.

    Parameters
    ----------
    chosen
        Clients.
    order
        All clients, the best first.
    held
        Samples that each client gave each label.
    share
        Part of all samples that chosen clients hold at least."""
    counts = {client: np.asarray(each, dtype=np.float64) for client, each in held.items()}
    total = np.sum([*counts.values()], axis=0)
    wanted, usual = MISSING * share * total, total / len(counts)
    covering = list(chosen)
    for label in range(len(total)):
        for client in order:
            if sum(counts[each][label] for each in covering) >= wanted[label]:
                break
            if client not in covering and counts[client][label] >= HOLDS * usual[label]:
                covering.append(client)
    return covering
