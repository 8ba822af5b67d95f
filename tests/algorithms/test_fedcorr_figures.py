"""FedCorr against figures that its authors' code gave, Xu-Jingyi/FedCorr @ d9c0d86: util/util.py
lid_term and get_output; main.py, mixtures and new labels; util/local_training.py
LocalUpdate.update_weights on a linear network."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.fedcorr import (
    AS_SCIKIT_LEARN,
    FedCorr,
    NormPull,
    estimate_level,
    find_noisy,
    find_worst,
    soften_losses,
)
from rayfl.arrays import Floats
from rayfl.estimate.lid import local_intrinsic_dimensionality, mean_lid
from rayfl.estimate.probabilities import softmax
from rayfl.learn.batches import Batch
from rayfl.learn.relabel import relabel_confident


def draw_outputs() -> Floats:
    """Class probabilities of thirty samples."""
    return softmax(np.random.default_rng(11).normal(size=(30, 4)).round(2) * 2)


GIVEN = [2, 0, 3, 2, 1, 2, 0, 1, 1, 2, 0, 1, 0, 0, 0, 1, 3, 1, 0, 3, 2, 0, 0, 0, 3, 2, 2, 3, 1, 3]


@pytest.mark.parametrize(
    ("samples", "k", "first", "mean", "factor"),
    [
        (30, 5, [3.4393144294623417, 2.641827172174094, 4.654998830011602], 3.256512736470519, 1.0),
        (30, 20, [2.332557157288644, 1.1350721765639, 1.1656924535544484], 2.008276184391349, 1.0),
        # With eleven neighbours theirs keeps 20 in the numerator.
        (12, 20, [3.6572240444892, 2.25424689561783, 2.0204837550198], 3.50913922099487, 20 / 11),
    ],
)
def test_dimensions_of_the_authors(
    samples: int, k: int, first: list[float], mean: float, factor: float
) -> None:
    found = factor * local_intrinsic_dimensionality(draw_outputs()[:samples], k)
    assert found[:3].tolist() == pytest.approx(first, rel=1e-4)
    assert found.mean() == pytest.approx(mean, rel=1e-4)
    assert factor * mean_lid(draw_outputs()[:samples], k) == pytest.approx(mean, rel=1e-4)


def test_losses_of_the_authors() -> None:
    found = soften_losses(draw_outputs(), np.array(GIVEN))
    first = [1.254037857055664, 1.55215585231781, 1.6676955223083496, 1.5918283462524414]
    assert found[:4].tolist() == pytest.approx(first, abs=1e-6)
    assert found.mean() == pytest.approx(1.4849759340286255, abs=1e-6)


SKEWED = [3.654, 4.224, 2.488, 1.642, 1.214, 2.518, 2.151, 2.55, 4.859, 1.748, 7.482, 6.915]
SKEWED += [1.541, 3.487, 3.653, 2.961, 2.406, 2.878, 3.81, 3.203]
TWO_GROUPS = [1.009295, 0.95522, 0.98355, 0.950435, 1.038799, 1.001411, 1.058129, 0.867135]
TWO_GROUPS += [1.088778, 0.92373, 0.926572, 0.980256, 1.487323, 1.658225, 1.485167, 1.386104]
TWO_GROUPS += [1.430839, 1.862397, 1.608852, 1.366494]


@pytest.mark.parametrize(
    ("values", "noisy", "means"),
    [
        ([0.10, 0.20, 0.15, 0.90, 1.00], [3, 4], [0.15, 0.95]),
        (SKEWED, [10, 11], [2.8327501544155496, 7.198574859548129]),
        (TWO_GROUPS, list(range(12, 20)), [0.981680339118029, 1.5334926288215942]),
    ],
)
def test_mixtures_of_the_authors(values: list[float], noisy: list[int], means: list[float]) -> None:
    assert find_noisy(dict(enumerate(values))) == noisy
    assert AS_SCIKIT_LEARN.fit(values).means == pytest.approx(means, rel=1e-3)


def test_new_labels_of_the_authors() -> None:
    """Of thirty samples 27 are called noisy; of the 13 of largest loss, twelve get the answer of a
    global model: here the local one's for the sample before."""
    y = np.array(GIVEN)
    losses = soften_losses(draw_outputs(), y)
    assert estimate_level(losses) == pytest.approx(0.9)
    worst = find_worst(losses, 0.9, 0.5)
    client = SimpleNamespace(id=0, y=y, classes=4)
    answers = np.roll(draw_outputs(), 1, axis=0)
    new = relabel_confident(client, answers, 0.5, among=worst)["y"]
    expected = y.copy()
    expected[[2, 3, 4, 6, 9, 17, 18, 20, 22, 23, 28, 29]] = [2, 2, 0, 2, 2, 2, 2, 1, 0, 2, 2, 0]
    assert new.tolist() == expected.tolist()


X = [
    [1.0, 0.47, 0.26],
    [0.95, 0.16, 0.34],
    [-0.13, 0.63, -0.94],
    [0.79, -0.51, -1.09],
    [0.37, 1.69, 0.96],
    [-0.52, 0.7, -0.45],
]
W_G = [0.01, -1.56, 1.79, -1.52, 0.48, 0.54, -1.45, 0.3]
NEAR = [-0.033739760518074, -1.5668919086456299, 1.7974295616149902, -1.4762603044509888]
NEAR += [0.4868919551372528, 0.5325703620910645, -1.4753403663635254, 0.3253403902053833]
FREE = [0.06145801022648811, -1.4839556217193604, 1.6047152280807495, -1.5714577436447144]
FREE += [0.4039556086063385, 0.72528475522995, -1.1707948446273804, 0.020794829353690147]


@pytest.mark.parametrize(("strength", "expected"), [(2.0, NEAR), (0.0, FREE)])
def test_a_visit_of_the_authors(strength: float, expected: list[float]) -> None:
    """Two epochs of three batches in order, at 0.1 with a momentum of 0.5."""
    net = nn.Linear(3, 2)
    w = torch.tensor(W_G)
    nn.utils.vector_to_parameters(w, net.parameters())
    pull = NormPull(w.clone(), strength)
    loss = pull.watch(FedCorr().loss)
    memory = torch.zeros(8)
    for step in range(6):
        start = 2 * (step % 3)
        part = slice(start, start + 2)
        x, y = torch.tensor(X)[part], torch.tensor([0, 1, 1, 0, 1, 0])[part]
        batch = SimpleNamespace(x=x, y=y, step_in_epoch=step % 3)
        value = loss(net, cast(Batch, batch))
        assert value is not None
        parts = torch.autograd.grad(value, list(net.parameters()))
        gradient = torch.cat([part.flatten() for part in parts])
        parameters = nn.utils.parameters_to_vector(net.parameters()).detach()
        pull(parameters, gradient)
        memory = 0.5 * memory + gradient
        nn.utils.vector_to_parameters(parameters - 0.1 * memory, net.parameters())
    found = nn.utils.parameters_to_vector(net.parameters()).tolist()
    assert found == pytest.approx(expected, abs=2e-6)
