"""FedLN-AKD: the distance to the encoder, who distils, what stays at the client, what is sent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rayfl.algorithms.fedln_akd import (
    FedLNAKD,
    cut_head,
    distil,
    estimate_noise,
    insert_head,
)
from rayfl.learn.batches import Batch
from rayfl.protocol import Client
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config

SMALL = {"name": "fedln_akd", "encoder": "pixels", "strength": 1.0}
ADAPTIVE = {**SMALL, "adaptive": True}
PLAIN = {**SMALL, "strength": 0.0}

ROWS = [
    Row(
        "fedln_akd",
        SMALL,
        config={"training": {"epochs": 4}},
        refused=[
            ({"strength": -1.0}, "strength"),
            ({"k": 0}, "method.k"),
            ({"least": 1.5}, "least"),
            ({"encoder": "hogg"}, "unknown encoder 'hogg'"),
        ],
    ),
    Row("fedln_akd_adaptive", ADAPTIVE, config={"training": {"epochs": 4}}),
]


# -- the loss --------------------------------------------------------------------------------------


@dataclass
class Holder:
    """What the loss, and the estimate of noise, read of a client."""

    features: dict[str, NDArray[np.float32]]
    y: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))


@dataclass
class Rows:
    """A batch of some of the client's images."""

    x: Tensor
    y: Tensor
    index: Tensor

    def take(self, values: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(values)[self.index]


class Given(nn.Module):
    """Embeddings and logits that are parameters."""

    def __init__(self, embeddings: Any, logits: Any) -> None:
        super().__init__()
        self.e = nn.Parameter(torch.tensor(embeddings, dtype=torch.float32))
        self.z = nn.Parameter(torch.tensor(logits, dtype=torch.float32))

    def features(self, x: Tensor) -> Tensor:
        return x

    def embedding(self, x: Tensor) -> Tensor:
        return self.e[x]

    def head(self, x: Tensor) -> Tensor:
        return self.z[x]


EMBEDDINGS = [[1.0, 2.0], [0.0, 0.0]]
TARGETS = np.array([[0.0, 2.5], [1.0, -1.0]], np.float32)
HALF = float(-np.log(np.expm1(0.5)))
"""A logit beside 0 whose cross-entropy is 0.5."""


def loss_of(net: nn.Module, strength: float, order: list[int], targets: Any = TARGETS) -> Tensor:
    client = cast(Client, Holder({"reference": targets}))
    places = torch.tensor(order)
    batch = Rows(places, torch.zeros(len(order), dtype=torch.int64), places)
    value = distil(client, FedLNAKD(strength=strength))(net, cast(Batch, batch))
    assert value is not None
    return value


@pytest.mark.parametrize(("strength", "expected"), [(10.0, 9.25), (3.0, 3.125), (0.0, 0.5)])
@pytest.mark.parametrize("order", [[0, 1], [1, 0]])
def test_the_distance_is_a_mean_over_batch_and_dimension(
    strength: float, expected: float, order: list[int]
) -> None:
    net = Given(EMBEDDINGS, [[HALF, 0.0]] * 2)
    assert loss_of(net, strength, order).item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("far", [1.0, 1000.0])
def test_the_gradient_does_not_depend_on_the_size_of_the_error(far: float) -> None:
    net = Given(EMBEDDINGS, [[0.0, 0.0]] * 2)
    loss_of(net, 10.0, [0, 1], TARGETS * far).backward()  # type: ignore[no-untyped-call]
    sign = np.sign(np.array(EMBEDDINGS) - TARGETS * far)
    assert net.e.grad is not None
    assert net.e.grad.tolist() == (10.0 * sign / 4).tolist()


def test_rows_and_embeddings_go_together() -> None:
    """Another order of the samples, with their embeddings, has the same loss."""
    rng = np.random.default_rng(0)
    embeddings, logits = rng.normal(size=(5, 3)), rng.normal(size=(5, 2))
    targets = rng.normal(size=(5, 3)).astype(np.float32)
    order = [3, 0, 4, 1, 2]
    straight = loss_of(Given(embeddings, logits), 10.0, list(range(5)), targets)
    turned = loss_of(Given(embeddings[order], logits[order]), 10.0, list(range(5)), targets[order])
    mixed_up = loss_of(Given(embeddings[order], logits[order]), 10.0, list(range(5)), targets)
    assert turned.item() == pytest.approx(straight.item(), rel=1e-6)
    assert mixed_up.item() != pytest.approx(straight.item(), rel=1e-3)


# -- who distils -----------------------------------------------------------------------------------

LINE = np.array([[0], [1], [2], [10], [11], [12]], np.float32)


@pytest.mark.parametrize(
    ("labels", "k", "least", "nu"),
    [
        ([0, 0, 1, 1, 1, 0], 3, 0.15, 1 / 3),
        ([0, 0, 1, 1, 1, 0], 3, 0.34, 0.0),
        ([0, 0, 1, 1, 1, 0], 1, 0.15, 0.0),
        ([0, 0, 0, 1, 1, 1], 3, 0.0, 0.0),
        ([0, 0, 0, 1, 1, 1], 10, 0.15, 0.5),
    ],
)
def test_how_noisy_labels_look(labels: list[int], k: int, least: float, nu: float) -> None:
    client = cast(Client, Holder({"reference": LINE}, np.array(labels)))
    assert estimate_noise(client, FedLNAKD(k=k, least=least)) == pytest.approx(nu)


def test_one_sample_looks_clean() -> None:
    client = cast(Client, Holder({"reference": LINE[:1]}, np.array([3])))
    assert estimate_noise(client, FedLNAKD()) == 0.0


# Figures of the authors' code: FederatedML/FedLN @ 01e4afe, src/utils/knn_relabel.py
# estimate_noise_with_pretrained_knn; stha-prashant/baseline_FedLN @ d5f9cf2, src/utils/distiller.py
# Distiller, one step of SGD at 0.1.

POINTS = [
    [-0.12, 0.09, -2.32],
    [0.19, -1.03, -0.7],
    [-1.47, -1.52, -0.94],
    [2.33, 3.17, 1.47],
    [2.59, 1.24, -0.41],
    [0.15, 0.45, -0.43],
    [0.3, 0.57, -0.86],
    [0.02, 1.28, 1.29],
    [-0.35, 0.99, 1.73],
    [1.08, 2.2, 2.44],
    [0.71, 1.05, -0.39],
    [0.74, 2.02, 0.8],
    [0.88, 2.11, 2.76],
    [0.37, -0.56, 1.54],
    [-1.25, 0.5, -0.02],
    [-1.19, 1.22, 0.35],
    [-1.17, 0.6, -0.43],
    [-1.9, -0.69, 0.26],
    [0.64, 0.17, 0.05],
    [0.47, -0.21, 1.18],
    [1.65, 1.79, 2.04],
    [-1.06, -0.71, 1.53],
    [0.34, -0.28, 0.34],
    [1.02, 1.78, 0.83],
]
LABELS = [0, 0, 3, 1, 1, 2, 2, 1, 0, 1, 3, 2, 1, 0, 2, 0, 3, 2, 2, 2, 1, 3, 0, 1]


@pytest.mark.parametrize(("k", "nu"), [(3, 0.4166666666666667), (10, 0.5416666666666666)])
def test_noise_estimates_of_the_authors(k: int, nu: float) -> None:
    client = cast(Client, Holder({"reference": np.array(POINTS, np.float32)}, np.array(LABELS)))
    assert estimate_noise(client, FedLNAKD(k=k)) == nu


def test_a_client_of_few_classes_is_not_noisy_for_that() -> None:
    """The authors' code takes the places of its two labels for labels, and finds 1.0 here."""
    held = np.array(LABELS) % 2 == 1
    features = {"reference": np.array(POINTS, np.float32)[held]}
    client = cast(Client, Holder(features, np.array(LABELS)[held]))
    assert estimate_noise(client, FedLNAKD(k=3)) < 0.5


IMAGES = [
    [1.0, 0.47, 0.26],
    [0.95, 0.16, 0.34],
    [-0.13, 0.63, -0.94],
    [0.79, -0.51, -1.09],
    [0.37, 1.69, 0.96],
    [-0.52, 0.7, -0.45],
]
SIGNALS = [[0.34, -0.31], [0.19, -1.81], [-1.15, 0.46], [-0.04, 1.64], [-0.7, 0.17], [2.91, -0.77]]


class TwoLayers(nn.Module):
    """One hidden layer, a class head, an embedding head."""

    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Linear(3, 4)
        self.h = nn.Linear(4, 3)
        self.e = nn.Linear(4, 2)

    def features(self, x: Tensor) -> Tensor:
        return torch.relu(self.g(x))

    def head(self, z: Tensor) -> Tensor:
        return cast(Tensor, self.h(z))

    def embedding(self, z: Tensor) -> Tensor:
        return cast(Tensor, self.e(z))


FIRST: dict[str, Any] = {
    "g.weight": [
        [-0.0, 0.31, -0.48],
        [-0.42, -0.22, 0.15],
        [-0.01, 0.46, -0.05],
        [0.15, -0.17, -0.11],
    ],
    "g.bias": [-0.55, -0.38, -0.24, 0.02],
    "h.weight": [[0.2, 0.3, -0.34, -0.22], [0.18, 0.42, -0.1, 0.37], [-0.08, 0.05, 0.45, -0.46]],
    "h.bias": [-0.31, -0.13, -0.19],
    "e.weight": [[0.43, -0.32, -0.23, -0.35], [-0.47, -0.29, 0.43, 0.22]],
    "e.bias": [0.24, 0.03],
}
THEN: dict[str, Any] = {
    "g.bias": [-0.47792381048202515, -0.37999999523162, -0.28357642889022827, 0.12802425026893616],
    "h.bias": [-0.30521267652511597, -0.13359838724136353, -0.19118891656398773],
    "e.weight": [
        [0.43804168701171875, -0.31999999284744, -0.1904916763305664, -0.3920416533946991],
        [-0.4780416786670685, -0.28999999165534973, 0.39049166440963745, 0.24572500586509705],
    ],
    "e.bias": [0.07333333045244217, 0.029999999329447746],
}


def test_a_step_of_the_authors() -> None:
    net = TwoLayers()
    net.load_state_dict({name: torch.tensor(values) for name, values in FIRST.items()})
    places = torch.tensor([3, 1, 0, 2, 5, 4])
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    # Their batch has image i beside signal `places[i]`.
    batch = cast(Batch, Rows(torch.tensor(IMAGES), labels, places))
    client = cast(Client, Holder({"reference": np.array(SIGNALS, np.float32)}))
    value = distil(client, FedLNAKD(strength=10.0))(net, batch)
    assert value is not None
    assert value.item() == pytest.approx(1.1035112142562866 + 10 * 0.8809639811515808, abs=1e-5)
    value.backward()  # type: ignore[no-untyped-call]
    for name, parameter in net.named_parameters():
        if name in THEN:
            after = parameter.detach() - 0.1 * cast(Tensor, parameter.grad)
            np.testing.assert_allclose(after.numpy(), THEN[name], atol=1e-6)


# -- rounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [PLAIN, {**PLAIN, "adaptive": True}])
def test_without_strength_trunk_and_class_head_are_federated_averagings(
    method: dict[str, Any], tmp_path: Path
) -> None:
    plain, _ = run_toy(toy_config(ROWS[0], tmp_path, {"name": "fedavg"}), directory="plain")
    distilled, _ = run_toy(toy_config(ROWS[0], tmp_path, method), directory="distilled")
    size = len(plain.models[None])
    assert len(distilled.models[None]) == size + 17 * 64
    assert np.array_equal(distilled.models[None][:size], plain.models[None])


def test_embedding_heads_of_adaptive_clients_stay_with_them(tmp_path: Path) -> None:
    noise = {"name": "symmetric", "rate": [0.0, 0.0, 0.0, 0.6, 0.6, 0.6]}
    config = toy_config(ROWS[1], tmp_path, noise=noise, training={"clients_per_round": 6})
    outcome, fleet = run_toy(shortened(config, 2))
    states = {k: fleet.table[k] for k in fleet.clients}
    assert {k for k in states if "head" in states[k]} == {3, 4, 5}
    heads = [fleet.get(states[k]["head"]) for k in (3, 4, 5)]
    assert all(len(head) == 17 * 64 for head in heads)
    assert not np.array_equal(heads[0], heads[1])
    # What is tested has the embedding head that the run began with.
    first = fleet.get(fleet.initial())
    assert np.array_equal(outcome.models[None][-17 * 64 :], first[-17 * 64 :])


def test_noise_looks_as_it_is(tmp_path: Path) -> None:
    config = toy_config(ROWS[1], tmp_path, training={"clients_per_round": 6})
    outcome, _ = run_toy(shortened(config, 1))
    metrics = outcome.history[0]["metrics"]
    assert metrics["nu/noise_correlation"] > 0.8
    assert 0 < metrics["fedln_akd/distilling"] <= 1


@pytest.mark.parametrize(("method", "more"), [(SMALL, 17 * 64), (ADAPTIVE, 0)])
def test_what_is_sent_and_what_is_computed(
    method: dict[str, Any], more: int, tmp_path: Path
) -> None:
    plain, _ = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, {"name": "fedavg"}), 1), directory="plain"
    )
    distilled, _ = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, method), 1), directory="distilled"
    )
    before, after = plain.history[0]["metrics"], distilled.history[0]["metrics"]
    for way in ("up_mb", "down_mb"):
        sent = 4 * 4 * more / 1e6
        assert after[f"cost/{way}"] - before[f"cost/{way}"] == pytest.approx(sent, abs=1e-9)
    for way in ("forward", "backward", "server_forward", "server_backward"):
        assert after[f"cost/{way}"] == before[f"cost/{way}"]


def test_a_head_is_cut_out_and_put_back() -> None:
    w = np.arange(10, dtype=np.float32)
    shared = cut_head(w, slice(4, 7))
    assert shared.tolist() == [0, 1, 2, 3, 7, 8, 9]
    assert np.array_equal(insert_head(shared, w[4:7], slice(4, 7)), w)
