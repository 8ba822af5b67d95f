"""mixup: convex combinations of images and of their labels (Zhang et al., mixup, ICLR 2018)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rayfl.errors import ConfigError, DataError, broken


def mixing_share(alpha: float, generator: torch.Generator) -> float:
    """One draw from Beta(alpha, alpha); 1, which mixes nothing, at alpha = 0."""
    if not 0 <= alpha < float("inf"):
        raise ConfigError(
            broken("mixup's alpha must be finite and at least 0", alpha, "0 switches mixup off.")
        )
    if alpha == 0:
        return 1.0
    # torch draws no beta variate from a given generator; numpy does, seeded by one draw from it
    seed = torch.randint(2**63 - 1, (), generator=generator, device=generator.device)
    return float(np.random.default_rng(int(seed)).beta(alpha, alpha))


def mixup(x: Tensor, y: Tensor, alpha: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Mix the batch with a permutation of itself: `share * x + (1 - share) * x[permutation]`, and y
    alike.

    `x` holds float inputs, `y` one row of class probabilities an input (one-hot for plain labels).
    The whole batch has one share. Cross-entropy with the mixed rows equals the same mixture of the
    two cross-entropies."""
    if not x.is_floating_point():
        raise DataError(broken("mixup takes float inputs", x.dtype, "Normalise the images first."))
    if y.ndim != 2 or not y.is_floating_point() or len(y) != len(x):
        rule = f"mixup takes labels as rows of probabilities, one for each of {len(x)} inputs"
        raise DataError(
            broken(
                rule,
                f"{y.dtype} {tuple(y.shape)}",
                "Use torch.nn.functional.one_hot(y, C).float().",
            )
        )
    share = mixing_share(alpha, generator)
    if share == 1:
        return x, y
    other = torch.randperm(len(x), generator=generator, device=generator.device).to(x.device)
    return torch.lerp(x[other], x, share), torch.lerp(y[other], y, share)
