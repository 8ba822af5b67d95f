"""Federated averaging that notes what the suite wants to know of its rounds."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.dawid_skene_weighting import DawidSkeneWeighting
from rayfl.component import component
from rayfl.learn.fit import compute_outputs
from rayfl.protocol import Client, ClientId, Fleet, Out, Replies, Vector


@component
class WatchedFedAvg(FedAvg):
    """FedAvg that notes how much memory the process holds that runs its rounds."""

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        after = FedAvg.round(self, state, fleet, t)
        fleet.log(**{"memory/coordinator_mb": proportional_set_mb()})
        return after


def proportional_set_mb() -> float:
    """This process's share of the memory that it uses, in MB."""
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1e3
    return float("nan")


def forward_passes(client: Client, *, w: Vector) -> Out:
    """One forward pass of all that the client has."""
    compute_outputs(client.learner, w, client.x)
    return Out({"n": len(client)})


@component
class PacedFedAvg(FedAvg):
    """FedAvg that notes, beside its own seconds, those of one forward pass of the cohort's
    samples."""

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        began = time.perf_counter()
        after = FedAvg.round(self, state, fleet, t)
        # Where a mean is only promised, this waits for it.
        fleet.get(after.model)
        trained = time.perf_counter()
        passed = fleet.map(forward_passes, fleet.sample(t), w=after.model)
        paced = {"train_s": trained - began, "forward_s": time.perf_counter() - trained}
        fleet.log(**{f"pace/{name}": taken for name, taken in paced.items()})
        fleet.log(**{"pace/samples": float(sum(report["n"] for report in passed.values()))})
        return after


@component
class TimedDawidSkeneWeighting(DawidSkeneWeighting):
    """FedDS's weighting that notes how long votes and EM took: when it begins, all clients have
    returned."""

    def __call__(self, got: Replies, fleet: Fleet) -> Mapping[ClientId, float]:
        began = time.perf_counter()
        weights = DawidSkeneWeighting.__call__(self, got, fleet)
        fleet.log(**{"pace/apart_s": time.perf_counter() - began})
        return weights
