"""Generalised cross-entropy (Zhang and Sabuncu, NeurIPS 2018, eq. 6).

    L = (1 - p_y^gamma) / gamma

gamma -> 0 is cross-entropy, gamma = 1 is 1 - p_y, half the mean absolute error. Per logit the
gradient is that of cross-entropy times p_y^gamma: samples whose label the network finds unlikely
pull less. L never exceeds 1 / gamma."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.errors import ConfigError, broken


def gce(logits: Tensor, y: Tensor, gamma: float = 0.6, floor: float = 0.0) -> Tensor:
    """One loss an image. Probabilities below `floor` count as `floor`, without gradient (CTRR's
    code uses 1e-4)."""
    if not 0 <= gamma <= 1:
        raise ConfigError(
            broken("gamma of the generalised cross-entropy must lie in [0, 1]", gamma)
        )
    log_p = -F.cross_entropy(logits, y, reduction="none")
    if floor > 0:
        log_p = log_p.clamp(min=math.log(floor))
    # expm1 of the logarithm: no cancellation at a small gamma, no infinite slope at p = 0
    return -log_p if gamma == 0 else torch.expm1(gamma * log_p) / -gamma
