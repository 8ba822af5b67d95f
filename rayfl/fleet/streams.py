"""Random streams that depend on nothing but the seed, the round, the client and the visit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

if TYPE_CHECKING:
    from rayfl.fleet.executor import Task


class _Words(ISeedSequence):
    """The key of a Philox generator, given as a seed: its own `key` would first ask the system for
    entropy."""

    def __init__(self, *words: int) -> None:
        self.words = np.array(words, np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:
        return self.words


_FIRST = np.zeros(4, np.uint64)
_UNUSED: dict[str, Any] = {
    "bit_generator": "Philox",
    "buffer": np.zeros(4, np.uint64),
    "buffer_pos": 4,
    "has_uint32": 0,
    "uinteger": 0,
}
"""A Philox generator that nothing was drawn from, but for its key and its counter."""


@dataclass(frozen=True)
class Streams:
    """The stream of every visit.

    Parameters
    ----------
    seed
        The run's seed of training.
    """

    seed: int

    def __call__(self, task: Task) -> np.random.Generator:
        """A stream of its own, at its beginning."""
        stream = np.random.Generator(np.random.Philox(_Words(0, 0)))  # type: ignore[arg-type]
        self.rewind(stream, task)
        return stream

    def rewind(self, stream: np.random.Generator, task: Task) -> None:
        """Make a stream that nobody needs any more this visit's, at its beginning."""
        # Rounds begin at -1 and the server's ids are negative: shifted, each fills its half of one
        # word.
        key = np.array((self.seed, ((task.t + 1) << 32) + task.client + (1 << 31)), np.uint64)
        counter = _FIRST
        if task.visit or task.examined:
            # Far along the same key's sequence, where the first visit never comes.
            counter = np.array((0, 0, int(task.examined), task.visit), np.uint64)
        stream.bit_generator.state = {**_UNUSED, "state": {"counter": counter, "key": key}}


class StreamsOfPlace:
    """The streams of one place's visits, made of those of visits that are over: to make a new one
    takes six times as long, at small clients a fifth of a visit.

    Parameters
    ----------
    streams
        The run's.
    """

    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self._lent: list[np.random.Generator] = []
        self._idle: list[np.random.Generator] = []

    def take_back(self) -> None:
        """All visits so far are over."""
        self._idle += self._lent
        self._lent.clear()

    def lend(self, task: Task) -> np.random.Generator:
        """The stream of a visit, until the next `take_back`."""
        if self._idle:
            stream = self._idle.pop()
            self.streams.rewind(stream, task)
        else:
            stream = self.streams(task)
        self._lent.append(stream)
        return stream
