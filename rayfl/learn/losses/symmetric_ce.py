"""Symmetric cross-entropy (Wang et al., ICCV 2019, eq. 6-8).

    L = alpha * CE + beta * RCE,   CE = -sum_k q_k log p_k,   RCE = -sum_k p_k log q_k

Of a label y, q is one-hot, and with A < 0 for log 0: CE = -log p_y, RCE = -A * (1 - p_y). Every
public implementation clips q at 1e-4, so A = log 1e-4. alpha = 1, beta = 0 is cross-entropy."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

from rayfl.component import NonNegative, component
from rayfl.learn.losses.base import CROSS_ENTROPY, SampleLoss

LOG_ZERO = math.log(1e-4)


def symmetric_ce(
    logits: Tensor,
    targets: Tensor,
    alpha: float = 0.5,
    beta: float = 0.5,
    log_zero: float = LOG_ZERO,
) -> Tensor:
    """The symmetric cross-entropy of every sample.

    Parameters
    ----------
    logits
        What the network answers, (N, C).
    targets
        Labels (N,), or rows of probabilities (N, C).
    alpha
        Weight of the cross-entropy.
    beta
        Weight of the reverse cross-entropy.
    log_zero
        A, which stands for log 0.
    """
    ce = F.cross_entropy(logits, targets, reduction="none")
    if targets.is_floating_point():
        log_q = targets.clamp(min=math.exp(log_zero)).log()
        reverse = -(logits.softmax(1) * log_q).sum(1)
    else:
        # -expm1(-ce) is 1 - p_y, exact also when p_y is close to 1
        reverse = log_zero * (-ce).expm1()
    return alpha * ce + beta * reverse


@component
class SymmetricCrossEntropy(SampleLoss):
    """Cross-entropy and its reverse, which is bounded: alpha CE + beta RCE."""

    alpha: NonNegative = 0.5
    """Weight of CE. Paper: 0.1 for CIFAR-10, 6 for CIFAR-100; local K-similarity: 0.5; RHFL: 0.1;
    the default of the authors' code: 1; neutral: 1."""
    beta: NonNegative = 0.5
    """Weight of RCE. Paper: 1 for CIFAR-10, 0.1 for CIFAR-100; local K-similarity: 0.5; RHFL: 1;
    the default of the authors' code: 1; neutral: 0."""

    @property
    def _neutral(self) -> bool:
        return self.alpha == 1 and self.beta == 0

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self._neutral:
            return CROSS_ENTROPY(logits, targets)
        return symmetric_ce(
            logits,
            targets,
            self.alpha,
            self.beta,
        )

    def mean(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self._neutral:
            return CROSS_ENTROPY.mean(logits, targets)
        return super().mean(logits, targets)
