"""(FL)^2: thresholds, perturbations and weights by hand and by the authors' code, and a client's
step against one that is worked out with torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from rayfl.algorithms.fl2 import (
    FL2,
    Sharpness,
    adapt_thresholds,
    find_weights,
    perturb,
    weigh_by_doubt,
)
from rayfl.learn.losses.distillation import kl_divergence
from rayfl.learn.resident import Resident
from tests.algorithms.conformance import Row
from tests.algorithms.semi_toys import SERVED, STRONG, run_row
from tests.learn.kit import build_normed

METHOD: dict[str, Any] = {
    "name": "fl2",
    "server_epochs": 4,
    "threshold": 0.5,
    "pretraining": 4,
    "strong": STRONG,
}

ROWS = [
    Row(
        "fl2",
        METHOD,
        {**SERVED, "training": {**SERVED["training"], "rounds": 6}},
        neutral={**METHOD, "rho": 0.0},
        same_as={**METHOD, "strength": 0.0},
        refused=[
            ({"rho": -0.1}, "rho"),
            ({"strength": -1}, "strength"),
            ({"beta_g": 2}, "beta_g"),
            ({"clip": 0}, "clip"),
        ],
    )
]

Q = np.array([[0.9, 0.05, 0.05], [0.5, 0.4, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]])


def test_thresholds_of_a_client() -> None:
    tau, by_class = adapt_thresholds(Q)
    assert tau == pytest.approx(0.625)
    assert by_class.tolist() == pytest.approx([0.625, 0.476974, 0.213816], abs=1e-6)
    assert (Q.max(1) >= by_class[Q.argmax(1)]).tolist() == [True, False, True, True]


MADE = [torch.sin(torch.arange(24.0) * k).view(6, 4) * 4 for k in (1.0, 1.7)]
"""Logits that the authors' functions were run on (seungjoo-ai/FLFL-NeurIPS24 @ decdf7d)."""


def test_figures_of_the_authors_thresholds() -> None:
    """The lines of make_pseudo_lb_dataset (algorithm/flfl.py) from `global_t` to `mask`."""
    q = MADE[0].double().softmax(1).numpy()
    tau, by_class = adapt_thresholds(q)
    assert tau == pytest.approx(0.758584, abs=1e-6)
    assert by_class.tolist() == pytest.approx([0.617540, 0.380915, 0.505965, 0.758584], abs=1e-6)
    assert (q.max(1) >= by_class[q.argmax(1)]).tolist() == [True] * 5 + [False]


def test_figure_of_the_authors_divergence() -> None:
    """kldiv_with_mask (algorithm/criterion.py) of three rows out of six."""
    mask = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 0.0])
    found = (kl_divergence(MADE[0].softmax(1), MADE[1]) * mask).mean()
    assert found.item() == pytest.approx(1.353569, abs=1e-5)


def test_figures_of_the_authors_perturbation() -> None:
    """ASAM.first_step (algorithm/sam.py) on a weight of 2 x 3 and a bias of 2, rho 0.1."""
    weights = torch.cat([torch.sin(torch.arange(6.0)), torch.cos(torch.arange(2.0))])
    gradient = torch.cat([torch.cos(torch.arange(6.0) * 2), torch.sin(torch.arange(2.0) + 1)])
    epsilon = perturb(weights, gradient, torch.arange(8) < 6, 0.1)
    of_weight = [6.07e-06, -0.0183069, -0.0335183, 0.0013305, -0.0051911, -0.0477977]
    assert epsilon.tolist() == pytest.approx([*of_weight, 0.0510584, 0.0551739], abs=1e-6)


def test_nobody_is_left_out_where_nothing_is_known() -> None:
    even = np.full((5, 4), 0.25)
    tau, by_class = adapt_thresholds(even)
    assert tau == 0.25
    assert (even.max(1) >= by_class[even.argmax(1)]).all()


@pytest.mark.parametrize("seed", range(5))
def test_the_surest_image_is_always_chosen(seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(7, 4))
    q = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    tau, by_class = adapt_thresholds(q)
    assert 0.25 <= tau <= 1
    assert by_class.max() == tau
    assert (q.max(1) >= by_class[q.argmax(1)]).any()


@pytest.mark.parametrize(
    ("taus", "expected"),
    [((0.9, 0.6, 0.5), (0.1, 0.4, 0.5)), ((0.7, 0.7), (0.5, 0.5)), ((1.0, 1.0), (0.5, 0.5))],
)
def test_doubt_counts(taus: tuple[float, ...], expected: tuple[float, ...]) -> None:
    found = weigh_by_doubt(dict(enumerate(taus)))
    assert tuple(found.values()) == pytest.approx(expected)


