"""The space that an audit works in: a frozen encoder's features on their main axes, evened out.

Clients send first and second moments of their features, once; the server finds the axes. No label
is read for it."""

from __future__ import annotations

import numpy as np
import torch

from rayfl.arrays import Ints
from rayfl.audit.heads import Singles
from rayfl.audit.plan import ENCODED
from rayfl.protocol import Client, Out

LEAST_AXIS = 1e-8
"""Axes below this share of the largest are rounding."""


def send_moments(client: Client) -> Out:
    """Means of the features and of their products."""
    x = torch.from_numpy(np.array(client.features[ENCODED])).double()
    second = x.T @ x / len(x)
    return Out(update={"first": x.mean(dim=0).float().numpy(), "second": _flatten(second)})


def find_axes(_: Client, *, first: Singles, second: Singles, axes: int, ridge: float) -> Out:
    """The projection onto the main axes, as a matrix whose last row is added: (width + 1, axes).

    Small axes are not raised to the size of large ones, which would make noise of them: `ridge`
    mean variances are added to every variance before its root is taken."""
    mean = torch.from_numpy(np.array(first)).double()
    spread = torch.from_numpy(np.array(second)).double().reshape(len(mean), -1)
    values, vectors = torch.linalg.eigh(spread - torch.outer(mean, mean))
    values = values.flip(0)
    count = min(axes, int((values > LEAST_AXIS * values[0].clamp_min(1e-30)).sum()))
    kept = values[:count]
    scale = (kept + ridge * kept.mean()).rsqrt()
    # The longest axis has length one: then the bound on the curvature holds for every encoder.
    scale = scale / (kept * scale**2).max().sqrt()
    matrix = vectors.flip(1)[:, :count] * scale
    whole = torch.cat([matrix, -(mean @ matrix)[None]])
    return Out({"axes": count}, update=_flatten(whole))


def place_samples(client: Client, *, projection: Singles, axes: int, folds: int) -> Out:
    """Keep the samples' places on the axes, with a last one of ones, and the fold that each is
    judged in: folds have equal shares of every given label."""
    features = torch.from_numpy(np.array(client.features[ENCODED]))
    matrix = torch.from_numpy(np.array(projection)).reshape(-1, axes)
    places = features @ matrix[:-1] + matrix[-1]
    ones = torch.ones(len(places), 1)
    points = torch.cat([places, ones], dim=1).numpy()
    state = {"points": points, "folds": deal_folds(client.y, folds, client.rng)}
    return Out({"counts": client.class_counts.tolist()}, state=state)


def deal_folds(labels: Ints, folds: int, rng: np.random.Generator) -> Ints:
    """A fold for each sample; those of one label are dealt out evenly."""
    shuffled = rng.permutation(len(labels))
    order = shuffled[np.argsort(labels[shuffled], kind="stable")]
    dealt = np.empty(len(labels), dtype=np.int64)
    dealt[order] = (np.arange(len(labels)) + rng.integers(folds)) % folds
    return dealt


def _flatten(matrix: torch.Tensor) -> Singles:
    return np.ascontiguousarray(matrix.float().numpy().ravel())
