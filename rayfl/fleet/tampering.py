"""What hostile clients send in the place of what they have trained: changed where it is made, for
every method and in every place alike."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.protocol import ClientId, Vector

if TYPE_CHECKING:
    from rayfl.fleet.executor import Task

Change = Callable[[Vector, Vector, np.random.Generator], Vector]
"""Of an update, what it began with, and a stream."""
Tamper = Callable[[Mapping[str, Vector]], Mapping[str, Vector]]
"""Of all that one visit leaves to be averaged."""


@dataclass(frozen=True)
class Tampering:
    """The hostile clients of a federation.

    Parameters
    ----------
    clients
        Who they are.
    change
        What they do to an update.
    seed
        Of their streams, which are apart from those that phases draw from.
    """

    clients: frozenset[ClientId]
    change: Change
    seed: int

    def begin(self, task: Task, inputs: Mapping[str, Any]) -> Tamper | None:
        """What a visit's updates will go through; None for an honest client's.

        Parameters
        ----------
        task
            The visit. The server's looks at an update are none of the client's.
        inputs
            What the phase is given: an update began with the input of its own name.
        """
        if task.client not in self.clients or task.examined:
            return None
        return partial(self._change_all, task, inputs)

    def _change_all(
        self, task: Task, inputs: Mapping[str, Any], update: Mapping[str, Vector]
    ) -> Mapping[str, Vector]:
        return {
            name: self.change(vector, find_start(name, vector, inputs), self._stream(task, name))
            for name, vector in update.items()
        }

    def _stream(self, task: Task, name: str) -> np.random.Generator:
        # Rounds begin at -1.
        words = [self.seed, task.t + 1, task.client, task.visit, zlib.crc32(name.encode())]
        return np.random.default_rng(words)


def find_start(name: str, update: Vector, inputs: Mapping[str, Any]) -> Vector:
    """The model that an update began with; zeros for one that is a change already, and so has no
    input of its name and size."""
    start = inputs.get(name)
    if isinstance(start, np.ndarray) and start.shape == update.shape:
        return start
    return np.zeros_like(update)
