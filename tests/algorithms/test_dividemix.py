"""DivideMix: whose division each network trains on, what a batch is made of, and what it costs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfl.algorithms import dividemix
from rayfl.algorithms.dividemix import (
    DivideMix,
    MixMatch,
    Trust,
    co_divide,
    co_train,
    train_divided,
)
from rayfl.arrays import Bools
from rayfl.errors import ConfigError
from rayfl.estimate.mixture import LossMixture
from rayfl.learn.copies import Frozen
from rayfl.learn.fit import carry_out
from rayfl.learn.local_fit import Fit
from rayfl.learn.losses.soft_cross_entropy import soft_cross_entropy
from rayfl.learn.losses.squared_error import squared_error
from rayfl.protocol import Client
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedrn_baselines import (
    FIRST,
    ROWS as SOFT,
    SECOND,
    client_of,
    learner_of,
    measure_costs,
)
from tests.phases import drive, run_phase

ROWS = [
    Row(
        "dividemix",
        # At the paper's 25 the guesses of a toy of four classes draw all answers to one.
        {"name": "dividemix", "warmup": 3, "ramp": 4, "lambda_u": 1.0},
        config={"training": {"rounds": 9}},
        neutral={"name": "dividemix", "warmup": 1000},
        same_as={"name": "fedavg"},
        refused=[
            ({"lambda_u": -1.0}, "lambda_u"),
            ({"temperature": 0.0}, "temperature"),
            ({"alpha": -1.0}, "alpha"),
            ({"threshold": 1.5}, "threshold"),
            ({"warmup": -1}, "warmup"),
            ({"prior": "given"}, "prior"),
        ],
    ),
]

LOSSES = [
    *(0.4264, 0.1938, 0.0496, 0.1875, 0.3298, 0.105, 0.199, 0.014, 0.1555, 0.0626, 0.2182),
    *(0.0174, 0.3794, 0.3145, 0.0704, 0.0857, 0.1595, 0.4893, 0.4886, 0.3927, 0.1711, 0.3509),
    *(0.2416, 0.044, 0.1035, 0.0641, 0.3431, 0.1893, 0.4955, 0.0206, 2.5959, 2.1185, 1.7732),
    *(1.3781, 2.6167, 2.4028, 2.0836, 1.2057, 1.4556, 2.5709, 1.7108, 0.7848),
]
CLEAN = {0: 0.990448, 1: 0.998514, 7: 0.99885, 17: 0.97892, 28: 0.977069, 30: 0.0, 41: 0.163465}


def test_the_mixture_of_the_released_code() -> None:
    """ElvinKim/FedRN, 0b34b9a, models/update.py, update_probabilties_split_data_indices: min-max,
    then sklearn's mixture of 100 steps, tol 1e-2, reg_covar 5e-4, over three random starts."""
    split = LossMixture().fit(LOSSES)
    assert {i: split.clean[i] for i in CLEAN} == pytest.approx(CLEAN, abs=2e-3)
    assert split.means.tolist() == pytest.approx([0.0777002, 0.7257102], abs=1e-3)


@pytest.mark.parametrize(
    ("t", "theirs"),
    [
        (100, 2.261631733964704),
        (104.5, 2.8527820969191096),
        (108, 3.312565712550313),
        (130, 4.363499691135923),
    ],
)
def test_the_loss_of_the_released_code(t: float, theirs: float) -> None:
    """ElvinKim/FedRN, 0b34b9a, models/update.py, SemiLoss and linear_rampup."""
    rows = torch.tensor(SOFT, dtype=torch.float64)
    labelled = soft_cross_entropy(torch.tensor(FIRST, dtype=torch.float64), rows).mean()
    others = squared_error(torch.tensor(SECOND, dtype=torch.float64), rows.roll(1, 0))
    found = labelled + DivideMix().weigh_guesses(t) * others.mean() / 4
    assert found.item() == pytest.approx(theirs, abs=1e-9)


@pytest.mark.parametrize(
    ("t", "weight"), [(100, 0), (101, 1.5625), (104, 6.25), (108, 12.5), (116, 25), (200, 25)]
)
def test_the_ramp(t: int, weight: float) -> None:
    assert DivideMix().weigh_guesses(t) == weight


