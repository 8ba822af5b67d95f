"""LogitClip (Wei et al., Mitigating memorization of noisy labels by clipping the model prediction,
ICML 2023, eq. 4).

    clip(z) = tau * z / ||z||_2 if ||z||_2 > tau, else z

Cross-entropy of clipped logits is bounded above and below; tau -> infinity is cross-entropy. For
training only: the prediction is the same, and evaluation takes the logits as they are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rayfl.errors import ConfigError, broken


def logit_clip(logits: Tensor, tau: float = 1.0, compat: bool = False) -> Tensor:
    """Rows of logits with norms of at most `tau`.

    `compat` clips rows longer than `tau` to the norm 1 / tau, as the authors' code does; at tau = 1
    both agree."""
    if not tau > 0:
        raise ConfigError(broken("LogitClip's tau must be positive", tau))
    if tau == math.inf:
        return logits
    norm = torch.linalg.vector_norm(logits, dim=-1, keepdim=True)
    clipped = norm > tau
    target = 1 / tau if compat else tau
    # the divisor of an unclipped row is 1, so that no branch can emit NaN
    return torch.where(clipped, logits * (target / norm.where(clipped, 1.0)), logits)
