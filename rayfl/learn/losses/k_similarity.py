"""The local K-similarity constraint (Amgain, Shrestha et al., arXiv 2511.06169, eq. 2-4).

    L_j = -log( sum_{k in N(j)} exp(a_jk) / sum_l exp(a_jl) ),   a_jk = cos(z_j, z_k) / T

N(j) are the K images of the batch that a frozen, self-supervised encoder finds most similar to
image j. The network's features z are drawn towards the features of these neighbours, whatever the
labels say. Features are normalised."""

from __future__ import annotations

import torch
from torch import Tensor

from rayfl.errors import ConfigError, broken
from rayfl.learn.losses.cosine import compare_cosines


def k_similarity(
    z: Tensor,
    reference: Tensor,
    k: int = 4,
    temperature: float = 0.3,
    self_in_den: bool = True,
) -> Tensor:
    """One loss an image: `z` are the network's features, `reference` the frozen encoder's of the
    same images.

    A batch of m <= k images uses m - 1 neighbours, and a single image has loss 0.

    Parameters
    ----------
    z
        The network's features, (m, d).
    reference
        The frozen encoder's features of the same images, (m, e).
    k
        K, how many neighbours an image is drawn to.
    temperature
        T.
    self_in_den
        Count image j itself in the denominator, as the equation is printed.
    """
    if not temperature > 0:
        rule = "the temperature of the K-similarity loss must be positive"
        raise ConfigError(broken(rule, temperature))
    neighbours = find_nearest_in_batch(reference, k)
    if neighbours.shape[1] == 0:
        return 0.0 * z.sum(-1)
    similarity = compare_cosines(z, z) / temperature
    near = torch.zeros_like(similarity, dtype=torch.bool).scatter_(1, neighbours, True)
    if not self_in_den:
        similarity = _mask_self(similarity)
    nearest = similarity.masked_fill(~near, -torch.inf)
    return similarity.logsumexp(1) - nearest.logsumexp(1)


@torch.no_grad()
def find_nearest_in_batch(reference: Tensor, k: int) -> Tensor:
    """Indices (m, min(k, m - 1)) of the most similar other images, nearest first; of equals the
    lower index first.

    Parameters
    ----------
    reference
        Features, (m, e).
    k
        How many are wanted.
    """
    if k < 1:
        raise ConfigError(broken("the K-similarity loss needs k of at least 1", k))
    # masking the image itself, not dropping the first column: a duplicate may sort before it
    others = _mask_self(compare_cosines(reference, reference))
    ranking = others.sort(dim=1, descending=True, stable=True).indices
    return ranking[:, : min(k, len(reference) - 1)]


def _mask_self(similarity: Tensor) -> Tensor:
    """The square matrix with -infinity on its diagonal."""
    own = torch.eye(len(similarity), dtype=torch.bool, device=similarity.device)
    return similarity.masked_fill(own, -torch.inf)
