"""The model-contrastive loss of MOON (Li et al., Model-contrastive federated learning, CVPR 2021,
eq. 3).

    L = -log( exp(cos(z, z_glob)/tau) / ( exp(cos(z, z_glob)/tau) + sum_p exp(cos(z, z_p)/tau) ) )

z is what the local model makes of an image, z_glob what the received global model makes of it (the
positive), z_p what the client's earlier local models make of it (the negatives)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.errors import ConfigError, broken
from rayfl.learn.losses.cosine import scale_to_unit


def model_contrastive(
    z: Tensor,
    z_global: Tensor,
    z_previous: Sequence[Tensor] = (),
    tau: float = 0.5,
) -> Tensor:
    """One loss an image; exactly 0 without an earlier model.

    Parameters
    ----------
    z
        What the model in training makes of the images, (N, d); it alone gets a gradient.
    z_global
        What the received model makes of them.
    z_previous
        What each of the client's earlier models makes of them.
    tau
        The temperature.
    """
    if not tau > 0:
        rule = "the temperature of the model-contrastive loss must be positive"
        raise ConfigError(broken(rule, tau))
    direction = scale_to_unit(z)
    others = [scale_to_unit(other.detach()) for other in (z_global, *z_previous)]
    cosines = [(direction * other).sum(-1) for other in others]
    similarity = torch.stack(cosines, dim=-1) / tau
    # Cross-entropy whose right answer is the first: the global model.
    positive = torch.zeros(len(z), dtype=torch.long, device=z.device)
    return F.cross_entropy(similarity, positive, reduction="none")
