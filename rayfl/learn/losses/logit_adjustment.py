"""Logit adjustment for unequal classes (Menon et al., Long-tail learning via logit adjustment, ICLR
2021).

    L = CE(z + tau log pi, y),   pi_c = n_c / n

A class that a client does not have gets the logit minus infinity: softmax gives it exactly 0, and
nothing is learnt of it. Equal counts, or tau = 0, are cross-entropy."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from rayfl.errors import DataError, broken


def log_prior(counts: ArrayLike) -> Tensor:
    """log pi of the classes, minus infinity for those without samples, (C,).

    Parameters
    ----------
    counts
        How many samples of each class there are, such as `client.class_counts`.
    """
    sizes = torch.from_numpy(np.asarray(counts, dtype=np.float64))
    total = sizes.sum()
    if not bool((sizes >= 0).all()) or not bool(total > 0):
        rule = "the counts of a class prior are not negative, and one is positive"
        raise DataError(broken(rule, np.asarray(counts).tolist()))
    # In double precision up to here: the shares of rare classes are small.
    return (sizes / total).log().float()


def adjust_logits(logits: Tensor, prior: Tensor, tau: float = 1.0) -> Tensor:
    """z + tau log pi, for any loss of logits.

    Parameters
    ----------
    logits
        What the network answers, (N, C).
    prior
        log pi of the classes, (C,); see `log_prior`.
    tau
        Strength of the adjustment. FedNoRo: 1; neutral: 0.
    """
    # 0 times minus infinity would be no number.
    return logits if tau == 0 else logits + tau * prior.to(logits.device)
