"""The losses that a configuration can name: neutral settings, rows that know nothing of each other,
labels against rows of probabilities."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from rayfl.errors import ConfigError
from rayfl.learn.losses import LOSSES, CrossEntropy, SampleLoss
from rayfl.learn.losses.gce import GeneralisedCrossEntropy
from rayfl.learn.losses.logit_clip import LogitClip
from rayfl.learn.losses.symmetric_ce import SymmetricCrossEntropy

NEUTRAL = [
    CrossEntropy(),
    GeneralisedCrossEntropy(gamma=0),
    SymmetricCrossEntropy(alpha=1, beta=0),
    LogitClip(tau=None),
]


def kind(loss: SampleLoss) -> str:
    return type(loss).__name__


def answers(n: int = 9, classes: int = 5) -> tuple[Tensor, Tensor]:
    logits = 3 * torch.randn(n, classes, generator=torch.Generator().manual_seed(2))
    return logits, torch.arange(n) % classes


@pytest.mark.parametrize("loss", NEUTRAL, ids=kind)
def test_neutral_settings_are_cross_entropy_bit_by_bit(loss: SampleLoss) -> None:
    logits, y = answers()
    for targets in (y, F.one_hot(y, 5).float(), logits.softmax(1)):
        leaf = logits.clone().requires_grad_()
        plain = logits.clone().requires_grad_()
        ours, theirs = loss(leaf, targets), F.cross_entropy(plain, targets, reduction="none")
        assert torch.equal(ours, theirs)
        mean, plain_mean = loss.mean(leaf, targets), F.cross_entropy(plain, targets)
        assert torch.equal(mean, plain_mean)
        (slope,) = torch.autograd.grad(mean, leaf)
        assert torch.equal(slope, torch.autograd.grad(plain_mean, plain)[0])


@pytest.mark.parametrize("name", LOSSES.names())
def test_every_row_has_the_loss_that_it_has_alone(name: str) -> None:
    loss, (logits, y) = LOSSES.build(name), answers(12)
    for targets in (y, logits.flip(0).softmax(1)):
        together = loss(logits, targets)
        assert together.shape == (12,)
        parts = [loss(logits[at], targets[at]) for at in (slice(0, 5), slice(5, 12))]
        assert torch.equal(together, torch.cat(parts))


@pytest.mark.parametrize("name", LOSSES.names())
def test_the_loss_of_a_batch_is_the_mean(name: str) -> None:
    loss, (logits, y) = LOSSES.build(name), answers()
    torch.testing.assert_close(loss.mean(logits, y), loss(logits, y).mean())


@pytest.mark.parametrize("name", LOSSES.names())
def test_a_one_hot_row_is_a_label(name: str) -> None:
    loss, (logits, y) = LOSSES.build(name), answers()
    rows = F.one_hot(y, 5).float()
    torch.testing.assert_close(loss(logits, rows), loss(logits, y), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["ce", "gce", "logitclip"])
def test_a_row_is_the_mean_over_its_labels(name: str) -> None:
    loss, (logits, _) = LOSSES.build(name), answers()
    rows = logits.flip(0).softmax(1)
    of_classes = torch.stack([loss(logits, torch.full((9,), c)) for c in range(5)], dim=1)
    torch.testing.assert_close(loss(logits, rows), (rows * of_classes).sum(1))


def test_symmetric_cross_entropy_of_a_row_by_hand() -> None:
    p, q = [0.7, 0.2, 0.1], [0.6, 0.4, 0.0]
    ce = -(0.6 * -0.356675 + 0.4 * -1.609438)
    reverse = -(0.7 * -0.510826 + 0.2 * -0.916291 + 0.1 * -9.210340)
    loss = SymmetricCrossEntropy(alpha=0.5, beta=0.5)(torch.tensor([p]).log(), torch.tensor([q]))
    assert loss.item() == pytest.approx(0.5 * ce + 0.5 * reverse, abs=2e-6)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"name": "symce"}, 0.804275),
        ({"name": "symce", "alpha": 0.1, "beta": 1.0}, 1.455688),
        (
            {"name": "logitclip"},
            F.cross_entropy(torch.tensor([[2.0, 0, -1]]) / 5**0.5, torch.tensor([0])).item(),
        ),
        ({"name": "gce", "gamma": 1.0}, 1 - 0.843795),
        ({"name": "ce"}, 0.169846),
    ],
)
def test_values_of_the_settings(settings: dict[str, object], expected: float) -> None:
    loss = LOSSES.build(settings)
    value = loss(torch.tensor([[2.0, 0.0, -1.0]]), torch.tensor([0]))
    assert value.item() == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize(("norm", "length"), [(1.0, 7.0), (2.0, 5.0), (4.0, 337**0.25)])
def test_logits_are_clipped_by_any_norm(norm: float, length: float) -> None:
    logits, y = torch.tensor([[3.0, -4.0]]), torch.tensor([0])
    expected = F.cross_entropy(logits / length * 0.5, y)
    assert LogitClip(tau=0.5, norm=norm)(logits, y).item() == pytest.approx(expected.item())


def test_a_loss_is_its_settings() -> None:
    built = LOSSES.build({"name": "gce", "gamma": 0.4})
    assert built == GeneralisedCrossEntropy(gamma=0.4)
    assert LOSSES.describe(built) == {"name": "gce", "gamma": 0.4}
    assert LOSSES.describe(LogitClip(tau=None))["tau"] is None


@pytest.mark.parametrize(
    "settings",
    [
        {"name": "gce", "gamma": 1.5},
        {"name": "logitclip", "tau": 0.0},
        {"name": "logitclip", "norm": -1},
        {"name": "symce", "beta": -1},
        {"name": "symce", "gamma": 1},
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=r"greater than|less than|Unexpected keyword"):
        LOSSES.build(settings)


def test_an_unknown_loss_is_named() -> None:
    with pytest.raises(ConfigError, match=r"unknown loss 'gec'. Did you mean"):
        LOSSES.build("gec")


def test_naming_a_loss_loads_no_torch() -> None:
    program = (
        "import sys; from rayfl.learn.losses import CrossEntropy, LOSSES; "
        "CrossEntropy(); LOSSES.build('ce'); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
