"""Every coordinate by itself: the median of the clients' values, or the mean without the extremes.

D. Yin, Y. Chen, K. Ramchandran and P. Bartlett: "Byzantine-robust distributed learning: towards
optimal statistical rates", ICML 2018, Definitions 1 and 2. Both need all values of a coordinate at
one place: slices of the models are gathered one after another, so that there is never a cohort."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rayfl.algorithms.parts.aggregation import Aggregation, list_counting, name_measure
from rayfl.algorithms.parts.whole_models import pick_update
from rayfl.arrays import Floats, Vector
from rayfl.component import component
from rayfl.errors import ConfigError, RayflError, broken
from rayfl.protocol import Client, ClientId, Fleet, Out, Ref, Replies

_MOST_GATHERED = 1 << 22
"""Values of a slice, over all clients: 16 MB, and a few times as much while they are ranked."""
_LONGEST = 200_000
"""Values of a slice of one client, whose report stays under 1 MB."""

Values = NDArray[np.float32]
Summary = Callable[[Values, Floats], Floats]
"""One value a coordinate, of the clients' values (a row each) and their weights."""


def give_slice(
    server: Client, *, first: int, last: int, update_key: str | None, **update: Vector
) -> Out:
    """Some coordinates of one update; fewer where the model ends.

    Parameters
    ----------
    server
        Where it is examined.
    first, last
        Which coordinates.
    update_key
        Which of several named updates is meant.
    update
        What the client left, by name.
    """
    return Out({"values": np.array(pick_update(update, update_key)[first:last])})


def summarise_coordinates(
    got: Replies, weights: Mapping[ClientId, float], summarise: Summary, key: str | None = None
) -> Vector:
    """A summary of every coordinate, slice after slice.

    Parameters
    ----------
    got
        The replies whose updates they are.
    weights
        How much each client counts; those without a weight take no part.
    summarise
        What is found of a slice.
    key
        Which of the named updates.
    """
    clients = list_counting(got, weights)
    # Scaled so that equal weights are ones, whose sums are exact.
    largest = max(weights[client] for client in clients)
    shares = np.array([weights[client] / largest for client in clients])
    width = max(1, min(_LONGEST, _MOST_GATHERED // len(clients)))
    parts: list[Vector] = []
    while not parts or len(parts[-1]) == width:
        first = width * len(parts)
        reports = got.examine(give_slice, clients, first=first, last=first + width, update_key=key)
        values = _stack_equal([reports[client]["values"] for client in clients])
        parts.append(summarise(values, shares).astype(np.float32))
    return np.concatenate(parts)


def _stack_equal(rows: list[Vector]) -> Values:
    lengths = {len(row) for row in rows}
    if len(lengths) > 1:
        rule = "an aggregation by coordinates takes updates of one length"
        raise RayflError(broken(rule, f"slices of {sorted(lengths)} values"))
    return np.stack(rows)


def find_medians(values: Values, weights: Floats) -> Floats:
    """The weighted median of every column: from where on half of the weight is reached, and the
    middle of two values where it is reached exactly between them.

    Parameters
    ----------
    values
        A row a client.
    weights
        Of the rows.

    Examples
    --------
    >>> rows = np.array([[1.0], [2.0], [4.0], [9.0]], np.float32)
    >>> find_medians(rows, np.ones(4)).tolist()
    [3.0]
    >>> find_medians(rows, np.array([1.0, 1, 1, 4])).tolist()
    [9.0]
    """
    order = np.argsort(values, axis=0, kind="stable")
    ranked = np.take_along_axis(values, order, axis=0).astype(np.float64)
    doubled = 2 * np.cumsum(weights[order], axis=0)
    total = doubled[-1] / 2
    lower = np.argmax(doubled >= total, axis=0)[None]
    upper = np.argmax(doubled > total, axis=0)[None]
    pair = [np.take_along_axis(ranked, at, axis=0)[0] for at in (lower, upper)]
    medians: Floats = (pair[0] + pair[1]) / 2
    return medians


def trim_columns(values: Values, weights: Floats, cut: int) -> Floats:
    """The weighted mean of every column without its `cut` smallest and largest values.

    Parameters
    ----------
    values
        A row a client.
    weights
        Of the rows.
    cut
        How many values go on either side.

    Examples
    --------
    >>> rows = np.array([[1.0], [2.0], [4.0], [900.0]], np.float32)
    >>> trim_columns(rows, np.ones(4), 1).tolist()
    [3.0]
    """
    order = np.argsort(values, axis=0, kind="stable")[cut : len(values) - cut]
    kept = np.take_along_axis(values, order, axis=0).astype(np.float64)
    shares = weights[order]
    means: Floats = (kept * shares).sum(axis=0) / shares.sum(axis=0)
    return means


@component
class Median(Aggregation):
    """The weighted median of every coordinate; the paper's is under `weighting: equal`. It stays
    among the honest values while hostile clients have less than half of the weight."""

    def __call__(
        self,
        got: Replies,
        weights: Mapping[ClientId, float],
        fleet: Fleet,
        key: str | None = None,
    ) -> Ref:
        return fleet.put(summarise_coordinates(got, weights, find_medians, key))


@component
class TrimmedMean(Aggregation):
    """The weighted mean of every coordinate without its extreme values; the paper's is under
    `weighting: equal`. It stays among the honest values while no more clients are hostile than are
    cut on one side."""

    metrics: ClassVar[Mapping[str, str]] = {
        "aggregation/cut": "How many values of every coordinate were left out on either side.",
    }
    share: Annotated[float, Field(ge=0, lt=0.5)]
    """Which share of the clients is cut on either side, rounded down; 0 is the mean."""

    def count_cut(self, clients: int) -> int:
        """How many values of so many clients are cut on either side."""
        # 0.29 of 100 are 29, though the product is a little less.
        return int(self.share * clients + 1e-9)

    def check(self, fleet: Fleet) -> None:
        if self.share and not self.count_cut(fleet.cohort):
            rule = "a trimmed mean cuts at least one client on either side of a round"
            got = f"share {self.share} of {fleet.cohort} clients"
            remedy = "Raise method.aggregation.share or training.clients_per_round."
            raise ConfigError(broken(rule, got, remedy))

    def __call__(
        self,
        got: Replies,
        weights: Mapping[ClientId, float],
        fleet: Fleet,
        key: str | None = None,
    ) -> Ref:
        cut = self.count_cut(len(list_counting(got, weights)))
        fleet.log(**{name_measure("aggregation/cut", key): float(cut)})
        if not self.share:
            return got.mean(weights, key)

        def trim(values: Values, shares: Floats) -> Floats:
            return trim_columns(values, shares, cut)

        return fleet.put(summarise_coordinates(got, weights, trim, key))
