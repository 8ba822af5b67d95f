"""The loss of BYOL (Grill et al., Bootstrap your own latent, NeurIPS 2020, eq. 2).

    L_j = || q_j/||q_j|| - z_j/||z_j|| ||^2 = 2 - 2 cos(q_j, z_j)   in [0, 4]

q is the online network's prediction for one view, z the target network's projection of the other,
held constant."""

from __future__ import annotations

from torch import Tensor

from rayfl.learn.losses.cosine import scale_to_unit


def byol(q: Tensor, z: Tensor) -> Tensor:
    """One loss an image.

    Parameters
    ----------
    q
        The online network's predictions, (N, d).
    z
        The target network's projections, (N, d); no gradient reaches them.
    """
    gap = scale_to_unit(q) - scale_to_unit(z.detach())
    return gap.square().sum(-1)


def byol_symmetric(
    q1: Tensor,
    q2: Tensor,
    z1: Tensor,
    z2: Tensor,
) -> Tensor:
    """Prediction of each view against the projection of the other one, summed; one loss an
    image.

    Parameters
    ----------
    q1, q2
        Predictions for the two views.
    z1, z2
        Projections of the two views.
    """
    return byol(q1, z2) + byol(q2, z1)
