"""What an augmentation is: a change of whole batches, drawn for each image from the given generator
alone.

No torch here: configurations name augmentations in processes that never train.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rayfl.component import component

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Augmentation(Protocol):
    """A random change of raw images (N, C, H, W) with values in [0, 255]; normalisation comes
    afterwards.

    What only moves pixels keeps the type of `x`; everything else returns float32 in [0, 255]. The
    memory format is that of `x`, which is never written to."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor: ...


@component
class Unchanged:
    """The images as they are."""

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        return x
