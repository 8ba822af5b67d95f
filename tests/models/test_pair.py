"""Pairs of networks: the answers of both kinds against numpy, and what is no pair."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfl.errors import ConfigError
from rayfl.models.mlp import MLP
from rayfl.models.network import Network, build_network
from rayfl.models.pair import Answer, Pair


def perceptron(seed: int, classes: int = 4) -> Network:
    return build_network(MLP(hidden=(5,)), (3, 3, 1), classes, seed)


class Fixed(nn.Module):
    """Answers the same logits whatever it sees."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor([logits]))

    def forward(self, x: Tensor) -> Tensor:
        return self.logits.expand(len(x), -1)


def images() -> Tensor:
    return torch.rand(6, 1, 3, 3, generator=torch.Generator().manual_seed(1))


def test_the_first_answers_its_own_logits_bit_by_bit() -> None:
    a, b = perceptron(0), perceptron(1)
    assert torch.equal(Pair(a, b)(images()), a(images()))


def test_the_mean_is_that_of_the_two_distributions() -> None:
    """exp(1) : 1 is 0.7311 : 0.2689, exp(-2) : 1 is 0.1192 : 0.8808; their mean is 0.4251."""
    pair = Pair(Fixed(1.0, 0.0), Fixed(-2.0, 0.0), answer="mean")
    answered = pair(torch.zeros(1, 1)).exp()[0]
    np.testing.assert_allclose(answered.tolist(), [0.42513, 0.57487], atol=5e-6)


def test_the_mean_equals_softmax_by_hand() -> None:
    a, b = perceptron(0), perceptron(1)
    answered = Pair(a, b, answer="mean")(images())
    both = [np.exp(net(images()).detach().numpy().astype(np.float64)) for net in (a, b)]
    mean = sum(part / part.sum(axis=1, keepdims=True) for part in both) / 2
    np.testing.assert_allclose(answered.detach().numpy(), np.log(mean), rtol=1e-5)


def test_a_probability_that_no_float_holds_keeps_its_logarithm() -> None:
    pair = Pair(Fixed(200.0, 0.0), Fixed(200.0, 0.0), answer="mean")
    assert pair(torch.zeros(1, 1))[0].tolist() == [0.0, -200.0]


@pytest.mark.parametrize("answer", ["first", "mean"])
def test_both_networks_travel_in_one_state(answer: Answer) -> None:
    pair = Pair(perceptron(0), perceptron(1), answer)
    other = Pair(perceptron(2), perceptron(3), answer)
    other.load_state_dict(pair.state_dict())
    assert torch.equal(other(images()), pair(images()))
    assert {name.split(".")[0] for name in pair.state_dict()} == {"a", "b"}


@pytest.mark.parametrize("answer", ["first", "mean"])
def test_evaluation_reaches_both(answer: Answer) -> None:
    pair = Pair(perceptron(0), perceptron(1), answer).eval()
    assert not pair.a.training
    assert not pair.b.training


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (perceptron(0), perceptron(1, classes=3)),
            r"head\.bias \(4,\) and \(3,\)",
        ),
        ((perceptron(0), nn.Flatten()), r"same tensors; got head\.bias \(4,\) and None"),
        ((perceptron(0), perceptron(1), "last"), "first or mean; got 'last'"),
    ],
)
def test_what_is_no_pair_is_refused(arguments: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Pair(*arguments)
