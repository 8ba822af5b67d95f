"""The squared distance of probabilities from a target (Brier, 1950), the consistency of mean
teachers and of MixMatch (Berthelot et al., NeurIPS 2019, eq. 4).

    L_i = sum_c (p_ic - t_ic)^2   in [0, 2]

Unlike cross-entropy it is bounded, and forgives a guess that is wrong. MixMatch and DivideMix
average over the classes too: L_i / C."""

from __future__ import annotations

from torch import Tensor


def squared_error(logits: Tensor, rows: Tensor) -> Tensor:
    """One loss a sample, summed over the classes.

    Parameters
    ----------
    logits
        What the network answers, (N, C).
    rows
        t, one row of probabilities a sample, (N, C); no gradient reaches them.
    """
    return (logits.softmax(-1) - rows.detach()).square().sum(-1)
