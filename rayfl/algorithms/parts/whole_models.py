"""Euclidean distances of whole models, measured where updates lie.

    dist(a, b)^2 = sum over all numbers of (a_i - b_i)^2

One sum over the model: a minimum or a median of distances that is taken tensor by tensor may choose
other clients for every tensor, and is no member and no median of the models."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rayfl.arrays import Floats, Vector
from rayfl.protocol import Client, ClientId, Out, Ref, Replies

_CHUNK = 1 << 16
"""Numbers that are looked at together, so that float64 copies stay small."""


def pick_update(update: Mapping[str, Vector], key: str | None) -> Vector:
    """The update that is the model: the one of this name; by default `w`, or the only one."""
    if key is None:
        key = "w" if "w" in update or len(update) > 1 else next(iter(update))
    return update[key]


def measure_square(a: Vector, b: Vector) -> float:
    """The squared Euclidean distance of two models, in float64."""
    total = 0.0
    for start in range(0, len(a), _CHUNK):
        span = slice(start, start + _CHUNK)
        # A library's dot product may differ by processor; numpy's sum goes one way everywhere.
        total += float(np.square(a[span].astype(np.float64) - b[span]).sum())
    return total


def measure_squares_here(
    server: Client, *, references: Sequence[Vector], update_key: str | None, **update: Vector
) -> Out:
    """Squared distances of one update from some models.

    Parameters
    ----------
    server
        Where it is examined.
    references
        The models.
    update_key
        Which of several named updates is meant.
    update
        What the client left, by name.
    """
    own = pick_update(update, update_key)
    return Out({"squares": np.array([measure_square(own, other) for other in references])})


def find_squares(
    got: Replies,
    references: Sequence[Ref],
    clients: Iterable[ClientId],
    key: str | None = None,
) -> dict[ClientId, Floats]:
    """Squared distances of updates from some models, by client.

    Parameters
    ----------
    got
        The replies whose updates they are.
    references
        The models; all of them travel to every place at once.
    clients
        Whose updates.
    key
        Which of the named updates.
    """
    reports = got.examine(
        measure_squares_here, clients, references=list(references), update_key=key
    )
    return {client: report["squares"] for client, report in reports.items()}


def find_gaps(
    got: Replies, reference: Ref, clients: Iterable[ClientId], key: str | None = None
) -> dict[ClientId, float]:
    """Distances of updates from one model, by client.

    Parameters
    ----------
    got
        The replies whose updates they are.
    reference
        The model.
    clients
        Whose updates.
    key
        Which of the named updates.
    """
    squares = find_squares(got, [reference], clients, key)
    return {client: float(np.sqrt(found[0])) for client, found in squares.items()}
