"""Symmetric cross-entropy (Wang et al., ICCV 2019, eq. 6-8).

    L = alpha * CE + beta * RCE,   CE = -log p_y,   RCE = -sum_k p_k log q_k = -A * (1 - p_y)

q is the one-hot label and A < 0 stands for log 0. Every public implementation clips q at 1e-4, so A
= log 1e-4. alpha = 1, beta = 0 is cross-entropy."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import Tensor

LOG_ZERO = math.log(1e-4)


def symmetric_ce(
    logits: Tensor, y: Tensor, alpha: float = 0.5, beta: float = 0.5, log_zero: float = LOG_ZERO
) -> Tensor:
    """One loss an image, from logits and integer labels."""
    ce = F.cross_entropy(logits, y, reduction="none")
    # -expm1(-ce) is 1 - p_y, exact also when p_y is close to 1
    return alpha * ce + beta * log_zero * (-ce).expm1()
