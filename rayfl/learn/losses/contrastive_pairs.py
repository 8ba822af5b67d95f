"""The contrastive loss over confident pairs of FedCR (eq. 4), after CTRR (Yi et al., CVPR 2022,
arXiv 2203.01785).

    L_cr = sum_{j,k} M_jk * ( log(1 - S_jk) + log(1 - S_kj) )
    S_jk = cos(q_j, z_k),   M_jk = [ p_j . p_k >= eta ]

q are the online network's predictions for one view, z the target network's projections of the other
view, p the classifier's probabilities for a weak view; z and p are held constant. The loss is
minimised and is negative once pairs point the same way. log(1 - S) has no lower bound as S -> 1, so
1 - S never counts as less than `delta`; below it the gradient is 0."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rayfl.learn.losses.cosine import compare_cosines, scale_to_unit

Reduction = Literal["row_mean", "sum", "pair_mean"]
Diagonal = Literal["log", "neg_cos"]

CTRR_LOW, CTRR_HIGH = 1e-4, 1 - 1e-4


def contrastive_pairs(
    q: Tensor,
    z: Tensor,
    p: Tensor,
    eta: float = 0.8,
    force_diag: bool = True,
    reduction: Reduction = "row_mean",
    diag: Diagonal = "log",
    delta: float = 1e-4,
) -> Tensor:
    """The loss of a batch; both orders of a pair count, as in the equation (in CTRR's code, one).
    0, with a graph, if no pair is selected.

    Parameters
    ----------
    q
        The online network's predictions for one view, (N, d).
    z
        The target network's projections of the other view, (N, d).
    p
        Class probabilities of a weak view, (N, C).
    eta
        What p_j . p_k must reach.
    force_diag
        Select an image's own two views however unsure the classifier is.
    reduction
        `row_mean` averages over the pairs of an image, then over the batch; `pair_mean` over all
        pairs; `sum` is the equation as printed.
    diag
        `neg_cos` replaces log(1 - S) by -S on the diagonal.
    delta
        What 1 - S counts at the least.
    """
    similarity = compare_cosines(q, z.detach())
    value = (1 - similarity).clamp(min=delta).log()
    if diag == "neg_cos":
        value = torch.where(_find_diagonal(value), -similarity, value)
    chosen = measure_pair_confidence(p) >= eta
    if force_diag:
        chosen = chosen | _find_diagonal(value)
    return _reduce_pairs(value + value.mT, chosen.to(value.dtype), reduction)


def ctrr_pairs(
    q: Tensor,
    z: Tensor,
    p: Tensor,
    eta: float = 0.8,
    delta: float = 1e-6,
) -> Tensor:
    """The loss as CTRR's public code computes it, with the one guard that it lacks.

    Coordinates are clamped to [1e-4, 1 - 1e-4] after normalisation, which deletes negative ones;
    the diagonal is -S; pairs count in one direction, weighted by p_j . p_k; every entry is raised
    by 2.

    Parameters
    ----------
    q, z, p, eta
        As for `contrastive_pairs`.
    delta
        What 1 - S counts at the least, where the original takes the logarithm of 0 and multiplies
        it by a masked 0.
    """
    online = scale_to_unit(q).clamp(CTRR_LOW, CTRR_HIGH)
    target = scale_to_unit(z.detach()).clamp(CTRR_LOW, CTRR_HIGH)
    with torch.autocast(q.device.type, enabled=False):
        similarity = online @ target.mT
    own = _find_diagonal(similarity)
    repelled = (1 - similarity).clamp(min=delta).log()
    value = 2 + torch.where(own, -similarity, repelled)
    weight = measure_pair_confidence(p).masked_fill(own, 1.0)
    weight = weight.where(weight >= eta, 0.0)
    return _reduce_pairs(value, weight, "row_mean")


def _reduce_pairs(value: Tensor, weight: Tensor, reduction: Reduction) -> Tensor:
    """The weighted values as one number; a row, or a batch, without weight contributes 0."""
    weighted = (weight * value).sum(1)
    total = weight.sum(1)
    if reduction == "sum":
        return weighted.sum()
    if reduction == "pair_mean":
        return weighted.sum() / total.sum().clamp(min=1)
    rows = weighted / total.where(total > 0, 1.0)
    return rows.mean()


@torch.no_grad()
def measure_pair_confidence(p: Tensor) -> Tensor:
    """p_j . p_k for all pairs of images."""
    with torch.autocast(p.device.type, enabled=False):
        p = p.to(torch.promote_types(p.dtype, torch.float32))
        return p @ p.mT


def _find_diagonal(square: Tensor) -> Tensor:
    """True where an image meets itself."""
    return torch.eye(len(square), dtype=torch.bool, device=square.device)