def test_a_perturbation_by_the_size_of_weights() -> None:
    w, g = torch.tensor([2.0, -0.5]), torch.tensor([0.3, 0.4])
    both = torch.tensor([True, True])
    epsilon = perturb(w, g, both, 0.1)
    assert epsilon.tolist() == pytest.approx([0.190399, 0.016344], abs=1e-6)
    assert torch.linalg.vector_norm(epsilon / (w.abs() + 0.01)).item() == pytest.approx(0.1)
    assert perturb(w, g, ~both, 0.1).tolist() == pytest.approx([0.06, 0.08])
    assert not perturb(w, torch.zeros(2), both, 0.1).any()


def test_divergence_of_the_perturbed_answer() -> None:
    teacher = torch.tensor([[2.0, 0.0, 0.0]]).softmax(1)
    found = kl_divergence(teacher, torch.tensor([[1.0, 0.0, 1.0]]))
    assert found.item() == pytest.approx(0.302929, abs=1e-6)


def make_network() -> tuple[nn.Module, Resident]:
    net = build_normed()
    return net, Resident(net, torch.device("cpu"))


def test_weights_are_told_from_others_by_name() -> None:
    net, network = make_network()
    named = dict(net.named_parameters())
    count = sum(p.numel() for name, p in named.items() if "weight" in name)
    assert find_weights(network).sum().item() == count < network.n_parameters


def compute_with_torch(view: Tensor, y: Tensor, sure: Tensor, rho: float) -> list[Tensor]:
    """Grad L_cs at W*, by a copy of the network, tensor by tensor as in ASAM.first_step."""
    net = build_normed()
    logits = net(view)
    loss = functional.cross_entropy(logits[sure], y[sure])
    gradients = torch.autograd.grad(loss, list(net.parameters()))
    names = [name for name, _ in net.named_parameters()]
    scales = [
        p.detach().abs() + 0.01 if "weight" in name else torch.ones_like(p)
        for name, p in zip(names, net.parameters(), strict=True)
    ]
    pairs = list(zip(scales, gradients, strict=True))
    norm = torch.stack([(t * g).norm() for t, g in pairs]).norm()
    with torch.no_grad():
        for p, (t, g) in zip(net.parameters(), pairs, strict=True):
            p.add_(t * t * g * rho / norm)
    gaps = kl_divergence(logits.detach().softmax(1), net(view)) * sure
    return list(torch.autograd.grad(gaps.mean(), list(net.parameters())))


def test_the_gradient_is_that_at_the_perturbed_model() -> None:
    """And the model is the one from before, bit by bit."""
    net, network = make_network()
    generator = torch.Generator().manual_seed(3)
    view = torch.randn(6, 1, 4, 4, generator=generator)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    sure = torch.tensor([True, True, False, True, False, False])
    network.gradient.zero_()
    before = network.parameters.clone()
    sharpness = Sharpness(network, find_weights(network), FL2(rho=0.1))
    sharpness.add_gradient(net, view, y, sure)
    assert torch.equal(network.parameters, before)
    expected = compute_with_torch(view, y, sure, 0.1)
    for parameter, wanted in zip(net.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, wanted, atol=1e-6, rtol=1e-4)
    assert max(float(found.abs().max()) for found in expected) > 1e-4


@pytest.mark.parametrize(("threshold", "passes"), [(0.0, 3), (1.1, 1)])
def test_passes_of_a_step(threshold: float, passes: int, tmp_path: Path) -> None:
    """With consistency a batch goes through the network three times and back three times."""
    found = run_row(
        ROWS[0], tmp_path, 1, method={"threshold": threshold, "pretraining": 0}
    ).history[0]["metrics"]
    judged = found["cost/forward"] - found["cost/backward"]
    chosen = found["pseudo/chosen"]
    assert 0 < chosen <= 1
    assert found["cost/backward"] == pytest.approx(passes * 2 * chosen * judged, rel=0.05)


def test_clients_rest_while_the_server_pretrains(tmp_path: Path) -> None:
    outcome = run_row(ROWS[0], tmp_path, 3, method={"pretraining": 6})
    found = [record["metrics"]["clients/participants"] for record in outcome.history]
    assert found == [0, 0, 4]


def test_sharpness_changes_what_is_learnt(tmp_path: Path) -> None:
    at_once = {"threshold": 0.0, "pretraining": 0}
    hashes = {
        run_row(ROWS[0], tmp_path, 2, str(rho), method={"rho": rho, **at_once}).sha256
        for rho in (0.0, 0.1, 1.0)
    }
    assert len(hashes) == 3
