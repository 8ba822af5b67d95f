"""The coordinator holds reports and references, never a cohort: its memory does not grow with the
rounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rayfl.federation.scenario import open_federation
from rayfl.fleet.on_ray.coordinator import drive_run, store_for_hiring
from rayfl.fleet.on_ray.placement import Placement
from rayfl.run.assembly import build_holdings, build_spec
from rayfl.run.engine import Engine, Outcome
from tests.algorithms.conformance import Row, toy_config

CLIENTS, SAMPLES, COHORT, ROUNDS = 10_000, 20, 200, 50


@dataclass
class Weighed:
    """An engine that adds the resident memory of its process to every record. It runs inside the
    coordinator."""

    engine: Engine

    def run(self, fleet: Any, emit: Callable[[dict[str, Any]], object]) -> Outcome:
        return self.engine.run(fleet, lambda record: emit({**record, "rss": resident_kb()}))

    def save(self) -> int:
        return self.engine.save()


def resident_kb() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_memory_of_the_coordinator_does_not_grow(tmp_path: Path, cluster: None) -> None:
    blobs = {
        "name": "blobs",
        "samples": CLIENTS * SAMPLES,
        "test_samples": 1000,
        "classes": 4,
        "side": 4,
    }
    training = {
        "rounds": ROUNDS,
        "clients_per_round": COHORT,
        "epochs": 1,
        "batch_size": 20,
        "lr": 0.1,
    }
    row = Row(
        "many",
        {"name": "fedavg"},
        {"data": blobs, "clients": CLIENTS, "model": {"name": "mlp", "hidden": [16]}},
    )
    config = toy_config(row, tmp_path, training=training, evaluation={"every": 5})
    dataset, scenario = open_federation(config, 0)
    engine = Engine(
        config, scenario, str(tmp_path / "checkpoints"), {}, dataset.shape, tmp_path / "features"
    )
    resident: dict[int, int] = {}

    def note(record: dict[str, Any]) -> int:
        resident[record["round"]] = record["rss"]
        return len(resident)

    spec, held = (
        build_spec(config, dataset, scenario, "cpu"),
        build_holdings(config, dataset, scenario),
    )
    outcome: Outcome = drive_run(
        Weighed(engine), store_for_hiring(spec, held, Placement(2, cpus=0.5)), note
    )
    assert outcome.history[-1]["metrics"]["clients/participants"] == COHORT
    assert outcome.history[-1]["metrics"]["test/accuracy"] > 0.5
    assert sorted(resident) == list(range(1, ROUNDS + 1))
    assert resident[ROUNDS] <= 1.05 * resident[5]
