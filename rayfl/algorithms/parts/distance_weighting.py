"""Clients count the less, the farther their model is from others.

Distance-aware aggregation of FedNoRo (Wu et al., IJCAI 2023), with C the round's clean clients:

    d_k = 0 for k in C,   d_k = min over j in C of dist(w_k, w_j) for the others
    D_k = d_k / max_j d_j,   w_k = n_k exp(-D_k)

Distance-reweighted aggregation of RSCFed (Liang et al., CVPR 2022), around a mean wbar:

    d_k = dist(w_k, wbar),   w_k = n_k exp(-beta d_k / n_k)

dist sums the Euclidean distances of the tensors, as both authors' code does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from rayfl.algorithms.parts.weighting import Weighting
from rayfl.algorithms.parts.whole_models import pick_update
from rayfl.arrays import Floats, Vector
from rayfl.component import component
from rayfl.learn.distance import measure_distance
from rayfl.protocol import Client, ClientId, Fleet, Out, Ref, Replies

Weights = Mapping[ClientId, float]

FORK_GUARD = 1e-4
"""What the fork of FedNoRo's code adds to every distance, so that none divides by 0."""


def measure_distances(
    server: Client,
    *,
    others: Sequence[Vector],
    statistics: bool = True,
    key: str | None = None,
    **update: Vector,
) -> Out:
    """How far a client's model is from each of several models.

    Parameters
    ----------
    server
        Where it is examined.
    others
        The models.
    statistics
        Whether BatchNorm's running statistics count.
    key
        Which of several named updates is the model; by default `w`, or the only one.
    update
        What the client left, by name.
    """
    own = pick_update(update, key)
    network = server.learner.shape_of()
    gaps = [
        measure_distance(
            network,
            own,
            other,
            statistics,
        ).total
        for other in others
    ]
    return Out({"distances": np.array(gaps)})


def find_distances(
    got: Replies,
    others: Sequence[Ref],
    clients: Iterable[ClientId] | None = None,
    statistics: bool = True,
    key: str | None = None,
) -> dict[ClientId, Floats]:
    """Distances of updates from some models, measured where the updates lie, by client.

    Parameters
    ----------
    got
        The map whose updates they are; of several a client, `w` is its model.
    others
        References to the models: means, or `got.ref(client)`.
    clients
        Whose updates; by default all.
    statistics
        Whether BatchNorm's running statistics count.
    key
        Which update is the model, where clients leave several.
    """
    reports = got.examine(
        measure_distances,
        clients,
        others=list(others),
        statistics=statistics,
        key=key,
    )
    return {client: report["distances"] for client, report in reports.items()}


def dampen_by_largest(sizes: Weights, distances: Weights) -> dict[ClientId, float]:
    """n_k exp(-d_k / max d): FedNoRo's; the sizes themselves where all distances are 0.

    Parameters
    ----------
    sizes
        n of every client.
    distances
        d of every client.

    Examples
    --------
    >>> found = dampen_by_largest({0: 100, 1: 100, 2: 200}, {0: 0, 1: 1, 2: 2})
    >>> [round(weight / sum(found.values()), 6) for weight in found.values()]
    [0.426933, 0.258948, 0.31412]
    """
    # The authors' code divides 0 by 0 where nobody is noisy.
    largest = max(distances.values(), default=0.0) or 1.0
    return {
        client: float(size * np.exp(-distances[client] / largest)) for client, size in sizes.items()
    }


def dampen_by_size(
    sizes: Weights, distances: Weights, beta: float | None = None
) -> dict[ClientId, float]:
    """n_k exp(-beta d_k / n_k) as shares of 1: RSCFed's.

    Parameters
    ----------
    sizes
        n of every client.
    distances
        d of every client.
    beta
        How much distance counts; None: the mean size over the median distance, so that a typical
        client is left about 1/e.

    Examples
    --------
    >>> found = dampen_by_size(dict.fromkeys(range(3), 450), {0: 0.01, 1: 0.02, 2: 0.015}, 1e4)
    >>> [round(share, 6) for share in found.values()]
    [0.370978, 0.297056, 0.331966]
    """
    n = np.array(list(sizes.values()), dtype=np.float64)
    gaps = np.array([distances[client] for client in sizes], dtype=np.float64)
    if beta is None:
        typical = float(np.median(gaps))
        beta = float(n.mean()) / typical if typical > 0 else 0.0
    # In logarithms: deep networks are far apart, and every power would be 0.
    logs = np.log(n) - beta * gaps / n
    powers = np.exp(logs - logs.max())
    shares = (powers / powers.sum()).tolist()
    return dict(zip(sizes, shares, strict=True))


def find_misplaced(
    got: Replies, noisy: int, clean: int, statistics: bool = True
) -> dict[ClientId, float]:
    """Distances as a fork of FedNoRo's code has them: of the round's first models from its first
    models, however few of these are of clean clients.

    The i-th noisy client gets the distance of the i-th model of the round from the nearest of the
    first ones, as many as there are clean clients; where no more clients are noisy than clean, each
    of these models is its own nearest.

    Parameters
    ----------
    got
        The round's replies.
    noisy, clean
        How many of its clients are.
    statistics
        Whether BatchNorm's running statistics count.
    """
    order = list(got)
    distances = dict.fromkeys(order, 0.0)
    others = [got.ref(client) for client in order[:clean]]
    if others and noisy:
        found = find_distances(got, others, order[:noisy], statistics)
        distances |= {client: float(gaps.min()) for client, gaps in found.items()}
    return distances


@component
class ByDistance(Weighting):
    """Clients count by size, less the farther their model is from the clean ones or from the mean.

    Which clients are noisy they, or the server in its inputs, say in their report; a round in which
    all are clean, or none is, counts by size.
    """

    to: Literal["clean", "mean"] = "clean"
    """`clean`: FedNoRo's distance from the nearest clean client; `mean`: RSCFed's from the mean by
    size."""
    noisy: str = "_noisy"
    """Under which name a report says that its client is noisy; a report without it is clean's."""
    beta: float | None = None
    """RSCFed's factor (authors' code: 1e4); null: the mean size over the median distance."""
    statistics: bool = True
    """Whether BatchNorm's running statistics count in a distance."""
    misplaced: bool = False
    """Under `clean`: the defect of a fork of FedNoRo's code (stha-prashant/fednoro), see
    `find_misplaced`."""

    def __call__(self, got: Replies, fleet: Fleet) -> Weights:
        sizes = {client: float(fleet.size(client)) for client in got}
        if self.to == "mean":
            found = find_distances(got, [got.mean(sizes)], statistics=self.statistics)
            distances = {client: float(gaps[0]) for client, gaps in found.items()}
            return dampen_by_size(sizes, distances, self.beta)
        noisy = [client for client, report in got.items() if report.get(self.noisy, False)]
        clean = [client for client in got if client not in noisy]
        if self.misplaced:
            found_there = find_misplaced(got, len(noisy), len(clean), self.statistics)
            return dampen_by_largest(sizes, {k: gap + FORK_GUARD for k, gap in found_there.items()})
        if not noisy or not clean:
            return sizes
        others = [got.ref(client) for client in clean]
        found = find_distances(
            got,
            others,
            noisy,
            self.statistics,
        )
        # Clean clients keep their whole size, however far they lie from each other.
        distances = dict.fromkeys(got, 0.0)
        distances |= {client: float(gaps.min()) for client, gaps in found.items()}
        return dampen_by_largest(sizes, distances)
