"""Random streams that depend on nothing but the seed, the round, the client and the visit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray

from rayfl.fleet.executor import Task


class _Words(ISeedSequence):
    """The key of a Philox generator, given as a seed: its own `key` would first ask the system for
    entropy."""

    def __init__(self, *words: int) -> None:
        self.words = np.array(words, np.uint64)

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:
        return self.words


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
        # Rounds begin at -1 and the server's ids are negative: shifted, each fills its half of one
        # word.
        words = _Words(self.seed, ((task.t + 1) << 32) + task.client + (1 << 31))
        if not task.visit and not task.examined:
            return np.random.Generator(np.random.Philox(words))  # type: ignore[arg-type]
        # Far along the same key's sequence, where the first visit never comes.
        counter = [0, 0, int(task.examined), task.visit]
        return np.random.Generator(np.random.Philox(words, counter=counter))  # type: ignore[arg-type]
