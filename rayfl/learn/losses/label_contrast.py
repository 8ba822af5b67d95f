"""Images of one label together, of different labels apart, by the cosines of their latents.

    L = -1/|A'| sum_{i in A'} log( sum_{j in P(i)} exp(z_i . z_j / T)
                                   / sum_{j != i} exp(z_i . z_j / T) )

P(i) are the other images with the label of i, A' those that have any: what has no partner in a
batch has no loss. The label contrastive loss of FedAnchor (arXiv 2402.10191), in the form of
InfoNCE."""

from __future__ import annotations

import torch
from torch import Tensor


def label_contrast(z: Tensor, y: Tensor, temperature: float = 0.1) -> Tensor:
    """The loss of a batch; 0 where no two images share a label.

    Parameters
    ----------
    z
        Latents of length 1, (N, d).
    y
        Labels (N,).
    temperature
        T; the smaller, the more the nearest of the others count.
    """
    scores = z @ z.mT / temperature
    own = torch.eye(len(z), dtype=torch.bool, device=z.device)
    partners = (y[:, None] == y[None, :]) & ~own
    paired = partners.any(1)
    if not paired.any():
        return z.sum() * 0.0
    # Rows without a partner are left out before the logarithm: theirs is of 0.
    scores, partners, own = scores[paired], partners[paired], own[paired]
    together = scores.masked_fill(~partners, -torch.inf).logsumexp(1)
    everybody = scores.masked_fill(own, -torch.inf).logsumexp(1)
    return (everybody - together).mean()
