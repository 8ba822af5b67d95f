"""LogitClip (Wei et al., Mitigating memorization of noisy labels by clipping the model prediction,
ICML 2023, eq. 4).

    clip(z) = tau * z / ||z||_p if ||z||_p > tau, else z

Cross-entropy of clipped logits is bounded above and below; tau -> infinity is cross-entropy. For
training only: the prediction is the same, and evaluation takes the logits as they are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rayfl.component import Positive, component
from rayfl.errors import ConfigError, broken
from rayfl.learn.losses.base import CROSS_ENTROPY, SampleLoss


def logit_clip(
    logits: Tensor,
    tau: float = 1.0,
    compat: bool = False,
    norm: float = 2.0,
) -> Tensor:
    """Rows of logits with norms of at most `tau`.

    Parameters
    ----------
    logits
        What the network answers, (N, C).
    tau
        The longest row; infinity clips none.
    compat
        Clip rows longer than `tau` to the norm 1 / tau, as the authors' code does; at tau = 1 both
        agree.
    norm
        p, the order of the norm.
    """
    if not tau > 0:
        raise ConfigError(broken("LogitClip's tau must be positive", tau))
    if tau == math.inf:
        return logits
    length = torch.linalg.vector_norm(
        logits,
        ord=norm,
        dim=-1,
        keepdim=True,
    )
    too_long = length > tau
    target = 1 / tau if compat else tau
    # the divisor of an unclipped row is 1, so that no branch can emit NaN
    divisor = length.where(too_long, 1.0)
    return torch.where(too_long, logits * (target / divisor), logits)


@component
class LogitClip(SampleLoss):
    """Cross-entropy of logits whose norm is clipped, which bounds it."""

    tau: Positive | None = 1.0
    """The longest row of logits. Local K-similarity and the default of the authors' code: 1; their
    example on CIFAR-10: 1.5 (of 1/1.5, see `compat`); neutral: null, cross-entropy."""
    norm: Positive = 2.0
    """Order p of the norm. Authors' code: 2."""
    compat: bool = False
    """Clip to 1 / tau, as the authors' code does, in place of tau."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        return CROSS_ENTROPY(self._clip(logits), targets)

    def mean(self, logits: Tensor, targets: Tensor) -> Tensor:
        return CROSS_ENTROPY.mean(self._clip(logits), targets)

    def _clip(self, logits: Tensor) -> Tensor:
        tau = math.inf if self.tau is None else self.tau
        return logit_clip(
            logits,
            tau,
            self.compat,
            self.norm,
        )
