"""The last answers to each of a client's samples, from visit to visit: what SELFIE judges labels
by, and what joint optimisation makes labels of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rayfl.arrays import Ints


class AnswerHistory:
    """A ring of the last q answers to each of a client's samples.

    Parameters
    ----------
    state
        The client's: what `state` of an earlier visit's history left there.
    samples
        How many the client has.
    length
        q, how many answers to a sample are remembered.
    width
        How many numbers an answer has; 0 where it is one class.

    Examples
    --------
    >>> history = AnswerHistory({}, samples=2, length=3)
    >>> for answer in (1, 2, 2, 2):
    ...     history.record(np.array([0]), [answer])
    >>> history.rows.tolist(), history.filled.tolist()
    ([[2, 2, 2], [0, 0, 0]], [3, 0])
    """

    def __init__(self, state: Mapping[str, Any], samples: int, length: int, width: int = 0) -> None:
        shape = (samples, length, width) if width else (samples, length)
        kind = np.float32 if width else np.int64
        # Copies: what a state holds is not to be written to.
        self.rows: NDArray[Any] = np.array(state.get("answers", np.zeros(shape, kind)))
        self.counts: Ints = np.array(state.get("answered", np.zeros(samples, np.int64)))
        self.length = length

    def record(self, index: Ints, answers: ArrayLike) -> None:
        """Keep answers, each in the place of the oldest to its sample.

        Parameters
        ----------
        index
            Which samples, none of them twice.
        answers
            One a sample. Those that are not finite are passed over.
        """
        given = np.asarray(answers)
        finite = np.isfinite(given).reshape(len(given), -1).all(axis=1)
        kept = index[finite]
        self.rows[kept, self.counts[kept] % self.length] = given[finite]
        self.counts[kept] += 1

    @property
    def filled(self) -> Ints:
        """How many answers to each sample are remembered, (N,)."""
        return np.minimum(self.counts, self.length)

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """What the client keeps of it: a part of `Out.state`."""
        return {"answers": self.rows, "answered": self.counts}
