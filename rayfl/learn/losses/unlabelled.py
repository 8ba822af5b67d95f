"""What a loss of images without labels is, and the names of those that there are.

A network teaches itself by views of a batch, so that such a loss is called with the network, not
with its answers. No torch here: configurations name losses in processes that never train.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from rayfl.component import Registry

if TYPE_CHECKING:
    from torch import Tensor

    from rayfl.learn.batches import Batch


class UnlabelledLoss(ABC):
    """The loss of a mini-batch whose labels nobody knows; `Fit` takes it as a loss of a batch."""

    @abstractmethod
    def __call__(self, net: Any, batch: Batch) -> Tensor | None:
        """The loss, or None where the batch has nothing to teach: no step is taken.

        Parameters
        ----------
        net
            The network in training; its answers are logits.
        batch
            Its `x` is the weak view, which `training.augment` makes.
        """


UNLABELLED: Registry[UnlabelledLoss] = Registry(
    "loss without labels",
    {
        "fixmatch": "rayfl.learn.losses.fixmatch:FixMatch",
        "uda": "rayfl.learn.losses.uda:UDA",
    },
)
"""What `method.local` can name."""
