"""Instance-dependent label noise (Xia et al. 2020, arXiv:2006.07836, Alg. 2; the form used by Cheng
et al. 2021).

Deviation: pixels are centred, so that the direction of a flip depends on what sets an image apart,
not on the mean image of all."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from rayfl.component import Positive, component
from rayfl.federation.arrays import Floats, Ints
from rayfl.federation.noise.rates import Rate
from rayfl.federation.views import Corruption, Truth

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

    def corrupt(self, truth: Truth, rng: np.random.Generator) -> Corruption:
        nominal = self.rate.per_client(truth.clients, rng)
        own = nominal[truth.owner]
        flips = np.flatnonzero(
            (rng.random(len(own)) < draw_truncated_normal(own, self.std, rng)) & (own > 0)
        )
        given = truth.labels.copy()
        # pixels may be large or remote: they are fetched only if somebody flips
        if len(flips):
            given[flips] = _draw_wrong_classes(
                truth.images(), truth.labels, flips, truth.classes, rng
            )
        return Corruption(given, nominal)


def draw_truncated_normal(mean: Floats, std: float, rng: np.random.Generator) -> Floats:
    """Draws from N(mean, std^2) cut to [0, 1], by the inverse of its distribution function."""
    low, high = ndtr(-mean / std), ndtr((1 - mean) / std)
    drawn: Floats = np.clip(
        mean + std * ndtri(low + rng.random(len(mean)) * (high - low)), 0.0, 1.0
    )
    return drawn


def _draw_wrong_classes(
    images: NDArray[np.uint8], labels: Ints, flips: Ints, classes: int, rng: np.random.Generator
) -> Ints:
    """The wrong class of each flipped sample."""
    pixels = images.reshape(len(images), -1)
    centre = pixels.mean(axis=0)
    wrong = np.empty(len(flips), np.int64)
    for c in range(classes):
        # drawn even for a class without flips: the projections of the others do not depend on it
        projection = rng.standard_normal((pixels.shape[1], classes))
        members = np.flatnonzero(labels[flips] == c)
        for start in range(0, len(members), _CHUNK):
            part = members[start : start + _CHUNK]
            # float64, so that another machine's order of summation does not turn the argmax
            logits = (pixels[flips[part]] - centre) / 255 @ projection
            logits[:, c] = -np.inf
            # the largest of logits with Gumbel noise is a draw from their softmax
            wrong[part] = np.argmax(logits + rng.gumbel(size=logits.shape), axis=1)
    return wrong
