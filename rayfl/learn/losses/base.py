"""What a loss of the loss slot is: a loss for each sample, from logits and labels.

Row by row and without a state, so that the rows of many clients can be computed in one go. No torch
here: configurations name losses in processes that never train.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from rayfl.component import component

if TYPE_CHECKING:
    from torch import Tensor


class SampleLoss(ABC):
    """One loss a sample, from the logits and the target of this sample alone.

    A place lays the batches of many clients one behind the other and calls the loss once. A loss
    that relates samples, such as a contrastive one, is a function of the network and the batch.

    >>> @component
    ... class Hinge(SampleLoss):
    ...     def __call__(self, logits, targets):
    ...         own = logits.gather(1, targets[:, None])[:, 0]
    ...         return (1 - own).clamp(min=0)
    """

    @abstractmethod
    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Losses (N,) of logits (N, C).

        Parameters
        ----------
        logits
            One row a sample, float32.
        targets
            Labels (N,), or rows of probabilities (N, C).
        """

    def mean(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of a batch.

        Parameters
        ----------
        logits
            One row a sample, float32.
        targets
            Labels (N,), or rows of probabilities (N, C).
        """
        return self(logits, targets).mean()


@component
class CrossEntropy(SampleLoss):
    """-log p_y, or -sum_k q_k log p_k for rows q of probabilities."""

    def __call__(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        return functional.cross_entropy(logits, targets, reduction="none")

    def mean(self, logits: Tensor, targets: Tensor) -> Tensor:
        from torch.nn import functional

        # One kernel, whose sum is rounded otherwise than that of the rows.
        return functional.cross_entropy(logits, targets)


CROSS_ENTROPY = CrossEntropy()
