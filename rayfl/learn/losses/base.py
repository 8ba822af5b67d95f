"""What a loss of the slot `loss` is, and the plainest one.

No torch when this module is read: configurations name losses in processes that never train.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from rayfl.component import component

if TYPE_CHECKING:
    from torch import Tensor


class SampleLoss(ABC):
    """A loss that has one value a sample, from the logits and the target of this sample alone.

    Rows know nothing of each other, so that a place may lay the batches of many clients one behind
    the other and call the loss once. A loss that relates samples, such as a contrastive one, is no
    `SampleLoss`: it is a function of the network and the batch.

    >>> @component
    ... class Hinge(SampleLoss):
    ...     def __call__(self, logits, targets):
    ...         own = logits.gather(1, targets[:, None])[:, 0]
    ...         return (1 - own).clamp(min=0)
    """

    @abstractmethod
    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The losses of these samples, not averaged.

        Parameters
        ----------
        logits
            What the network answers, (N, C).
        targets
            Labels (N,), or a row of class probabilities a sample (N, C).

        Returns
        -------
        Tensor
            One loss a sample, (N,).
        """


@component
class CrossEntropy(SampleLoss):
    """-log p_y of a label, -sum_c t_c log p_c of a row of probabilities t."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.cross_entropy(logits, targets, reduction="none")
