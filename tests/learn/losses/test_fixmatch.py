"""FixMatch's and UDA's losses of images without labels, against printed digits and the authors'
code."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rayfl.learn.augment.base import Unchanged
from rayfl.learn.batches import Batch, draw_batches
from rayfl.learn.losses.fixmatch import FixMatch, answer_both_views, fixmatch
from rayfl.learn.losses.uda import (
    UDA,
    anneal_signal,
    find_sure,
    mean_of_unlearnt,
    uda,
)
from rayfl.learn.losses.unlabelled import UNLABELLED, UnlabelledLoss
from tests.learn.kit import build_normed, make_client, make_learner

WEAK = torch.tensor([[4.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 5.0, 0.0]])
STRONG = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [2.0, 1.0, 0.0]])
MADE = [torch.sin(torch.arange(24.0) * k).view(6, 4) * 4 for k in (1.0, 1.7)]
"""Logits that the authors' lines were run on, of a weak and of a strong view."""


def draw_batch(labels: bool = False) -> Batch:
    client = make_client(12, labels=labels)
    return next(iter(draw_batches(client, client.learner.training)))


def test_cross_entropy_where_sure() -> None:
    found = fixmatch(WEAK, STRONG, 0.95)
    assert WEAK.softmax(1).amax(1).tolist() == pytest.approx(
        [0.964663, 0.506480, 0.986703], abs=1e-6
    )
    assert found.tolist() == pytest.approx([0.551445, 0, 1.407606], abs=1e-6)
    assert found.mean().item() == pytest.approx(0.653017, abs=1e-6)
    assert fixmatch(WEAK, STRONG, 0.0).tolist() == pytest.approx(
        [0.551445, 2.239545, 1.407606], abs=1e-6
    )


def test_divergence_from_the_sharpened_guess_where_sure() -> None:
    sharpened = (WEAK / 0.4).softmax(1).amax(1)
    assert sharpened.tolist() == pytest.approx([0.999909, 0.730679, 0.999993], abs=1e-6)
    assert uda(WEAK, STRONG, 0.0).tolist() == pytest.approx(
        [0.550537, 1.095454, 1.407505], abs=1e-6
    )
    assert uda(WEAK, STRONG).mean().item() == pytest.approx(0.652681, abs=1e-6)


def test_figures_of_the_public_fixmatch() -> None:
    """kekmodel/FixMatch-pytorch @ 040be3b, train.py, the lines from `pseudo_label` to `Lu`, run on
    MADE with T = 1 and these thresholds."""
    for threshold, expected in FIXMATCH_FIGURES.items():
        assert fixmatch(MADE[0], MADE[1], threshold).mean().item() == pytest.approx(
            expected, abs=1e-6
        )


FIXMATCH_FIGURES = {0.0: 3.664967, 0.8: 1.170370, 0.95: 0.988390}


@pytest.mark.parametrize("loss", [fixmatch, uda])
def test_a_guess_gets_no_gradient(loss: object) -> None:
    weak = WEAK.clone().requires_grad_()
    strong = STRONG.clone().requires_grad_()
    assert callable(loss)
    loss(weak, strong).mean().backward()
    assert weak.grad is None
    assert strong.grad is not None
    target = (WEAK / 0.4).softmax(1) if loss is uda else torch.eye(3)[WEAK.argmax(1)]
    expected = (STRONG.softmax(1) - target) / 3
    expected[1] = 0
    torch.testing.assert_close(strong.grad, expected)


def test_the_same_answer_to_both_views_leaves_uda_nothing() -> None:
    assert uda(WEAK, WEAK, 0.0, 1.0).abs().max().item() < 1e-6


def test_a_guess_at_the_threshold_is_fixmatchs_and_not_udas() -> None:
    even = torch.zeros(1, 2)
    assert fixmatch(even, even, 0.5).item() > 0
    assert not find_sure(even, 0.5).any()


@pytest.mark.parametrize(
    ("share", "annealing", "expected"),
    [
        (0.0, "linear", 0.1),
        (0.5, "linear", 0.55),
        (1.0, "linear", 1.0),
        (0.5, "exp", 0.173876),
        (0.5, "log", 0.926124),
        (0.0, "none", 1.0),
    ],
)
def test_annealing(share: float, annealing: str, expected: float) -> None:
    assert anneal_signal(share, 10, annealing) == pytest.approx(expected, abs=1e-6)  # type: ignore[arg-type]


def test_what_is_learnt_is_left_out() -> None:
    logits = torch.tensor([[3.0, 0.0], [0.0, 0.0], [0.0, 3.0]])
    y = torch.zeros(3, dtype=torch.int64)
    losses = torch.tensor([1.0, 2.0, 6.0])
    assert mean_of_unlearnt(losses, logits, y, 0.6).item() == 4
    assert mean_of_unlearnt(losses, logits, y, 1.0).item() == 3
    assert mean_of_unlearnt(losses, logits, y, 0.0).item() == 0


@pytest.mark.parametrize("name", UNLABELLED.names())
def test_both_ways_of_asking_agree_without_batch_statistics(name: str) -> None:
    """A network in evaluation mode answers one image like another's neighbour."""
    batch = draw_batch()
    net = make_learner(build_normed).build().eval()
    values = []
    for together in (True, False):
        loss = UNLABELLED.build(
            {"name": name, "threshold": 0.0, "strong": "none", "together": together}
        )
        values.append(loss(net, batch))
    assert all(isinstance(value, Tensor) for value in values)
    torch.testing.assert_close(*values)


def test_a_guess_apart_from_the_strong_view_holds_no_graph() -> None:
    weak, strong = answer_both_views(build_normed(), draw_batch(), Unchanged(), together=False)
    assert not weak.requires_grad
    assert strong.requires_grad


@pytest.mark.parametrize(
    "loss",
    [FixMatch(threshold=1.1, strong=Unchanged()), UDA(threshold=1.0, strong=Unchanged())],
    ids=["fixmatch", "uda"],
)
def test_a_batch_of_doubts_takes_no_step(loss: UnlabelledLoss) -> None:
    net: nn.Module = build_normed()
    assert loss(net, draw_batch()) is None
