"""Putting new labels in the place of a client's own.

What a phase leaves under `y` in its state is what the client believes from its next visit on. It is
checked here, where it is made, and not where a batch meets it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rayfl.arrays import Labels
from rayfl.errors import DataError, broken


class Owner(Protocol):
    """What relabelling needs of a client."""

    @property
    def id(self) -> int: ...
    @property
    def y(self) -> Labels: ...
    @property
    def classes(self) -> int: ...


def relabel(client: Owner, labels: ArrayLike, among: ArrayLike | None = None) -> dict[str, Labels]:
    """New labels as an entry of a state: `Out(state=relabel(client, labels))`.

    Parameters
    ----------
    client
        Whose labels.
    labels
        The new ones, one for each of its samples, (N,).
    among
        A mask (N,) or positions of the samples that may change; the others keep what they have.
    """
    given = client.y
    new = _check_labels(client, np.asarray(labels), len(given))
    chosen = np.zeros(len(given), dtype=bool)
    chosen[_check_places(client, among, len(given))] = True
    return {"y": np.where(chosen, new, given).astype(np.int64)}


def relabel_confident(
    client: Owner,
    p: ArrayLike,
    threshold: float,
    among: ArrayLike | None = None,
) -> dict[str, Labels]:
    """What a model is sure of, in the place of the given labels: the likeliest class wherever its
    probability is above the threshold (FedCorr).

    Parameters
    ----------
    client
        Whose labels.
    p
        Class probabilities of its samples, (N, C): `judge(client, w).probabilities`.
    threshold
        What the probability must exceed.
    among
        A mask (N,) or positions of the samples that may change.
    """
    rows = np.asarray(p, dtype=np.float64)
    size = len(client.y)
    if rows.ndim != 2 or len(rows) != size:
        rule = f"probabilities have one row for each of {size} samples"
        raise DataError(broken(rule, f"{rows.shape} ({_name(client)})"))
    sure = rows.max(axis=1) > threshold
    allowed = np.zeros(size, dtype=bool)
    allowed[_check_places(client, among, size)] = True
    return relabel(client, rows.argmax(axis=1), sure & allowed)


def _check_labels(client: Owner, labels: NDArray[np.generic], size: int) -> Labels:
    """Labels of the right shape, type and range."""
    if labels.shape != (size,) or not np.issubdtype(labels.dtype, np.integer):
        rule = f"new labels are integers, one for each of {size} samples"
        remedy = "Take the argmax of rows of probabilities."
        got = f"{labels.dtype} {labels.shape} ({_name(client)})"
        raise DataError(broken(rule, got, remedy))
    found = labels.astype(np.int64)
    # A client that was made by hand may not know how many classes there are.
    strange = (found < 0) | ((found >= client.classes) & (client.classes > 0))
    if strange.any():
        rule = f"new labels lie in [0, {client.classes})"
        raise DataError(broken(rule, f"{found[strange][0]} ({_name(client)})"))
    return found


def _check_places(client: Owner, among: ArrayLike | None, size: int) -> NDArray[np.generic]:
    """A mask, or positions, of samples that there are."""
    if among is None:
        return np.ones(size, dtype=bool)
    places = np.asarray(among)
    # An empty list comes as floats.
    if not places.size and places.dtype != np.bool_:
        return np.zeros(0, dtype=np.int64)
    mask = places.dtype == np.bool_ and places.shape == (size,)
    whole = np.issubdtype(places.dtype, np.integer) and places.ndim == 1
    inside = whole and places.min() >= 0 and places.max() < size
    if not mask and not inside:
        rule = f"samples that may change are a mask of {size} flags, or positions below {size}"
        raise DataError(broken(rule, f"{places.dtype} {places.shape} ({_name(client)})"))
    return places


def _name(client: Owner) -> str:
    return "the server" if client.id < 0 else f"client {client.id}"
