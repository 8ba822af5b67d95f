"""Scenarios at the size of a large federation."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

from rayfl.federation.plan import FederationPlan
from rayfl.federation.scenario import Scenario, build_scenario
from tests.federation.toys import SERVER, SYMMETRIC, Toy


def test_a_million_samples_over_ten_thousand_clients_fit_into_little_memory(tmp_path: Path) -> None:
    plan = FederationPlan.model_validate(
        {"data": Toy(samples=1_000_000), "clients": 10_000, "split": SERVER, "noise": SYMMETRIC}
    )
    dataset = plan.data.load(Path())
    tracemalloc.start()
    scenario = build_scenario(plan, dataset, 0)
    scenario.save(tmp_path / "s")
    assert sum(len(scenario.shard(k)) for k in range(10_000)) == 899_850
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2e9
    assert Scenario.load(tmp_path / "s").sha256 == scenario.sha256
