"""Whole groups (patients, writers, sites) to one client each."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Annotated

import numpy as np
from numpy.random import Generator

from rayfl.component import component, slot
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.interfaces import UNUSED, Assignment, Partition, Pool
from rayfl.federation.partition import PARTITIONS


@component
class WholeGroups:
    """All samples of a group go to the same client.

    Without `over`, groups are shuffled and each goes to the client that is the smallest so far (the
    iid case). With it, that partition deals out the groups as if each were one sample of its most
    frequent class."""

    over: Annotated[Partition, slot(PARTITIONS)] | None = None

    def assign(self, pool: Pool, rng: Generator) -> Assignment:
        if pool.groups is None:
            rule = "partition 'groups' needs a dataset with group ids"
            raise ConfigError(broken(rule, "none", "Use another one"))
        # Ids may have gaps, ranks among them have none.
        ids, member = np.unique(pool.groups, return_inverse=True)
        if len(ids) < pool.clients:
            rule = f"{pool.clients} clients need as many groups"
            raise ConfigError(broken(rule, len(ids), "Ask for fewer clients"))
        if self.over is None:
            owner = give_to_smallest(np.bincount(member), pool.clients, rng)
            return Assignment(owner[member])
        units = replace(pool, labels=find_majorities(member, pool), groups=None)
        dealt = self.over.assign(units, rng)
        return replace(dealt, owner=dealt.owner[member])


def give_to_smallest(
    sizes: Ints,
    clients: int,
    rng: Generator,
) -> Ints:
    """The client of each group: in random order, always the one with the fewest samples.

    Parameters
    ----------
    sizes
        How many samples each group has.
    clients
        How many there are to give to.
    rng
        Shuffles the groups.
    """
    owner = np.full(len(sizes), UNUSED, np.int64)
    # Sorted already, hence a heap; ties go to the lowest id, so the result depends on rng alone.
    queue = [(0, client) for client in range(clients)]
    for group in rng.permutation(len(sizes)):
        held, client = queue[0]
        owner[group] = client
        grown = held + int(sizes[group])
        heapq.heapreplace(queue, (grown, client))
    return owner


def find_majorities(member: Ints, pool: Pool) -> Ints:
    """The most frequent class of each group; of equals, the lowest.

    Parameters
    ----------
    member
        The group of each sample, numbered without gaps.
    pool
        The samples.
    """
    pairs = member * pool.classes + pool.labels
    cells, counts = np.unique(pairs, return_counts=True)
    # The last writer of a group wins: its highest count, and of equals the lowest class.
    order = np.lexsort((-cells, counts))
    group, label = np.divmod(cells[order], pool.classes)
    majority = np.empty(int(member.max()) + 1, np.int64)
    majority[group] = label
    return majority
