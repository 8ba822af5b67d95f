"""FedDS: from votes on public images to weights. The EM itself is held to its numbers where it
stands."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rayfl.algorithms import METHODS
from rayfl.algorithms.fedavg import FedAvg
from rayfl.algorithms.fedds import FedDS
from rayfl.algorithms.parts.dawid_skene_weighting import DawidSkeneWeighting, vote
from rayfl.algorithms.parts.weighting import BySize
from rayfl.config.schema import load_config
from rayfl.errors import ConfigError
from rayfl.fleet.base import Spec
from rayfl.fleet.executor import Holdings
from rayfl.fleet.inline import InlineFleet
from rayfl.fleet.streams import Streams
from rayfl.learn.learner import Learner
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.protocol import Replies, Shard
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.toys import leave, toy_fleet

PUBLIC = {"split": {"public": 0.2}}
PAPER = Path(__file__).parents[2] / "configs" / "paper"


def with_em(**settings: Any) -> dict[str, Any]:
    return {"weighting": {"name": "dawid_skene", **settings}}


ROWS = [
    Row(
        "fedds",
        {"name": "fedds"},
        config=PUBLIC,
        neutral={"name": "fedds", "weighting": "size"},
        same_as={"name": "fedavg"},
        refused=[
            (with_em(iterations=-1), "iterations"),
            (with_em(tol=-1e-5), "tol"),
            (with_em(init="uniform"), "init"),
            (with_em(smooth=-1.0), "smooth"),
            (with_em(classes=4), "classes"),
        ],
    ),
    Row("fedavg_dawid_skene", {"name": "fedavg", **with_em(iterations=20, tol=0.0)}, config=PUBLIC),
    Row("fedds_code", {"name": "fedds", **with_em(use_prior=False)}, config=PUBLIC),
]

A = np.array([[0, 0, 0], [0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]])
"""Votes of three clients on six images."""


class Ballot(nn.Module):
    """Logits are the weights of the pixels that are lit: a model is a table of logits, a column an
    image."""

    def __init__(self, images: int, classes: int) -> None:
        super().__init__()
        self.table = nn.Linear(images, classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.table(x.flatten(1))
        return logits


def cast(
    votes: NDArray[np.int64], classes: int, also: Sequence[Any] = ()
) -> tuple[Replies, InlineFleet]:
    """Replies whose models vote like this (and some that are given as they are), on a fleet with
    those images."""
    images, clients = votes.shape
    lit = (255 * np.eye(images, dtype=np.uint8)).reshape(images, 1, images, 1)
    everybody = clients + len(also)
    owned = np.zeros((everybody, 1, images, 1), np.uint8), np.zeros(everybody, np.int64)
    offsets = np.arange(everybody + 1)
    holdings = Holdings(*owned, np.arange(everybody), offsets, {"public": Shard(lit, None)})

    def make() -> Learner:
        return Learner(lambda: Ballot(images, classes), LocalTraining(), Normalisation())

    fleet = InlineFleet(Spec(make, Streams(0), cohort=everybody), holdings)
    models = {
        client: np.eye(classes)[votes[:, client]].T.ravel().tolist() for client in range(clients)
    }
    models |= {clients + i: np.ravel(model).tolist() for i, model in enumerate(also)}
    return fleet.map(leave, range(everybody), models=models), fleet


def shares(r: Sequence[float]) -> list[float]:
    return [value / sum(r) for value in r]


@pytest.mark.parametrize(
    ("settings", "reliabilities"),
    [
        ({"iterations": 0}, (0.725, 0.7625, 0.6125)),
        ({"iterations": 1, "tol": 0.0}, (0.806047, 0.834904, 0.494334)),
        ({"iterations": 1, "tol": 0.0, "use_prior": False}, (0.8025, 0.822589, 0.491836)),
        ({"iterations": 5, "tol": 0.0}, (0.958773, 0.865762, 0.376925)),
        ({}, (0.999998, 0.833334, 0.333335)),
        ({"init": "hard"}, (0.875, 1.0, 0.5)),
        ({"iterations": 0, "smooth": 1e9}, (0.5, 0.5, 0.5)),
    ],
    ids=str,
)
def test_weights_follow_the_votes(
    settings: dict[str, Any], reliabilities: tuple[float, ...]
) -> None:
    """Every knob reaches the EM, and weights are shares of its reliabilities."""
    got, fleet = cast(A, 2)
    weights = DawidSkeneWeighting(**settings)(got, fleet)
    assert list(weights) == [0, 1, 2]
    assert list(weights.values()) == pytest.approx(shares(reliabilities), abs=2e-6)
    estimated = fleet.take_estimates()["reliability"]
    assert list(estimated.values()) == pytest.approx(reliabilities, abs=2e-6)


def test_weights_of_the_converged_example() -> None:
    got, fleet = cast(A, 2)
    weights = DawidSkeneWeighting()(got, fleet)
    assert list(weights.values()) == pytest.approx([0.461537, 0.384616, 0.153847], abs=2e-6)


def test_three_classes_and_four_clients() -> None:
    rows = ["0001", "0022", "1110", "1101", "2220", "2021", "2212", "0100", "1112"]
    got, fleet = cast(np.array([[int(c) for c in row] for row in rows]), 3)
    weights = DawidSkeneWeighting()(got, fleet)
    assert list(weights.values()) == pytest.approx(
        shares([1.0, 0.777777, 0.666667, 0.333334]), abs=2e-6
    )
    assert fleet.take_logged()["reliability/em_iterations"] == 19


def test_what_is_logged() -> None:
    got, fleet = cast(A, 2)
    DawidSkeneWeighting()(got, fleet)
    logged = fleet.take_logged()
    expected = {
        "reliability/mean": (1 + 5 / 6 + 1 / 3) / 3,
        "reliability/min": 1 / 3,
        "reliability/max": 1.0,
        "reliability/dominant_share": 2 / 3,
        "reliability/misaligned": 0.0,
        "reliability/em_iterations": 21.0,
        "reliability/unusable": 0.0,
    }
    assert logged == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("classes", [2, 5, 300])
def test_classes_are_the_networks_outputs(classes: int) -> None:
    """Classes that nobody predicts count in the mean of the diagonal: here 2 of `classes` are
    known."""
    got, fleet = cast(np.array([[0, 0], [1, 1], [classes - 1, classes - 1]]), classes)
    DawidSkeneWeighting()(got, fleet)
    predicted = len({0, 1, classes - 1})
    assert fleet.take_estimates()["reliability"] == pytest.approx(
        dict.fromkeys(range(2), predicted / classes)
    )


@pytest.mark.parametrize("votes", [[0, 1, 2, 0], [1, 1, 1, 1]])
def test_equal_votes_make_the_plain_mean(votes: list[int]) -> None:
    got, fleet = cast(np.array([votes] * 3).T, 3, also=[])
    weights = DawidSkeneWeighting()(got, fleet)
    assert list(weights.values()) == pytest.approx([1 / 3] * 3, abs=1e-12)
    np.testing.assert_allclose(
        fleet.get(got.mean(weights)), fleet.get(got.mean(dict.fromkeys(range(3), 1.0))), 1e-6
    )


def test_one_participant_has_all_the_weight() -> None:
    got, fleet = cast(np.array([[0], [1], [1]]), 4)
    assert DawidSkeneWeighting()(got, fleet) == {0: 1.0}
    assert fleet.take_estimates()["reliability"] == pytest.approx({0: 2 / 4})


def test_models_are_averaged_by_reliability() -> None:
    _, fleet = cast(A, 2)
    got = fleet.map(leave, range(3), models={0: [1.0, 2.0], 1: [0.0, 4.0], 2: [6.0, -3.0]})
    np.testing.assert_allclose(
        fleet.get(got.mean({0: 0.9, 1: 0.6, 2: 0.3})), [1.5, 11 / 6], rtol=1e-6
    )


def test_a_client_that_always_says_the_same_is_as_good_as_chance() -> None:
    got, fleet = cast(np.column_stack([A, np.ones(6, np.int64)]), 2)
    DawidSkeneWeighting()(got, fleet)
    assert fleet.take_estimates()["reliability"][3] == pytest.approx(0.5)


def test_a_client_that_is_always_wrong_counts_less_than_chance() -> None:
    truth = np.tile(np.arange(4), 10)
    got, fleet = cast(np.column_stack([truth, truth, truth, (truth + 1) % 4]), 4)
    weights = DawidSkeneWeighting()(got, fleet)
    assert list(weights.values()) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0], abs=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_model_that_is_not_finite_does_not_vote(bad: float) -> None:
    alone, _ = cast(A, 2)
    got, fleet = cast(A, 2, also=[np.full((2, 6), bad)])
    assert got.diverged == (3,)
    assert list(got) == list(alone)
    assert list(DawidSkeneWeighting()(got, fleet).values()) == pytest.approx(
        [0.461537, 0.384616, 0.153847], abs=2e-6
    )


def test_a_model_that_overflows_votes_for_class_zero() -> None:
    """Two lit pixels add up to infinity for class 1, which is not an opinion."""
    got, fleet = cast(A, 2, also=[np.array([[0.0] * 6, [3e38] * 6])])
    lit = np.full((4, 1, 6, 1), 255, np.uint8)
    fleet.executor.holdings = Holdings(
        np.zeros((4, 1, 6, 1), np.uint8),
        np.zeros(4, np.int64),
        np.arange(4),
        np.arange(5),
        {"public": Shard(lit, None)},
    )
    votes = got.examine(vote, public=fleet.data("public"))
    assert votes[3]["votes"].tolist() == [0, 0, 0, 0]
    assert votes[2]["votes"].dtype == np.uint8


def test_votes_are_cast_in_evaluation_mode() -> None:
    """Dropout of everything would silence every logit."""

    class Forgetful(Ballot):
        def forward(self, x: Tensor) -> Tensor:
            return torch.nn.functional.dropout(super().forward(x), p=1.0, training=self.training)

    got, fleet = cast(A, 2)
    fleet.executor.learner.build = lambda: Forgetful(6, 2)
    ballots = got.examine(vote, public=fleet.data("public"))
    assert np.array_equal(np.column_stack([ballots[client]["votes"] for client in range(3)]), A)


@pytest.mark.parametrize("host", ["fedavg", "fedprox", "scaffold", "moon", "fedds"])
def test_every_host_refuses_a_federation_without_public_images(host: str, tmp_path: Path) -> None:
    config = toy_config(Row("no public", {"name": host, "weighting": "dawid_skene"}), tmp_path)
    with pytest.raises(
        ConfigError, match=r"'dawid_skene' needs the set 'public'; .* Set split.public"
    ):
        run_toy(config)


@pytest.mark.parametrize("host", ["fedavg", "fedprox", "scaffold", "moon"])
def test_every_host_has_dawid_skene_weights(host: str, tmp_path: Path) -> None:
    """The server looks at every returned model once, and nothing more is sent."""
    row = Row("host", {"name": host}, config=PUBLIC)
    plain, _ = run_toy(shortened(toy_config(row, tmp_path), 1), directory="plain")
    weighted = toy_config(row, tmp_path, {"name": host, "weighting": "dawid_skene"})
    outcome, _ = run_toy(shortened(weighted, 1), directory="weighted")
    before, after = plain.history[0]["metrics"], outcome.history[0]["metrics"]
    assert after["cost/server_forward"] - before["cost/server_forward"] == 4 * 72
    for name in (
        "cost/up_mb",
        "cost/down_mb",
        "cost/forward",
        "cost/backward",
        "cost/server_backward",
    ):
        assert after[name] == before[name]
    assert outcome.sha256 != plain.sha256


def test_the_server_never_sees_labels_of_public_images(tmp_path: Path) -> None:
    fleet = toy_fleet(toy_config(ROWS[0], tmp_path))
    assert fleet.executor.holdings.sets["public"].y is None


def test_noisy_clients_look_less_reliable(tmp_path: Path) -> None:
    noise = {"name": "symmetric", "rate": [0.0, 0.0, 0.2, 0.5, 1.0, 1.0]}
    config = toy_config(ROWS[0], tmp_path, noise=noise, training={"clients_per_round": 6})
    outcome, _ = run_toy(shortened(config, 4))
    assert outcome.history[-1]["metrics"]["reliability/noise_correlation"] < -0.7


def test_fedds_is_fedavg_with_another_default() -> None:
    assert FedDS() == METHODS.build("fedds")
    assert isinstance(FedDS().weighting, DawidSkeneWeighting)
    assert isinstance(FedAvg().weighting, BySize)
    assert FedDS.round is FedAvg.round


@pytest.mark.parametrize(
    ("name", "partition"), [("fedds_mnist", "Iid"), ("fedds_mnist_dirichlet", "Dirichlet")]
)
def test_the_papers_settings(name: str, partition: str) -> None:
    config = load_config(PAPER / f"{name}.yaml")
    training = config.training
    assert (config.clients, training.rounds, training.cohort(100)) == (100, 100, 10)
    assert (training.epochs, training.batch_size, training.lr, training.momentum) == (
        5,
        64,
        0.01,
        0.9,
    )
    assert training.weight_decay == 0
    assert type(config.partition).__name__ == partition
    assert config.method == FedDS(weighting=DawidSkeneWeighting(iterations=500, tol=1e-5))
