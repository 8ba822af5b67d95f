"""FedMatch: two parts of the weights, helpers and their votes, against numbers made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rayfl.algorithms.fedmatch import (
    Disjoint,
    FedMatch,
    Parts,
    agree,
    compose,
    find_kernels,
    keep_changed,
    take_apart,
    train_psi,
    train_sigma,
    vote_for_class,
)
from rayfl.errors import ConfigError
from rayfl.learn.augment.base import Unchanged
from rayfl.learn.batches import draw_batches
from rayfl.learn.losses.distillation import kl_divergence
from rayfl.protocol import Client, Out, Shard
from tests.algorithms.conformance import Row
from tests.algorithms.semi_toys import SERVED, STRONG, run_row
from tests.algorithms.toys import fleet_of_numbers
from tests.learn.kit import build_normed, first_weights, make_client, make_learner
from tests.phases import run_phase

METHOD: dict[str, Any] = {
    "name": "fedmatch",
    "server_epochs": 2,
    "lambda_l2": 0.001,
    "interval": 2,
    "strong": STRONG,
}

ROWS = [
    Row(
        "fedmatch",
        METHOD,
        SERVED,
        # Without helpers it does not matter how often they would be asked, nor for how much.
        neutral={**METHOD, "helpers": 0, "interval": 1},
        same_as={**METHOD, "helpers": 0, "lambda_i": 5.0},
        refused=[
            ({"helpers": -1}, "helpers"),
            ({"interval": 0}, "interval"),
            ({"confidence": 1.5}, "confidence"),
            ({"lambda_l2": -1}, "lambda_l2"),
        ],
    )
]


def ballots(*labels: int) -> list[torch.Tensor]:
    return [torch.eye(8)[[label]] for label in labels]


@pytest.mark.parametrize(
    ("labels", "client_decides", "expected"),
    [
        ((5, 2, 7), False, 2),
        ((5, 2, 7), True, 5),
        ((5, 5, 2), False, 5),
        ((5, 2, 2), True, 2),
        ((6,), False, 6),
    ],
)
def test_votes(labels: tuple[int, ...], client_decides: bool, expected: int) -> None:
    assert vote_for_class(ballots(*labels), client_decides).item() == expected


def test_disagreement_with_helpers() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    helpers = torch.tensor([[[0.7, 0.2, 0.1]], [[0.6, 0.3, 0.1]]])
    found = [kl_divergence(q, logits).item() for q in helpers]
    assert found == pytest.approx([0.085123, 0.040078], abs=1e-6)
    assert 1e-2 * sum(found) / 2 == pytest.approx(0.000626, abs=1e-6)


def test_the_gradient_of_the_regulariser() -> None:
    sigma, psi = torch.tensor([0.1, -0.2, 0.3]), torch.tensor([0.02, 0.0, -0.05])
    every = torch.ones(3, dtype=torch.bool)
    gradient = torch.zeros(3)
    Parts(sigma, every, FedMatch(lambda_l1=0.0)).regularise(sigma + psi, gradient)
    assert gradient.tolist() == pytest.approx([-1.6, 4.0, -7.0], abs=1e-5)
    assert 10 * (sigma - psi).square().sum().item() == pytest.approx(1.689)
    Parts(sigma, every, FedMatch(lambda_l2=0.0, lambda_l1=0.5)).regularise(
        sigma + psi, gradient.zero_()
    )
    assert gradient.tolist() == pytest.approx([0.5, 0.0, -0.5])
    assert 1e-5 * psi.abs().sum().item() == pytest.approx(7e-7)


def test_what_is_not_taken_apart_stands_still() -> None:
    parts = Parts(torch.zeros(2), torch.tensor([True, False]), FedMatch())
    gradient = torch.ones(2)
    parts.regularise(torch.ones(2), gradient)
    assert gradient[0] != 0
    assert gradient[1] == 0


def test_what_comes_back() -> None:
    own, theirs = np.array([1e-6, 5e-5, -2e-4]), np.array([0.0, 4.5e-5, 0.0])
    assert keep_changed(own, theirs, 1e-5).tolist() == [0, 4.5e-5, -2e-4]


def normed_client(
    size: int, labels: bool = False, decay: float = 0.1
) -> tuple[Client, Mapping[str, Any]]:
    """A client of a network with BatchNorm, and the first parts."""
    learner = make_learner(build_normed, batch_size=8, lr=0.01, weight_decay=decay)
    client = make_client(size, learner, labels=labels)
    out = run_phase(take_apart, client, w=first_weights(learner), factor=0.2)
    assert isinstance(out.update, Mapping)
    return client, out.update


def test_kernels_alone_are_taken_apart() -> None:
    client, parts = normed_client(4)
    kernels = find_kernels(client.learner.shape_of())
    assert kernels.sum() == 4 * 9 + 2 * 4 * 9 + 8 * 3
    np.testing.assert_allclose(parts["psi"][kernels], 0.2 * parts["sigma"][kernels])
    assert not parts["psi"][~kernels].any()


def test_a_client_leaves_sigma_alone() -> None:
    """psi moves in kernels; statistics are sent beside it."""
    client, parts = normed_client(24)
    method = FedMatch(confidence=0.0, lambda_a=1.0, strong=Unchanged())
    kernels = find_kernels(client.learner.shape_of())
    out = run_phase(train_psi, client, **parts, method=method)
    assert isinstance(out.update, Mapping)
    assert sorted(out.update) == ["psi", "statistics"]
    psi = out.update["psi"]
    assert not psi[~kernels].any()
    assert (psi[kernels] != parts["psi"][kernels]).any()
    assert np.array_equal(out.state["psi"], psi)
    changed = int((psi != parts["psi"]).sum())
    assert 0 < changed < psi.size
    assert out.report["_sent"] == changed / int(kernels.sum())
    assert out.unsent == 4 * (psi.size - changed)


def test_a_client_clips_as_the_server_does() -> None:
    moved = []
    for clip in (None, 1e-9):
        client, parts = normed_client(24, decay=0.0)
        method = FedMatch(confidence=0.0, lambda_a=1.0, strong=Unchanged(), clip=clip, least=0.0)
        out = run_phase(train_psi, client, **parts, method=method)
        assert isinstance(out.update, Mapping)
        moved.append(float(np.abs(out.update["psi"] - parts["psi"]).max()))
    assert moved[1] < 1e-6 < moved[0]


def test_the_servers_part_takes_the_whole_step() -> None:
    owner, parts = normed_client(24, labels=True)
    server = Client(-1, owner.x[:0], owner.y[:0], {}, owner.rng, owner.learner, classes=3)
    data = Shard(owner.x, owner.y)
    inputs = {**parts, "memory": None, "data": data, "method": FedMatch(), "epochs": 1}
    out = run_phase(train_sigma, server, **inputs)
    assert isinstance(out.update, Mapping)
    assert not np.array_equal(out.update["sigma"], parts["sigma"])


def test_small_entries_are_not_tested() -> None:
    client, _ = normed_client(4)
    sigma = np.ones(3, np.float32)
    psi = np.array([1e-6, -1e-6, 0.5], np.float32)
    out = run_phase(compose, client, sigma=sigma, psi=psi, least=1e-5)
    assert isinstance(out.update, np.ndarray)
    assert out.update.tolist() == [1, 1, 1.5]


def test_a_batch_of_doubts_is_left_to_the_regulariser() -> None:
    client = make_client(8, labels=False)
    batch = next(iter(draw_batches(client, client.learner.training)))
    value = agree([], FedMatch(confidence=1.0))(client.learner.build(), batch)
    assert value is not None
    assert value.item() == 0


def keep_psi(client: Client) -> Out:
    return Out(state={"psi": np.full(1, client.id, np.float32)})


def test_the_nearest_clients_help() -> None:
    """Whoever was never seen gets none, and of few known clients there are few helpers."""
    fleet = fleet_of_numbers([1, 1, 1, 1, 1])
    fleet.map(keep_psi, [0, 1, 2, 3])
    rows = [[0.8, 0.1, 0.1], [0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]]
    known = {client: np.array(row) for client, row in enumerate(rows)}
    w = fleet.put(np.zeros(1, np.float32))
    state = Disjoint(w, w, w, known)
    found = FedMatch().find_helpers(state, fleet, 0)
    assert [fleet.get(ref)[0] for ref in found] == [1, 3]
    assert FedMatch().find_helpers(state, fleet, 4) == []
    few = Disjoint(w, w, w, {client: known[client] for client in (0, 2)})
    assert len(FedMatch().find_helpers(few, fleet, 0)) == 1


def test_helpers_come_in_every_so_manieth_round(tmp_path: Path) -> None:
    outcome = run_row(ROWS[0], tmp_path, 4)
    metrics = [record["metrics"] for record in outcome.history]
    asked = [found["helpers/clients"] for found in metrics]
    assert asked[0] == asked[2] == 0
    assert asked[3] > 0
    # Two more vectors for each client that is helped, and their passes.
    assert metrics[3]["cost/down_mb"] > metrics[2]["cost/down_mb"]
    assert all(0 <= found["sparse/sent"] <= 1 for found in metrics)


def test_a_pull_that_overshoots_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"2 \* lambda_l2 \* training.lr of FedMatch is below 1"):
        run_row(
            ROWS[0],
            tmp_path,
            method={"lambda_l2": 10.0},
            training={"optimizer": "sgd", "lr": 0.1},
        )


def test_clients_rest_while_the_server_pretrains(tmp_path: Path) -> None:
    outcome = run_row(ROWS[0], tmp_path, 3, method={"pretraining": 3})
    found = [record["metrics"]["clients/participants"] for record in outcome.history]
    assert found == [0, 0, 4]
