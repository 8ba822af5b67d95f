"""Co-teaching: whose samples each network learns from, how many, and what it costs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rayfl.algorithms.co_teaching import CoTeaching, exchange_easy, train_pair
from rayfl.errors import ConfigError
from rayfl.learn.fit import carry_out
from rayfl.learn.local_fit import Fit
from rayfl.learn.losses.base import CROSS_ENTROPY
from rayfl.learn.selection import Selection
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedrn_baselines import (
    FIRST,
    LABELS,
    SECOND,
    Answers,
    batch_of,
    client_of,
    learner_of,
    measure_costs,
)
from tests.phases import run_phase

ROWS = [
    Row(
        "co_teaching",
        {"name": "co_teaching", "warmup": 4},
        neutral={"name": "co_teaching", "tau": 0.0},
        same_as={"name": "fedavg"},
        refused=[
            ({"tau": 1.5}, "tau"),
            ({"tau": -0.1}, "tau"),
            ({"warmup": 0}, "warmup"),
            ({"exponent": 0}, "exponent"),
        ],
    ),
]


@pytest.mark.parametrize(
    ("forget", "theirs", "chosen"),
    [
        (0.0, 1.975891892071188 + 1.576026907286209, [0, 1, 2, 3, 4, 5, 6]),
        (0.2, 2.1908052422601516 + 1.829780935172575, [0, 1, 2, 3, 5]),
        (0.45, 1.604531935293785 + 1.3903330454546126, [2, 3, 5]),
    ],
)
def test_figures_of_the_released_code(forget: float, theirs: float, chosen: list[int]) -> None:
    """ElvinKim/FedRN, 0b34b9a, models/update.py, LocalUpdateCoteaching.loss_coteaching."""
    noted = Selection(len(LABELS))
    loss = exchange_easy(forget, CROSS_ENTROPY, noted)
    nets = {"a": Answers(FIRST), "b": Answers(SECOND)}
    value = loss(nets, batch_of(learner_of(), LABELS))
    assert value is not None
    assert value.item() == pytest.approx(theirs, abs=1e-12)
    assert np.flatnonzero(noted.state["kept"][0]).tolist() == chosen


def test_a_network_learns_from_what_the_other_finds_easy() -> None:
    """Gradients reach the rows of the peer's choice alone."""
    nets = {"a": Answers(FIRST), "b": Answers(SECOND)}
    loss = exchange_easy(0.6, CROSS_ENTROPY, Selection(len(LABELS)))
    value = loss(nets, batch_of(learner_of(), LABELS))
    assert value is not None
    value.backward()  # type: ignore[no-untyped-call]
    easy = {
        name: torch.nn.functional.cross_entropy(
            net.rows, torch.tensor(LABELS), reduction="none"
        ).argsort()[:2]
        for name, net in nets.items()
    }
    for name, peer in (("a", "b"), ("b", "a")):
        moved = nets[name].rows.grad
        assert moved is not None
        assert set(moved.abs().sum(1).nonzero().ravel().tolist()) == set(easy[peer].tolist())


def test_equal_networks_stay_equal() -> None:
    learner = learner_of()
    w = learner.first_weights()
    out = run_phase(
        train_pair, client_of(learner), a=w, b=w, forget=0.3, method=CoTeaching(tau=0.3)
    )
    assert isinstance(out.update, dict)
    assert np.array_equal(out.update["a"], out.update["b"])
    assert not np.array_equal(out.update["a"], w)


def test_nothing_left_out_is_two_trainings_apart() -> None:
    learner = learner_of(momentum=0.5)
    starts = {"a": learner.first_weights(0), "b": learner.first_weights(1)}
    out = run_phase(train_pair, client_of(learner), forget=0.0, method=CoTeaching(), **starts)
    assert isinstance(out.update, dict)
    for name, w in starts.items():
        alone = carry_out(client_of(learner), Fit(w)).weights
        assert np.array_equal(out.update[name], alone)
    assert out.state["kept"].all()


def test_the_mask_has_a_row_an_epoch_with_the_kept_of_every_batch() -> None:
    learner = learner_of(epochs=3, batch_size=8)
    w = {"a": learner.first_weights(0), "b": learner.first_weights(1)}
    out = run_phase(train_pair, client_of(learner, 20), forget=0.3, method=CoTeaching(), **w)
    # Batches of 8, 8 and 4: floor(0.7 b) of each.
    assert out.state["kept"].sum(axis=1).tolist() == [5 + 5 + 2] * 3


def test_a_visit_without_a_batch_leaves_no_mask() -> None:
    learner = learner_of(batch_size=32, drop_last=True)
    w = {"a": learner.first_weights(0), "b": learner.first_weights(1)}
    out = run_phase(train_pair, client_of(learner, 20), forget=0.3, method=CoTeaching(), **w)
    assert out.state == {}


def test_a_single_sample_is_kept() -> None:
    learner = learner_of()
    w = {"a": learner.first_weights(0), "b": learner.first_weights(1)}
    out = run_phase(train_pair, client_of(learner, 1), forget=0.9, method=CoTeaching(), **w)
    assert out.state["kept"].all()


def test_costs_are_those_of_the_papers_table(tmp_path: Path) -> None:
    """FedRN's Table 8: 2M down, 2M up, 2eF, 2eB."""
    outcome, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 2))
    assert measure_costs(outcome) == pytest.approx((2, 2, 4, 4))


def test_another_loss_selects_and_teaches(tmp_path: Path) -> None:
    apart = toy_config(ROWS[0], tmp_path, {"name": "co_teaching", "tau": 0.0, "loss": "gce"})
    plain = toy_config(ROWS[0], tmp_path, {"name": "fedavg", "loss": "gce"})
    first, _ = run_toy(shortened(apart, 2), directory="apart")
    second, _ = run_toy(shortened(plain, 2), directory="plain")
    assert first.sha256 == second.sha256


@pytest.mark.parametrize("weighting", ["dawid_skene", "distance"])
def test_weightings_that_look_into_models_are_refused(weighting: str, tmp_path: Path) -> None:
    method = {"name": "co_teaching", "weighting": weighting}
    config = toy_config(ROWS[0], tmp_path, method, split={"public": {"fraction": 0.2}})
    with pytest.raises(ConfigError, match="looks into models asks for one of each client"):
        run_toy(config)


def test_the_second_network_and_both_are_tested(tmp_path: Path) -> None:
    outcome, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 3))
    metrics = outcome.history[-1]["metrics"]
    assert {"test/second/accuracy", "test/both/accuracy", "labels/precision"} <= set(metrics)
    forget = [record["metrics"]["co_teaching/forget_rate"] for record in outcome.history]
    assert forget == pytest.approx([0.0, 0.2 / 3, 0.4 / 3])
