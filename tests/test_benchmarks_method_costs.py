"""What the table of every method's costs is computed from, and one row of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from speed_suite import method_costs, method_table, targets  # noqa: E402
from speed_suite.method_costs import Passed, Watched, conclude, predict, time_extras  # noqa: E402
from speed_suite.method_rows import ROWS, Row  # noqa: E402

from rayfl.algorithms import METHODS, fedcorr  # noqa: E402
from rayfl.estimate import mixture  # noqa: E402
from rayfl.estimate.lid import mean_lid  # noqa: E402

REFERENCES = {
    *("clean_fedavg", "oracle", "server_sl", "single_global"),
    *("fedprox", "moon", "scaffold", "local_k_similarity"),
}
"""What is no method against wrong labels, or is of the first four papers' own baselines."""
COUNTED = {
    "forward": 100.0,
    "backward": 40.0,
    "server_forward": 20.0,
    "server_backward": 10.0,
    "down_mb": 3.0,
    "up_mb": 1.0,
}


def row_named(name: str) -> Row:
    (found,) = [row for row in ROWS if row.name == name]
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_is_a_valid_configuration(row: Row, tmp_path: Path) -> None:
    config = method_costs.configure(row, str(tmp_path))
    assert config.training.rounds == row.begins + method_costs.ROUNDS
    # The first round loads what later ones have.
    assert row.begins >= 1


def test_every_method_has_a_row(tmp_path: Path) -> None:
    configs = [method_costs.configure(row, str(tmp_path)) for row in ROWS]
    found = {METHODS.name_of(config.method) for config in configs}
    assert found | REFERENCES >= set(METHODS.names())
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_a_model_is_passes_at_their_price() -> None:
    """2 ms forward and 5 ms back, at clients and at the server."""
    assert predict(Passed(2e-3, 5e-3), COUNTED) == pytest.approx(120 * 2e-3 + 50 * 5e-3)


def test_a_row_is_of_medians_and_in_the_units_of_papers() -> None:
    """Two participants of ten images each, a model of half a megabyte."""
    base = {**COUNTED, "participants": 2.0, "extras": {"LID": 0.5}}
    timed = [(3.0, 2.0), (1.0, 2.0), (4.0, 2.0)]
    rounds = [{**base, "seconds": seconds, "model": model} for seconds, model in timed]
    found = conclude([{"rounds": rounds, "samples": 10.0, "model_mb": 0.5}])
    assert (found["seconds"], found["model"], found["ratio"]) == (3.0, 2.0, 1.5)
    assert (found["F"], found["B"]) == (5.0, 2.0)
    assert (found["down"], found["up"]) == (3.0, 1.0)
    assert found["extras"] == {"LID": 0.5}


def test_extras_are_noted_once_and_functions_put_back() -> None:
    fit = mixture.LossMixture.fit
    watched = Watched(extras=[{}])
    losses = np.concatenate([np.full(20, 0.1), np.full(20, 2.0)]) + np.arange(40) * 1e-3
    plain = mixture.LossMixture().fit(losses)
    with time_extras(watched):
        timed = mixture.LossMixture().fit(losses)
        assert watched.depth == 0
    assert set(watched.extras[0]) == {"mixture"}
    np.testing.assert_array_equal(timed.clean, plain.clean)
    assert mixture.LossMixture.fit is fit


def test_a_function_is_timed_where_it_was_imported() -> None:
    imported = vars(fedcorr)
    watched = Watched(extras=[{}])
    with time_extras(watched):
        assert imported["mean_lid"] is not mean_lid
        imported["mean_lid"](np.random.default_rng(0).random((30, 4)), 5)
    assert set(watched.extras[0]) == {"LID"}
    assert imported["mean_lid"] is mean_lid


def test_a_rows_run_counts_its_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(method_costs, "BURST", 1e-3)
    monkeypatch.setattr(method_costs, "ROUNDS", 1)
    (found,) = method_costs.run_row(row_named("FedAvg"))["rounds"]
    assert (found["forward"], found["backward"]) == (2 * 4 * 64, 2 * 4 * 64)
    assert found["participants"] == 4
    assert found["seconds"] > 0
    assert found["model"] > 0
    assert found["extras"] == {}


def measured(ratio: float) -> dict[str, Any]:
    counts = {"server_forward": 200.0, "server_backward": 0.0, "F": 2.0, "B": 2.0}
    return {
        **counts,
        "paper": "M + M; eF + eB",
        "seconds": 0.2,
        "model": 0.2 / ratio,
        "ratio": ratio,
        "extras": {"views": 0.01},
        "down": 1.0,
        "up": 1.0,
    }


FOUND: dict[str, Any] = {
    "rows": {"one": measured(0.9), "other": measured(1.2)},
    "repeats": 2,
    "versions": {"torch": "2"},
    "date": "today",
    "machine": "here",
    "load": 1.0,
    "python": "3.11",
    "command": "python benchmarks/speed.py",
}


def test_a_section_is_written_anew_and_others_stay(tmp_path: Path) -> None:
    page = tmp_path / "performance.md"
    page.write_text(
        f"# Performance\n\n## W1\n\nfirst\n\n{method_table.TITLE}\n\nof before\n\n## Z\n\nlast\n"
    )
    for _ in range(2):
        method_table.replace_section(page, method_table.show_methods(FOUND))
    text = page.read_text()
    assert text.count(method_table.TITLE) == 1
    assert "of before" not in text
    assert text.startswith("# Performance\n\n## W1\n\nfirst\n\n## Z\n\nlast\n\n")
    assert "farthest over its cost model: other, 1.20" in text
    assert "| one | 200.0 | 222.2 | 0.90 | views 10.0 | 1M + 1M | 2F + 2B | 200 + 0 |" in text


def test_the_aim_is_that_of_the_farthest() -> None:
    assert targets.farthest_over_model({"w6-methods": FOUND}) == pytest.approx(1.2)
    assert targets.farthest_over_model({}) is None
