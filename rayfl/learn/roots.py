"""Square roots that round alike on every processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayfl.bits import is_portable

if TYPE_CHECKING:
    from torch import Tensor


def square_root(x: Tensor) -> Tensor:
    """The root of each value; for portable bits within one more rounding of torch's.

    Parameters
    ----------
    x : Tensor
        Not negative.
    """
    # torch has MKL take roots, which begins with the processor's own estimate of 1/sqrt(x): each
    # maker has another one, and no setting of MKL's does without.
    return x.rsqrt().reciprocal() if is_portable() else x.sqrt()
