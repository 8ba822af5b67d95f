"""Cross-entropy with one distribution over the classes a sample.

    L = -sum_c t_c log p_c,   p = softmax(z)

A one-hot t is the cross-entropy of a label. DivideMix (Li et al., ICLR 2020), joint optimisation
(Tanaka et al., CVPR 2018) and every mixup train on it."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from rayfl.errors import DataError, broken


def soft_cross_entropy(logits: Tensor, rows: Tensor) -> Tensor:
    """One loss a sample.

    Parameters
    ----------
    logits
        What the network answers, (N, C).
    rows
        t, one row a sample, (N, C); rows need not sum to 1.
    """
    if rows.shape != logits.shape or not rows.is_floating_point():
        rule = f"soft targets are one row of probabilities a sample, {tuple(logits.shape)}"
        remedy = "Use rayfl.learn.mixing.encode_labels for labels."
        raise DataError(broken(rule, f"{rows.dtype} {tuple(rows.shape)}", remedy))
    return F.cross_entropy(logits, rows, reduction="none")
