"""What every fleet's server does by itself: sums of a few vectors, and first weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rayfl.protocol import Client, Out, Vector


def add_vectors(_: Client, *, factors: Sequence[float], vectors: Sequence[Vector]) -> Out:
    """A linear combination, added up in the order of its terms."""
    total = np.zeros(len(vectors[0]))
    for factor, vector in zip(factors, vectors, strict=True):
        total += factor * vector.astype(np.float64)
    return Out(update=total.astype(np.float32))


def give_first_weights(client: Client, *, i: int) -> Out:
    """First weights number `i`."""
    return Out(update=client.learner.first_weights(i))
