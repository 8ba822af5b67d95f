"""The samples of small loss, which networks fit first and which are likely labelled right (Arpit et
al., ICML 2017; Han et al., Co-teaching, NeurIPS 2018).

    I = the m samples of smallest loss,   m = max(1, floor(share * n))   or   ceil(share * n)

Co-teaching and Robust FL round down, SELFIE rounds up."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from rayfl.errors import ConfigError, broken

Rounding = Literal["down", "up"]

CLOSE = 1e-9
"""(1 - 0.9) * 10 is 0.9999999 in floating point and means 1."""


def count_kept(samples: int, share: float, rounding: Rounding = "down") -> int:
    """m: how many of so many samples a share keeps; one at the least.

    Parameters
    ----------
    samples
        n, the length of the batch.
    share
        The share to be kept, in [0, 1]: one minus the forget rate.
    rounding
        Whether a part of a sample is dropped or counted.
    """
    if not 0 <= share <= 1:
        raise ConfigError(broken("the share of samples to be kept lies in [0, 1]", share))
    exact = share * samples
    whole = math.floor(exact + CLOSE) if rounding == "down" else math.ceil(exact - CLOSE)
    return min(max(whole, 1), samples)


def select_small_losses(losses: Tensor, share: float, rounding: Rounding = "down") -> Tensor:
    """Positions of the samples of smallest loss, smallest first, without a gradient.

    Of equal losses the earlier sample counts as smaller; one that is not a number is largest.

    Parameters
    ----------
    losses
        One a sample, (N,).
    share
        The share to be kept, in [0, 1].
    rounding
        Whether a part of a sample is dropped or counted.
    """
    # A sample that overflows is no sample of small loss, and must not decide the order either.
    ranks = losses.detach().nan_to_num(nan=torch.inf, posinf=torch.inf)
    kept = count_kept(len(ranks), share, rounding)
    return ranks.argsort(stable=True)[:kept]
