"""The toy federation that methods are tried on, and its odd, large and normalised relatives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.component import component
from rayfl.config.files import merge_settings
from rayfl.config.schema import validate_config
from rayfl.federation.interfaces import Assignment, Pool

if TYPE_CHECKING:
    from rayfl.models.network import Network, Shape

TOY: Mapping[str, Any] = {
    "data": {
        "name": "blobs",
        "samples": 360,
        "test_samples": 120,
        "classes": 4,
        "side": 8,
        "spread": 0.2,
    },
    "clients": 6,
    "partition": "iid",
    "noise": {"name": "symmetric", "rate": {"name": "ramp", "min": 0.0, "max": 0.6}},
    "model": {"name": "mlp", "hidden": [16]},
    "training": {
        "rounds": 6,
        "clients_per_round": 4,
        "epochs": 2,
        "batch_size": 16,
        "lr": 0.2,
        "momentum": 0.5,
    },
    "fleet": "inline",
    "checkpoint": {"min_seconds": 0},
    "tracking": {"enabled": False},
}
"""Separable classes, under label noise that grows from client to client: a run takes a tenth of a
second."""

SETS: Mapping[str, Any] = {
    "public": {"fraction": 0.2},
    "validation": {"fraction": 0.1},
    "labelled": {"per_class": 20},
}
"""What a method gets of each named set that it needs."""

LARGE = {"model": {"name": "mlp", "hidden": [4096, 16]}}
"""Above 2^18 numbers even on images of 8 x 8: a place hands such weights on without a copy. There
are few features, because methods put heads on them whose size is the square."""

NORMALISED = {"model": {"name": "cnn4", "widths": [4], "track_running_stats": True}}
"""Running statistics are part of the weights, and are averaged with them."""

CUMULATIVE = {"model": {"name": "rayfl.testing.toy:CumulativeCNN"}}
"""Running statistics that count batches: a count that goes on from client to client is a leak."""


@component
class CumulativeCNN:
    """One convolution with a BatchNorm of `momentum=None`: a plain average over all batches."""

    def build(self, shape: Shape, classes: int) -> Network:
        from torch import nn

        from rayfl.models.cnn import CNN4

        network = CNN4(widths=(4,), track_running_stats=True).build(shape, classes)
        for module in network.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None
        return network


@component
class OddShares:
    """Client 0 gets one sample, client 1 some of a single class, client 3 none, the others the
    rest."""

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        usual = [client for client in range(2, pool.clients) if client != 3 or pool.clients < 5]
        owner = rng.choice(usual, len(pool.labels))
        same_class = np.flatnonzero(pool.labels == pool.labels[0])
        owner[same_class[:12]] = 1
        owner[same_class[12]] = 0
        return Assignment(owner)


def odd_federation(clients: int) -> dict[str, Any]:
    """Settings of a federation that no method likes: see `OddShares`; all labels of client 2 are
    wrong."""
    rates = [0.0, 0.0, 1.0] + [0.3] * (clients - 3)
    return {
        "partition": "rayfl.testing.toy:OddShares",
        "noise": {"name": "symmetric", "rate": rates},
    }


def complete_toy(method: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """The toy federation with this method, with `more` on top, and with the named sets that the
    method needs."""
    settings = merge_settings(merge_settings(TOY, more), {"method": dict(method)})
    needed = validate_config(settings).method.needs
    given = settings.get("split") or {}
    missing = {name: SETS[name] for name in needed if name in SETS and name not in given}
    return merge_settings(settings, {"split": {**missing, **given}}) if missing else settings
