"""Networks that normalise with their batch's statistics are asked in an order that follows from the
images, not from the files."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from rayfl.learn.augment.base import Unchanged
from rayfl.learn.batch_order import (
    order_by_content,
    restore_order,
    split_evaluation,
    uses_batch_statistics,
)
from rayfl.learn.fit import compute_outputs
from rayfl.learn.judge import judge
from rayfl.learn.resident import Vector
from rayfl.models import MODELS
from rayfl.protocol import Client
from tests.learn.toys import client, conv_net, learner, seeded, start, train

BATCH = 16


def cnn4(track: bool = False) -> nn.Module:
    """The small images' network, which normalises with its batch unless it tracks statistics."""
    spec = {"name": "cnn4", "widths": [4, 8], "track_running_stats": track}
    return seeded(lambda: MODELS.build(spec).build((8, 8, 2), 3))


def tracking() -> nn.Module:
    return cnn4(track=True)


def reordered(visited: Client, order: NDArray[np.int64]) -> Client:
    """The same samples in files of another order."""
    return visited.on(visited.x[order], visited.y[order])


@pytest.fixture(name="samples")
def fixture_samples() -> Client:
    """A client of a trained place, whose images tell their class."""
    return client(150, learner(cnn4, epochs=3, batch_size=10))


@pytest.fixture(name="weights")
def fixture_weights(samples: Client) -> Vector:
    return train(samples, start(cnn4))


@pytest.mark.parametrize(("build", "uses"), [(cnn4, True), (tracking, False), (conv_net, False)])
def test_only_norms_without_statistics_of_their_own_use_the_batch(
    build: Callable[[], nn.Module], uses: bool
) -> None:
    net = build()
    assert uses_batch_statistics(net.eval()) is uses
    assert uses_batch_statistics(net.train())


def test_sorted_and_shuffled_files_are_answered_alike(samples: Client, weights: Vector) -> None:
    by_class = np.argsort(samples.y, kind="stable")
    shuffled = np.random.default_rng(3).permutation(len(samples))
    answers = []
    for order in (by_class, shuffled):
        judged = judge(reordered(samples, order), weights)
        # Image by image, to the bit.
        answers.append((judged.logits[np.argsort(order)], judged.losses[np.argsort(order)]))
        assert judged.accuracy == judge(samples, weights).accuracy
    for first, second in zip(*answers, strict=True):
        assert np.array_equal(first, second)


def test_batches_of_one_class_would_be_answered_worse(samples: Client, weights: Vector) -> None:
    """What the order is for: the same weights, batches cut from files sorted by class."""
    in_order = reordered(samples, np.argsort(samples.y, kind="stable"))
    place = samples.learner
    net = place.resident(weights).net.eval()
    with torch.no_grad():
        parts = [
            net(place.normalise(place.pixels(in_order.x[at : at + BATCH])))
            for at in range(0, len(in_order), BATCH)
        ]
    right = (torch.cat(parts).argmax(1).numpy() == in_order.y).mean()
    assert right < judge(in_order, weights).accuracy - 0.2


def test_views_are_answered_alike_too(samples: Client, weights: Vector) -> None:
    shuffled = np.random.default_rng(4).permutation(len(samples))
    there = judge(reordered(samples, shuffled), weights, Unchanged())
    assert np.array_equal(
        there.logits[np.argsort(shuffled)], judge(samples, weights, Unchanged()).logits
    )


def test_networks_with_statistics_see_neighbours_in_the_file() -> None:
    x = client(40, learner()).x
    assert split_evaluation(tracking().eval(), x, BATCH) == [
        slice(at, at + BATCH) for at in (0, 16, 32)
    ]


def test_every_image_is_in_one_batch(samples: Client) -> None:
    batches = split_evaluation(cnn4().eval(), samples.x, BATCH)
    rows = np.concatenate([np.asarray(rows) for rows in batches])
    assert np.array_equal(np.sort(rows), np.arange(len(samples)))
    assert np.array_equal(rows, order_by_content(samples.x))
    values = np.arange(len(samples), dtype=np.float32)
    assert np.array_equal(restore_order(values[rows], batches), values)


def test_equal_images_stay_in_their_order() -> None:
    assert order_by_content(np.zeros((5, 2, 2, 1), np.uint8)).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("size", [1, 7, 150, 400])
def test_the_batch_of_a_judgement_can_be_given(size: int, samples: Client, weights: Vector) -> None:
    found = judge(samples, weights, batch_size=size).logits
    samples.learner.evaluation_batch = size
    assert np.array_equal(found, compute_outputs(samples.learner, weights, samples.x))
