"""FixMatch: a strong view is to be called what the network is sure to see in a weak one.

K. Sohn et al.: "FixMatch: simplifying semi-supervised learning with consistency and confidence",
NeurIPS 2020, eq. 4. With p = softmax f(weak(u)), which gets no gradient, over a batch of B images

    L_u = 1/B sum_b 1{max p_b >= tau} CE(argmax p_b, f(strong(u_b)))

divided by B, not by how many are sure, so that a batch of doubts moves little."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from torch import Tensor
from torch.nn import functional

from rayfl.component import NonNegative, component, slot
from rayfl.learn.augment import AUGMENTATIONS, Augmentation
from rayfl.learn.augment.strong import Strong
from rayfl.learn.batches import Batch
from rayfl.learn.losses.unlabelled import UnlabelledLoss
from rayfl.learn.mixing import trust_guesses


def fixmatch(weak: Tensor, strong: Tensor, threshold: float = 0.95) -> Tensor:
    """The loss of every image; 0 where the network is not sure.

    Parameters
    ----------
    weak
        Logits of the weak view, (N, C); no gradient reaches them.
    strong
        Logits of the strong view, (N, C).
    threshold
        tau, the least probability of a guess that counts. Paper: 0.95.
    """
    guesses, sure = trust_guesses(weak.detach().softmax(-1), threshold)
    return functional.cross_entropy(strong, guesses, reduction="none") * sure


def answer_both_views(
    net: Any, batch: Batch, strong: Augmentation, together: bool
) -> tuple[Tensor, Tensor]:
    """Logits of the weak and of the strong view of a batch.

    Parameters
    ----------
    net
        The network in training.
    batch
        Its `x` is the weak view.
    strong
        What makes the strong one.
    together
        Both in one pass, so that they share BatchNorm's statistics, or one after the other.
    """
    view = batch.view(strong)
    if together:
        both: Tensor = net(torch.cat((batch.x, view)))
        weak, answer = both.chunk(2)
        return weak, answer
    with torch.no_grad():
        guess: Tensor = net(batch.x)
    answer = net(view)
    return guess, answer


@component
class FixMatch(UnlabelledLoss):
    """Cross-entropy of a strong view with what is seen in a weak one, where that is sure."""

    threshold: NonNegative = 0.95
    """tau. Paper: 0.95; 0 believes every guess, above 1 none is believed."""
    strong: Annotated[Augmentation, slot(AUGMENTATIONS)] = Strong()
    """The strong view; the weak one is `training.augment`'s."""
    together: bool = True
    """Both views in one pass, as the public codes do it."""

    def __call__(self, net: Any, batch: Batch) -> Tensor | None:
        weak, strong = answer_both_views(net, batch, self.strong, self.together)
        sure = weak.detach().softmax(-1).amax(-1) >= self.threshold
        batch.note(sure=sure.float().mean())
        # A loss of 0 would still move weights that decay, or that a momentum carries on.
        return fixmatch(weak, strong, self.threshold).mean() if sure.any() else None
