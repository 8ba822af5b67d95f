"""UDA: a strong view is to be answered like a weak one, sharpened, where that is sure.

Q. Xie, Z. Dai, E. Hovy, M.-T. Luong and Q. V. Le: "Unsupervised data augmentation for consistency
training", NeurIPS 2020. With z = f(weak(u)), which gets no gradient, over a batch of B images

    L_u = 1/B sum_b 1{max softmax(z_b) > beta} KL(softmax(z_b / T) || softmax f(strong(u_b)))

Training-signal annealing leaves labelled images out while the network is surer of their label than
eta_t = c_t (1 - 1/C) + 1/C, with c_t = s, exp(5 (s - 1)) or 1 - exp(-5 s) at the share s of the
run."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from torch import Tensor

from rayfl.component import NonNegative, Positive, component, slot
from rayfl.learn.augment import AUGMENTATIONS, Augmentation
from rayfl.learn.augment.strong import Strong
from rayfl.learn.batches import Batch
from rayfl.learn.losses.distillation import kl_divergence, soften
from rayfl.learn.losses.fixmatch import answer_both_views
from rayfl.learn.losses.unlabelled import UnlabelledLoss

Annealing = Literal["none", "linear", "exp", "log"]


def uda(weak: Tensor, strong: Tensor, threshold: float = 0.8, temperature: float = 0.4) -> Tensor:
    """The loss of every image; 0 where the network is not sure.

    Parameters
    ----------
    weak
        Logits of the weak view, (N, C); no gradient reaches them.
    strong
        Logits of the strong view, (N, C).
    threshold
        What the largest probability must exceed, before it is sharpened. Code: 0.8.
    temperature
        T of the target. Code: 0.4; 1 leaves it as it is.
    """
    return kl_divergence(soften(weak, temperature), strong) * find_sure(weak, threshold)


def find_sure(logits: Tensor, threshold: float) -> Tensor:
    """Whose largest probability exceeds the threshold: UDA's mask, which FixMatch's at its very
    threshold is not.

    Parameters
    ----------
    logits
        (N, C).
    threshold
        Between 0 and 1.
    """
    return logits.detach().softmax(-1).amax(-1) > threshold


def anneal_signal(share: float, classes: int, annealing: Annealing) -> float:
    """eta_t, how sure of its label the network may be of an image that still counts.

    Parameters
    ----------
    share
        s, how much of the run is over.
    classes
        C.
    annealing
        How eta_t grows from about 1/C to 1; `none` is 1 throughout.

    Examples
    --------
    >>> [round(anneal_signal(0.5, 10, how), 6) for how in ("linear", "exp", "log", "none")]
    [0.55, 0.173876, 0.926124, 1.0]
    """
    grown = {
        "none": 1.0,
        "linear": share,
        "exp": math.exp(5 * (share - 1)),
        "log": 1 - math.exp(-5 * share),
    }[annealing]
    return grown * (1 - 1 / classes) + 1 / classes


def mean_of_unlearnt(losses: Tensor, logits: Tensor, y: Tensor, eta: float) -> Tensor:
    """The mean loss of the images whose own label has no more than this probability; 0 of none.

    Parameters
    ----------
    losses
        One a sample.
    logits
        What the network answers.
    y
        Labels.
    eta
        eta_t.
    """
    own = logits.detach().softmax(-1).gather(1, y[:, None])[:, 0]
    counted = own <= eta
    return (losses * counted).sum() / counted.sum().clamp(min=1)


@component
class UDA(UnlabelledLoss):
    """Divergence of a strong view's answer from the sharpened one to a weak view, where that is
    sure."""

    threshold: NonNegative = 0.8
    """beta. Code: 0.8; from 1 on nothing is learnt."""
    temperature: Positive = 0.4
    """T. Code: 0.4."""
    strong: Annotated[Augmentation, slot(AUGMENTATIONS)] = Strong()
    """The strong view; the weak one is `training.augment`'s."""
    together: bool = True
    """Both views in one pass, as the public codes do it."""

    def __call__(self, net: Any, batch: Batch) -> Tensor | None:
        weak, strong = answer_both_views(net, batch, self.strong, self.together)
        sure = find_sure(weak, self.threshold)
        batch.note(sure=sure.float().mean())
        # A loss of 0 would still move weights that decay, or that a momentum carries on.
        return uda(weak, strong, self.threshold, self.temperature).mean() if sure.any() else None
