"""Partitions: who owns which sample."""

from __future__ import annotations

from rayfl.component import Registry
from rayfl.federation.interfaces import Partition

PARTITIONS: Registry[Partition] = Registry(
    "partition",
    {
        "iid": "rayfl.federation.partition.iid:Iid",
        "iid_per_class": "rayfl.federation.partition.iid:IidPerClass",
        "dirichlet": "rayfl.federation.partition.dirichlet:Dirichlet",
        "quantity": "rayfl.federation.partition.dirichlet:Quantity",
        "bernoulli_dirichlet": "rayfl.federation.partition.bernoulli_dirichlet:BernoulliDirichlet",
        "shards": "rayfl.federation.partition.shards:Shards",
        "classes": "rayfl.federation.partition.classes:Classes",
        "fedmatch10": "rayfl.federation.partition.classes:FedMatch10",
        "tasks": "rayfl.federation.partition.tasks:Tasks",
        "groups": "rayfl.federation.partition.groups:WholeGroups",
        "sites": "rayfl.federation.partition.sites:WholeSites",
        "explicit": "rayfl.federation.partition.explicit:ExplicitOwners",
    },
)

__all__ = ["PARTITIONS"]
