"""Generalised cross-entropy (Zhang and Sabuncu, NeurIPS 2018, eq. 6).

    L = (1 - p_y^gamma) / gamma

gamma -> 0 is cross-entropy, gamma = 1 is 1 - p_y, half the mean absolute error. Per logit the
gradient is that of cross-entropy times p_y^gamma: samples whose label the network finds unlikely
pull less. L never exceeds 1 / gamma. A row of probabilities t has the loss sum_c t_c L_c."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.component import Fraction, component
from rayfl.errors import ConfigError, broken
from rayfl.learn.losses.base import CROSS_ENTROPY, SampleLoss


def gce(
    logits: Tensor,
    targets: Tensor,
    gamma: float = 0.6,
    floor: float = 0.0,
) -> Tensor:
    """The generalised cross-entropy of every sample.

    Parameters
    ----------
    logits
        What the network answers, (N, C).
    targets
        Labels (N,), or rows of probabilities (N, C).
    gamma
        The exponent, in [0, 1].
    floor
        Probabilities below this count as `floor`, without gradient (CTRR's code uses 1e-4).
    """
    if not 0 <= gamma <= 1:
        raise ConfigError(
            broken("gamma of the generalised cross-entropy must lie in [0, 1]", gamma)
        )
    if targets.is_floating_point():
        of_classes = _losses_of(logits.log_softmax(1), gamma, floor)
        return (targets * of_classes).sum(1)
    log_p = -F.cross_entropy(logits, targets, reduction="none")
    return _losses_of(log_p, gamma, floor)


def _losses_of(log_p: Tensor, gamma: float, floor: float) -> Tensor:
    """L of the probabilities whose logarithms these are."""
    if floor > 0:
        log_p = log_p.clamp(min=math.log(floor))
    if gamma == 0:
        return -log_p
    # expm1 of the logarithm: no cancellation at a small gamma, no infinite slope at p = 0
    return torch.expm1(gamma * log_p) / -gamma


@component
class GeneralisedCrossEntropy(SampleLoss):
    """Between cross-entropy and the mean absolute error: (1 - p_y^gamma) / gamma."""

    gamma: Fraction = 0.7
    """The exponent. Paper: 0.7; FedCR: 0.6; neutral: 0, cross-entropy."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.gamma == 0:
            return CROSS_ENTROPY(logits, targets)
        return gce(logits, targets, self.gamma)

    def mean(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.gamma == 0:
            return CROSS_ENTROPY.mean(logits, targets)
        return super().mean(logits, targets)
