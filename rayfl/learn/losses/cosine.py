"""Directions and cosines that stay finite, also for zero vectors and under mixed precision."""

from __future__ import annotations

import torch
from torch import Tensor

SHORTEST = 1e-12


def scale_to_unit(x: Tensor) -> Tensor:
    """Rows of length 1, in float32 or better. A row shorter than 1e-12 becomes 0 and passes no
    gradient.

    Parameters
    ----------
    x
        (..., d).
    """
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    long_enough = length > SHORTEST
    # the untaken branch must be finite too: its gradient is multiplied by 0, and 0 * inf is NaN
    return torch.where(long_enough, x / length.where(long_enough, 1.0), 0.0)


def compare_cosines(a: Tensor, b: Tensor) -> Tensor:
    """The cosine of every row of `a` with every row of `b`, (len(a), len(b)).

    Parameters
    ----------
    a
        (n, d).
    b
        (m, d).
    """
    with torch.autocast(a.device.type, enabled=False):
        return scale_to_unit(a) @ scale_to_unit(b).mT
