"""Bernoulli x Dirichlet: which classes a client may hold, then how much of each (Xu et al. 2022,
FedCorr, Sec. 4.1)."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.random import Generator
from pydantic import Field

from rayfl.component import Natural, Positive, component
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Bools, Ints
from rayfl.federation.interfaces import Assignment, Pool
from rayfl.federation.partition.dealing import (
    MOST_DRAWS,
    count_classes,
    deal_counts,
    redraw_until,
)


@component
class BernoulliDirichlet:
    """Client k may hold class c with probability `phi`; a sample of c falls to each of its holders
    independently, with probabilities ~ Dirichlet(alpha). A holder may still receive nothing of a
    class."""

    phi: Annotated[float, Field(gt=0, le=1)] = 0.7
    alpha: Positive = 5.0
    min_size: Natural = 1

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        sizes = count_classes(pool)

        def draw() -> Ints:
            holds = draw_holders(pool.clients, pool.classes, self.phi, rng)
            # Independent draws for each sample, then a random deal, are multinomial counts, then
            # the same deal.
            counts = []
            for mine, size in zip(holds.T, sizes, strict=True):
                counts.append(share_class(mine, self.alpha, size, rng))
            return np.stack(counts)

        counts = redraw_until(draw, pool, self.min_size)
        return Assignment(deal_counts(pool, counts, rng))


def draw_holders(
    clients: int,
    classes: int,
    phi: float,
    rng: Generator,
) -> Bools:
    """A table (clients, classes) of Bernoulli(phi) draws without an empty row or column: those are
    drawn again.

    Parameters
    ----------
    clients, classes
        The size of the table.
    phi
        The probability of a mark.
    rng
        Draws the marks.
    """
    holds = rng.random((clients, classes)) < phi
    for _ in range(MOST_DRAWS):
        rows = ~holds.any(axis=1)
        columns = ~holds.any(axis=0)
        if not (rows.any() or columns.any()):
            return holds
        holds[rows] = rng.random((int(rows.sum()), classes)) < phi
        # Few clients may leave a class without a holder: its samples would be lost.
        holds[:, columns] = rng.random((clients, int(columns.sum()))) < phi
    rule = (
        f"partition.phi: {clients} clients each hold one of {classes} classes, "
        "and each class has a client"
    )
    raise ConfigError(
        broken(rule, f"none such in {MOST_DRAWS} draws with phi = {phi}", "Raise phi")
    )


def share_class(
    mine: Bools,
    alpha: float,
    size: int,
    rng: Generator,
) -> Ints:
    """How many of a class's samples each client draws.

    Parameters
    ----------
    mine
        Marks the clients that may hold the class.
    alpha
        Of the Dirichlet distribution over them.
    size
        How many samples the class has.
    rng
        Draws shares, then counts.
    """
    counts = np.zeros(len(mine), np.int64)
    holders = int(mine.sum())
    shares = rng.dirichlet(np.full(holders, alpha))
    # The others' probability is exactly 0, which a Dirichlet cannot express.
    counts[mine] = rng.multinomial(size, shares)
    return counts
