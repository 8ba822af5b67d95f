"""A second stream of samples beside those of a training: unlabelled ones beside labelled, images to
be mixed with others.

Its draws come from a stream of its own, which is branched off the client's when it is made, so that
neither disturbs the other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rayfl.errors import ConfigError, broken
from rayfl.learn.augment.base import Augmentation
from rayfl.learn.batches import Batch, gather_rows
from rayfl.learn.learner import draw_seed
from rayfl.learn.local_fit import Trainee


class SampleStream:
    """A client's samples without end: each once, in an order that is drawn anew every time.

    Parameters
    ----------
    client
        Whose samples; `client.on(images, labels)` for others.
    keep
        A mask of the samples that are wanted.
    targets
        Labels, or rows of probabilities, in place of the client's own.
    augment
        In place of the run's own.

    Examples
    --------
    >>> unlabelled = SampleStream(client, keep=~labelled)  # doctest: +SKIP
    >>> other = unlabelled.draw(len(batch))  # doctest: +SKIP
    """

    def __init__(
        self,
        client: Trainee,
        keep: NDArray[np.bool_] | None = None,
        targets: NDArray[Any] | None = None,
        augment: Augmentation | None = None,
    ) -> None:
        self._learner = client.learner
        self._augment = self._learner.training.augment if augment is None else augment
        # At once: the first draw may come in the middle of a training, which draws from the
        # client's stream too.
        self._rng = np.random.default_rng(draw_seed(client.rng))
        self._generator = torch.Generator().manual_seed(draw_seed(client.rng))
        labels = targets
        if labels is None and client.labels is not None:
            labels = client.y
        self._gather = gather_rows(self._learner, client.x, labels)
        size = len(client.x)
        self._pool = np.arange(size) if keep is None else np.flatnonzero(keep)
        # What is left of the last turn comes before the next one is shuffled.
        self._waiting = self._pool[:0]
        self._step = 0

    def __len__(self) -> int:
        """How many samples there are before they come again."""
        return len(self._pool)

    def draw(self, n: int) -> Batch | None:
        """The next `n` samples as a mini-batch; None where there are none at all.

        Parameters
        ----------
        n
            How many: the length of the batch that they stand beside.
        """
        if n < 1:
            raise ConfigError(broken("a stream gives one sample or more", n))
        if not len(self._pool):
            return None
        index = self._next_places(n)
        raw, y = self._gather(index)
        x = self._learner.normalise(self._augment(raw, self._generator))
        batch = Batch(
            x,
            raw,
            index,
            self._generator,
            y,
            self._learner,
            step=self._step,
        )
        self._step += 1
        return batch

    def _next_places(self, n: int) -> NDArray[np.int64]:
        parts = [self._waiting]
        missing = n - len(self._waiting)
        while missing > 0:
            order = self._rng.permutation(self._pool)
            parts.append(order)
            missing -= len(order)
        places = np.concatenate(parts)
        self._waiting = places[n:]
        return places[:n]


def draw_endless_batches(stream: SampleStream, size: int) -> Iterator[Batch]:
    """Mini-batches of one size, for ever; none at all of a stream without samples.

    Parameters
    ----------
    stream
        What they are drawn from.
    size
        Samples in a batch.
    """
    while (batch := stream.draw(size)) is not None:
        yield batch


def pair_batches(
    batches: Iterable[Batch], stream: SampleStream
) -> Iterator[tuple[Batch, Batch | None]]:
    """Each mini-batch with an equally long one of a stream; with None where it has no samples.

    Parameters
    ----------
    batches
        The first of each pair; as many pairs are made.
    stream
        What the second is drawn from.
    """
    for batch in batches:
        yield batch, stream.draw(len(batch))
