"""The methods: one file each, found here by name."""

from __future__ import annotations

from rayfl.component import Registry
from rayfl.fleet.seam import Algorithm

METHODS: Registry[Algorithm] = Registry(
    "method",
    {
        "fedavg": "rayfl.algorithms.fedavg:FedAvg",
    },
)
