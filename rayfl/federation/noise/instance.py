"""Instance-dependent label noise (Xia et al. 2020, arXiv:2006.07836, Alg. 2; the form used by Cheng
et al. 2021).

Deviation: pixels are centred, so that the direction of a flip depends on what sets an image apart,
not on the mean image of all."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator
from scipy.special import ndtr, ndtri

from rayfl.component import Positive, component
from rayfl.federation.arrays import Floats, Ints
from rayfl.federation.interfaces import Corruption, Truth
from rayfl.federation.noise.rates import Rate

_CHUNK = 4096


@component
class Instance:
    """Each sample flips with its own probability, a normal draw around the client's rate truncated
    to [0, 1].

    The new class is drawn with probabilities softmax(x W_y) over the other classes, where x are the
    pixels in [0, 1] and W_y is a random normal projection for each true class y. A client of rate 0
    keeps its labels."""

    rate: Rate
    std: Positive = 0.1

    def corrupt(self, truth: Truth, rng: Generator) -> Corruption:
        nominal = self.rate.per_client(truth.clients, rng)
        own = nominal[truth.owner]
        draws = rng.random(len(own))
        probability = draw_truncated_normal(own, self.std, rng)
        flips = np.flatnonzero((draws < probability) & (own > 0))
        given = truth.labels.copy()
        # Pixels may be large or remote: they are fetched only if somebody flips.
        if len(flips):
            given[flips] = _draw_wrong_classes(truth, flips, rng)
        return Corruption(given, nominal)


def draw_truncated_normal(
    mean: Floats,
    std: float,
    rng: Generator,
) -> Floats:
    """Draws from N(mean, std^2) cut to [0, 1], by the inverse of its distribution function.

    Parameters
    ----------
    mean
        One draw for each.
    std
        Before the cut.
    rng
        Gives one number a draw.
    """
    low = ndtr(-mean / std)
    high = ndtr((1 - mean) / std)
    quantile = low + rng.random(len(mean)) * (high - low)
    drawn: Floats = np.clip(mean + std * ndtri(quantile), 0.0, 1.0)
    return drawn


def _draw_wrong_classes(
    truth: Truth,
    flips: Ints,
    rng: Generator,
) -> Ints:
    """The wrong class of each flipped sample."""
    images = truth.images()
    pixels = images.reshape(len(images), -1)
    centre = pixels.mean(axis=0)
    true = truth.labels[flips]
    wrong = np.empty(len(flips), np.int64)
    for c in range(truth.classes):
        # Drawn even for a class without flips: the projections of the others do not depend on it.
        projection = rng.standard_normal((pixels.shape[1], truth.classes))
        members = np.flatnonzero(true == c)
        for start in range(0, len(members), _CHUNK):
            part = members[start : start + _CHUNK]
            # float64, so that another machine's order of summation does not turn the argmax.
            centred = (pixels[flips[part]] - centre) / 255
            logits = centred @ projection
            logits[:, c] = -np.inf
            # The largest of logits with Gumbel noise is a draw from their softmax.
            gumbel = rng.gumbel(size=logits.shape)
            wrong[part] = np.argmax(logits + gumbel, axis=1)
    return wrong
