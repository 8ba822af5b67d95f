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

ById = Mapping[ClientId, float]
Held = Mapping[ClientId, Sequence[float]]


def choose_trusted(disagreement: ById, held: Held, plan: AuditPlan) -> list[ClientId]:
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
    sizes = {client: float(sum(each)) for client, each in held.items()}
    order = sort_clients(disagreement)
    most = disagreement[order[0]] + plan.slack
    chosen = take_first(order, disagreement, sizes, plan.trusted, most)
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
    sizes = {client: float(found.sum()) for client, found in counts.items()}
    order = sort_clients(rates)
    first = rates[order[0]]
    believed = max(first, LEAST_RATE)
    error = np.sqrt(believed * (1.0 - believed) / max(sizes[order[0]], 1.0))
    best = take_first(order, rates, sizes, least, first + errors * error)
    held = {client: each.sum(axis=0).tolist() for client, each in counts.items()}
    return cover_classes(best, order, held, least)


def sort_clients(scores: ById) -> list[ClientId]:
    """The lowest first, and of equals the one with the lower number."""
    return sorted(scores, key=lambda client: (scores[client], client))


def take_first(
    order: Sequence[ClientId], scores: ById, sizes: ById, share: float, most: float
) -> list[ClientId]:
    """The first clients until they hold enough samples, and whoever follows with a score of `most`
    or less.

    Parameters
    ----------
    order
        All clients, the lowest score first.
    scores, sizes
        By client.
    share
        Part of all samples that is enough.
    most
        Score up to which a client is as good as the first."""
    wanted = share * sum(sizes.values())
    taken = 0.0
    chosen = []
    for client in order:
        if taken >= wanted and scores[client] > most:
            break
        chosen.append(client)
        taken += sizes[client]
    return chosen


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