def test_the_error_of_guesses_is_averaged_over_classes() -> None:
    logits = torch.tensor([[0.7, 0.3], [0.2, 0.8]]).log()
    found = squared_error(logits, torch.eye(2)).mean() / 2
    assert found.item() == pytest.approx(0.065)


# -- dividing --------------------------------------------------------------------------------------


def trust_of(labelled: Bools, sure: float = 1.0) -> Trust:
    return Trust(np.where(labelled, sure, 0.1), labelled, whole=False)


def test_each_network_trains_on_the_others_division(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learner_of(epochs=1)
    a, b = learner.first_weights(0), learner.first_weights(1)
    of_a, of_b = trust_of(np.arange(20) < 9), trust_of(np.arange(20) >= 9)
    used = []

    def divide(client: Client, w: Any, method: DivideMix) -> Trust:
        return of_a if np.array_equal(w, a) else of_b

    def train(client: Client, w: Any, peer: Any, trust: Trust, *_: Any) -> Any:
        used.append((w, trust))
        return w
        yield

    monkeypatch.setattr(dividemix, "co_divide", divide)
    monkeypatch.setattr(dividemix, "train_divided", train)
    out = run_phase(co_train, client_of(learner), a=a, b=b, t=100, method=DivideMix())
    assert [trust for _, trust in used] == [of_b, of_a]
    assert [w is start for (w, _), start in zip(used, (a, b), strict=True)] == [True, True]
    assert np.array_equal(out.state["kept"], of_b.labelled[None])


def split_by(losses: list[float], monkeypatch: pytest.MonkeyPatch) -> Trust:
    class Given:
        pass

    Given.losses = np.array(losses)  # type: ignore[attr-defined]
    monkeypatch.setattr(dividemix, "judge", lambda client, w: Given)
    learner = learner_of()
    client = client_of(learner, len(losses))
    return co_divide(client, learner.first_weights(), DivideMix())


def test_small_losses_are_labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    found = split_by([0.1, 0.12, 2.0, 0.11, 2.2, 0.13], monkeypatch)
    assert found.labelled.tolist() == [True, True, False, True, False, True]
    assert not found.whole


@pytest.mark.parametrize(
    "losses", [[0.5], [0.5, 0.5, 0.5], [0.1, math.inf, 0.2], [0.1, math.nan, 0.2]]
)
def test_losses_that_bear_no_division(losses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    found = split_by(losses, monkeypatch)
    assert found.whole
    assert found.labelled.all()
    assert (found.weights == 1).all()


def test_without_a_division_an_epoch_is_plain_training() -> None:
    learner = learner_of(epochs=3)
    a, b = learner.first_weights(0), learner.first_weights(1)
    whole = Trust(np.ones(20), np.ones(20, np.bool_), whole=True)
    found = drive(
        client_of(learner), train_divided(client_of(learner), a, b, whole, 100, DivideMix())
    )
    plain = carry_out(client_of(learner), Fit(a, settings={"epochs": 1, "steps": None})).weights
    # `drive` carries out the wish of another client, but of the same stream.
    assert np.array_equal(found, plain)


# -- batches ---------------------------------------------------------------------------------------


class Recorder(nn.Module):
    """A network that notes what passes: how many samples, and with gradients or not."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(16, classes)
        self.seen: list[tuple[int, bool]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append((len(x), torch.is_grad_enabled()))
        logits: Tensor = self.linear(x.flatten(1))
        return logits


def first_batch(labelled: Bools, **settings: Any) -> tuple[Recorder, Tensor]:
    """The loss of the first batch of eight, and what passed through the network."""
    from rayfl.learn.batches import draw_batches

    learner = learner_of()
    client = client_of(learner, len(labelled))
    peer = Frozen(client, learner.first_weights(1), "peer")
    loss = MixMatch(client, peer, trust_of(labelled), 200, DivideMix(**settings))
    net = Recorder()
    value = loss(net, next(draw_batches(client, learner.training, labelled)))
    assert value is not None
    return net, value


def test_a_batch_passes_two_views_of_labelled_and_unlabelled() -> None:
    net, value = first_batch(np.arange(24) < 12)
    views, mixed = [(8, False)] * 4, [(32, True)]
    assert net.seen == views + mixed
    assert value.isfinite()


@pytest.mark.parametrize("unlabelled", [0, 1, 3])
def test_no_unlabelled_sample_is_twice_in_a_batch(unlabelled: int) -> None:
    net, value = first_batch(np.arange(20) >= unlabelled)
    guesses = [(unlabelled, False)] * 2 if unlabelled else []
    assert net.seen == [(8, False)] * 2 + guesses + [(16 + 2 * unlabelled, True)]
    assert value.isfinite()


def test_nothing_mixed_and_sure_labels_are_cross_entropy() -> None:
    """alpha = 0, w = 1, no unlabelled samples: the rows are the labels; the prior adds its own."""
    from rayfl.learn.batches import draw_batches
    from rayfl.learn.losses.entropy import prior_divergence

    learner = learner_of()
    labelled = np.ones(20, np.bool_)
    client = client_of(learner)
    peer = Frozen(client, learner.first_weights(1), "peer")
    loss = MixMatch(client, peer, trust_of(labelled), 200, DivideMix(alpha=0.0))
    net = Recorder()
    batch = next(draw_batches(client, learner.training, labelled))
    value = loss(net, batch)
    logits = net(batch.x)
    expected = nn.functional.cross_entropy(logits, batch.y) + prior_divergence(logits)
    assert value is not None
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)


def test_cost_of_one_epoch() -> None:
    """|L| = |U| = n/2, multiples of the batch: (4 m + 2) n forward with m = 2, beside 2 n for the
    mixtures; 4 n samples go back (the paper's table counts 2 n)."""
    learner = learner_of(epochs=1, batch_size=8)
    client = client_of(learner, 32)
    labelled = np.arange(32) < 16
    a, b = learner.first_weights(0), learner.first_weights(1)
    learner.passes.take()
    for w, peer in ((a, b), (b, a)):
        drive(client, train_divided(client, w, peer, trust_of(labelled), 200, DivideMix()))
    assert learner.passes.take() == (10 * 32, 4 * 32)


# -- the federation --------------------------------------------------------------------------------


def test_costs_of_the_warm_up(tmp_path: Path) -> None:
    outcome, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 2))
    assert measure_costs(outcome) == pytest.approx((2, 2, 4, 4))


def test_what_is_logged(tmp_path: Path) -> None:
    outcome, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 5))
    metrics = [record["metrics"] for record in outcome.history]
    assert "dividemix/lambda_u" not in metrics[2]
    assert [found["dividemix/lambda_u"] for found in metrics[3:]] == [0.0, 0.25]
    assert 0 <= metrics[4]["dividemix/undivided"] <= 4 * 2 * 2
    assert {"test/second/accuracy", "test/both/accuracy", "labels/precision"} <= set(metrics[4])


def test_steps_in_place_of_epochs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"divides anew in every local epoch.*training.steps 3"):
        run_toy(toy_config(ROWS[0], tmp_path, training={"steps": 3}))


def test_the_penalty_of_the_warm_up() -> None:
    from tests.algorithms.fedrn_baselines import LABELS, Answers, batch_of

    nets = {"a": Answers(FIRST), "b": Answers(SECOND)}
    batch = batch_of(learner_of(), LABELS)
    plain, confident = (DivideMix(penalty=p).learn_apart(nets, batch).item() for p in (0, 1))
    shares = [torch.tensor(rows).softmax(1) for rows in (FIRST, SECOND)]
    expected = sum(float((p * p.log()).sum(1).mean()) for p in shares)
    assert confident - plain == pytest.approx(expected, rel=1e-5)


def test_a_local_prior_is_that_of_the_labels() -> None:
    client = client_of(learner_of())
    found = DivideMix(prior="local").measure_prior(client)
    assert found is not None
    assert found.tolist() == pytest.approx((client.class_counts / 20).tolist())
    assert DivideMix().measure_prior(client) is None
