"""Whole groups (patients, writers, sites) to one client each."""

from __future__ import annotations

import heapq
from dataclasses import replace
from typing import Annotated

import numpy as np

from rayfl.component import component, slot
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.partition import PARTITIONS
from rayfl.federation.views import UNUSED, Assignment, Partition, Pool


@component
class WholeGroups:
    """All samples of a group go to the same client.

    Without `over`, groups are shuffled and each goes to the client that is the smallest so far (the
    iid case). With it, that partition deals out the groups as if each were one sample of its most
    frequent class."""

    over: Annotated[Partition, slot(PARTITIONS)] | None = None

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        if pool.groups is None:
            raise ConfigError(
                broken(
                    "partition 'groups' needs a dataset with group ids", "none", "Use another one"
                )
            )
        # ids may have gaps, ranks among them have none
        ids, member = np.unique(pool.groups, return_inverse=True)
        if len(ids) < pool.clients:
            raise ConfigError(
                broken(
                    f"{pool.clients} clients need as many groups", len(ids), "Ask for fewer clients"
                )
            )
        if self.over is None:
            return Assignment(give_to_smallest(np.bincount(member), pool.clients, rng)[member])
        units = replace(pool, labels=find_majorities(member, pool), groups=None)
        dealt = self.over.assign(units, rng)
        return replace(dealt, owner=dealt.owner[member])


def give_to_smallest(sizes: Ints, clients: int, rng: np.random.Generator) -> Ints:
    """The client of each group: in random order, always the one with the fewest samples."""
    owner = np.full(len(sizes), UNUSED, np.int64)
    # sorted already, hence a heap; ties go to the lowest id, so the result depends on rng alone
    queue = [(0, client) for client in range(clients)]
    for group in rng.permutation(len(sizes)):
        held, client = queue[0]
        owner[group] = client
        heapq.heapreplace(queue, (held + int(sizes[group]), client))
    return owner


def find_majorities(member: Ints, pool: Pool) -> Ints:
    """The most frequent class of each group; of equals, the lowest."""
    cells, counts = np.unique(member * pool.classes + pool.labels, return_counts=True)
    # the last writer of a group wins: its highest count, and of equals the lowest class
    order = np.lexsort((-cells, counts))
    label = np.empty(int(member.max()) + 1, np.int64)
    label[cells[order] // pool.classes] = cells[order] % pool.classes
    return label
