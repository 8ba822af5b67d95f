"""How sure the answers are, and how they spread over the classes.

    H(p_i) = -sum_c p_ic log p_ic             of a sample: small where the network is sure
    CE(pi, pbar) = -sum_c pi_c log pbar_c     of a batch, pbar = mean_i p_i
    KL(pi || pbar) = CE(pi, pbar) - H(pi)     0 where answers are spread as the prior pi

The last two keep one class from taking all samples. Joint optimisation (Tanaka et al., CVPR 2018):
L_e = mean H, L_p = CE(pi, pbar). DivideMix (Li et al., ICLR 2020): the regulariser is
KL(pi || pbar), the confidence penalty for asymmetric noise is mean -H."""

from __future__ import annotations

import torch
from torch import Tensor

RAREST = 1e-8
"""The least probability of a class that no sample is given, so that its logarithm exists."""


def entropy(logits: Tensor) -> Tensor:
    """H of every sample's answer, (N,), in [0, log C].

    Parameters
    ----------
    logits
        What the network answers, (N, C).
    """
    log_p = logits.log_softmax(-1)
    # What is impossible, as an adjusted logit can be, says nothing: 0 log 0 counts as 0.
    finite = log_p.masked_fill(log_p.isneginf(), 0.0)
    return -(log_p.exp() * finite).sum(-1)


def negative_entropy(logits: Tensor) -> Tensor:
    """-H of every sample's answer, the confidence penalty (Pereyra et al., 2017), (N,).

    Parameters
    ----------
    logits
        What the network answers, (N, C).
    """
    return -entropy(logits)


def prior_cross_entropy(logits: Tensor, prior: Tensor | None = None) -> Tensor:
    """CE(pi, pbar) of a batch: one number, at least H(pi).

    Parameters
    ----------
    logits
        What the network answers, (N, C).
    prior
        pi, (C,); by default uniform.
    """
    mean = logits.softmax(-1).mean(0).clamp(min=RAREST)
    if prior is None:
        return -mean.log().mean()
    return -(prior.to(mean) * mean.log()).sum()


def prior_divergence(logits: Tensor, prior: Tensor | None = None) -> Tensor:
    """KL(pi || pbar) of a batch: one number, 0 where the answers are spread as the prior.

    Parameters
    ----------
    logits
        What the network answers, (N, C).
    prior
        pi, (C,); by default uniform.
    """
    classes = logits.shape[-1]
    shares = logits.new_full((classes,), 1 / classes) if prior is None else prior.to(logits)
    return prior_cross_entropy(logits, prior) + torch.xlogy(shares, shares).sum()
