"""Linear heads on a frozen encoder's features, one for each fold, trained on all other folds.

Heads are the models of an audit. Training is softmax regression whose likelihood knows how labels
go wrong (G. Patrini et al., "Making deep neural networks robust to label noise: a loss correction
approach", CVPR 2017; with a matrix for each client as for the annotators of V. C. Raykar et al.,
"Learning from crowds", JMLR 11, 2010): with p = softmax(z W) and T[c, g] the chance that class c is
written as g,

    loss_i = -log sum_c p_c(z_i) T[c, g_i];   slope = z_i (p - q)^T,   q_c ~ p_c^s T[c, g_i]

with s = 1; s > 1 takes back, in q alone, what the ridge takes from the heads' confidence.

Slopes are sums over samples, so that clients can send theirs and the server's step is the one that
it would take on all samples together: labels and features stay where they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayfl.arrays import Floats, Ints

Singles = NDArray[np.float32]

CURVATURE = 0.5
"""The largest curvature of softmax regression in its logits (D. Boehning, Annals of the Institute
of Statistical Mathematics 44, 1992)."""


def answer_all(points: Singles, heads: Singles, sharpness: float = 1.0) -> Floats:
    """The probabilities that every head gives every sample: (samples, heads, classes).

    Parameters
    ----------
    points
        Features with a last column of ones, (samples, width).
    heads
        (heads, width, classes).
    sharpness
        What logits are multiplied by.
    """
    logits = _multiply(points, heads).double()
    return np.asarray((sharpness * logits).softmax(dim=2).numpy())


def answer_unseen(points: Singles, heads: Singles, folds: Ints, sharpness: float = 1.0) -> Floats:
    """What the head that never saw a sample says of it: (samples, classes).

    Parameters
    ----------
    points, heads, sharpness
        As for `answer_all`.
    folds
        Which head each sample was kept from.
    """
    everything = answer_all(points, heads, sharpness)
    return np.asarray(everything[np.arange(len(points)), folds])


def measure_slope(
    points: Singles,
    heads: Singles,
    given: Ints,
    folds: Ints,
    transition: Floats,
    sharpness: float,
) -> Singles:
    """The slope of the mean loss for every head, over the samples that it may see.

    Parameters
    ----------
    points, heads, folds
        As for `answer_unseen`.
    given
        Labels as they were written.
    transition
        T of the client that wrote them, (classes, classes); rows are true classes.
    sharpness
        What logits are multiplied by before truth is inferred from them: a ridge makes heads
        less sure than they should be.
    """
    logits = _multiply(points, heads)
    p = logits.softmax(dim=2)
    sharp = p if sharpness == 1 else (sharpness * logits).softmax(dim=2)
    likelihood = torch.from_numpy(np.ascontiguousarray(transition[:, given].T)).float()
    joint = sharp * likelihood[:, None, :]
    q = joint / joint.sum(dim=2, keepdim=True).clamp_min(1e-30)
    kept = torch.from_numpy(folds[:, None] != np.arange(len(heads)))
    gap = (p - q) * kept[:, :, None]
    flat = torch.from_numpy(points).T @ gap.reshape(len(points), -1)
    width, (count, _, classes) = points.shape[1], heads.shape
    slopes = flat.reshape(width, count, classes).permute(1, 0, 2) / len(points)
    return np.ascontiguousarray(slopes.numpy())


def _multiply(points: Singles, heads: Singles) -> Tensor:
    """Logits (samples, heads, classes). By torch, whose threads a place fixes, and with them the
    bits."""
    count, width, classes = heads.shape
    side = np.ascontiguousarray(heads.transpose(1, 0, 2)).reshape(width, count * classes)
    return (torch.from_numpy(points) @ torch.from_numpy(side)).reshape(-1, count, classes)


@dataclass
class HeadDescent:
    """Steps of the server on all heads at once: Nesterov's, with the step that the curvature's
    bound allows.

    Parameters
    ----------
    heads
        Where it begins, (heads, width, classes).
    decay
        Strength of the ridge, lambda / 2 ||W||^2.
    """

    heads: Singles
    decay: float

    def __post_init__(self) -> None:
        self.ahead: Singles = self.heads.copy()
        self.momentum = 1.0

    def step(self, slope: Singles) -> Singles:
        """Go one step down the slope at `ahead`; where the next slope is wanted."""
        size = 1.0 / (CURVATURE + self.decay)
        moved = self.ahead - size * (slope + self.decay * self.ahead)
        following = (1 + (1 + 4 * self.momentum**2) ** 0.5) / 2
        push = (self.momentum - 1) / following
        self.ahead = np.asarray(moved + push * (moved - self.heads), dtype=np.float32)
        self.heads = np.asarray(moved, dtype=np.float32)
        self.momentum = following
        return self.ahead
