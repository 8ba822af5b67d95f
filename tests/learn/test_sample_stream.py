"""A second stream of samples: each once a turn, drawn beside a training without disturbing it."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfl.errors import ConfigError
from rayfl.learn.augment.crop import CropFlip
from rayfl.learn.batches import Batch, draw_batches
from rayfl.learn.fit import carry_out
from rayfl.learn.local_fit import Fit
from rayfl.learn.sample_stream import SampleStream, draw_endless_batches, pair_batches
from tests.learn.kit import first_weights, make_client, make_learner


def drawn(stream: SampleStream, n: int) -> Batch:
    batch = stream.draw(n)
    assert batch is not None
    return batch


def test_every_sample_comes_once_a_turn() -> None:
    stream = SampleStream(make_client(10))
    turns = [drawn(stream, 5).index for _ in range(6)]
    places = np.concatenate(turns).reshape(3, 10)
    assert len(stream) == 10
    for turn in places:
        assert sorted(turn.tolist()) == list(range(10))
    assert not np.array_equal(places[0], places[1])


@pytest.mark.parametrize("sizes", [[3, 7, 4, 6], [25], [1] * 20])
def test_any_number_is_drawn_across_turns(sizes: list[int]) -> None:
    stream = SampleStream(make_client(10))
    places = np.concatenate([drawn(stream, size).index for size in sizes])
    whole = SampleStream(make_client(10))
    assert np.array_equal(places, drawn(whole, sum(sizes)).index)


def test_a_batch_holds_what_it_says() -> None:
    client = make_client(10)
    batch = drawn(SampleStream(client), 4)
    assert np.array_equal(batch.y.numpy(), client.y[batch.index])
    assert torch.equal(batch.pixels, client.learner.pixels(client.x[batch.index]))
    torch.testing.assert_close(batch.x, client.learner.normalise(batch.pixels))
    assert len(batch) == 4
    assert torch.equal(batch.view(), batch.x)


def test_masks_targets_and_augmentation() -> None:
    client = make_client(10)
    keep = client.y == 1
    rows = np.random.default_rng(0).dirichlet(np.ones(3), 10).astype(np.float32)
    stream = SampleStream(client, keep, rows, CropFlip(padding=1))
    batch = drawn(stream, int(keep.sum()))
    assert sorted(batch.index.tolist()) == np.flatnonzero(keep).tolist()
    assert torch.equal(batch.y, torch.from_numpy(rows[batch.index]))
    assert not torch.equal(batch.x, client.learner.normalise(batch.pixels))


def test_nothing_comes_of_nothing() -> None:
    client = make_client(10)
    empty = SampleStream(client, np.zeros(10, bool))
    assert empty.draw(3) is None
    assert list(draw_endless_batches(empty, 3)) == []
    with pytest.raises(ConfigError, match="one sample or more; got 0"):
        empty.draw(0)


def test_endless_batches_have_one_size() -> None:
    batches = list(islice(draw_endless_batches(SampleStream(make_client(10)), 4), 9))
    assert [len(batch) for batch in batches] == [4] * 9
    assert [batch.step for batch in batches] == list(range(9))


def test_pairs_are_equally_long() -> None:
    client = make_client(10, make_learner(batch_size=4))
    stream = SampleStream(client, client.y == 2)
    first = draw_batches(client, client.learner.training)
    pairs = list(pair_batches(first, stream))
    lengths = [(len(one), len(other)) for one, other in pairs if other is not None]
    assert lengths == [(4, 4), (4, 4), (2, 2)]
    nobody = SampleStream(client, np.zeros(10, bool))
    pairs = list(pair_batches(draw_batches(client, client.learner.training), nobody))
    assert [other for _, other in pairs] == [None] * 3


def test_neither_stream_disturbs_the_other() -> None:
    def order(size: int) -> list[int]:
        """The order of a training that draws so many others at each step."""
        client = make_client(12, make_learner(batch_size=4, epochs=2))
        stream = SampleStream(client)
        seen: list[int] = []

        def loss(net: nn.Module, batch: Batch) -> Tensor:
            seen.extend(batch.index.tolist())
            drawn(stream, size)
            value: Tensor = net(batch.x).square().mean()
            return value

        carry_out(client, Fit(first_weights(client.learner), loss=loss))
        return seen

    assert order(1) == order(11)
    assert sorted(order(1)) == sorted(2 * list(range(12)))


def test_equal_visits_draw_equally_and_two_streams_do_not() -> None:
    one, again = (drawn(SampleStream(make_client(10)), 10) for _ in range(2))
    assert np.array_equal(one.index, again.index)
    client = make_client(10)
    first, second = (drawn(SampleStream(client), 10) for _ in range(2))
    assert not np.array_equal(first.index, second.index)
