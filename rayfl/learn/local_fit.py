"""What a phase that leaves its training to the place says: what is to be trained, not where and
when.

No torch here: methods that only wish do not need it where their rounds run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from rayfl.learn.learner import Learner

T = TypeVar("T")
Vector = NDArray[np.float32]
Adjust = Callable[["Tensor", "Tensor"], object]
"""Changes the flat gradient in place, given (parameters, gradient)."""


class Trainee(Protocol):
    """What the training loop needs of a client."""

    @property
    def x(self) -> NDArray[np.uint8]: ...
    @property
    def labels(self) -> NDArray[np.int64] | None: ...
    @property
    def y(self) -> NDArray[np.int64]: ...
    @property
    def rng(self) -> np.random.Generator: ...
    @property
    def learner(self) -> Learner: ...


@dataclass(frozen=True)
class Fit:
    """A wish for local training from `weights`. A phase that yields one gets the new weights back;
    the place may train several clients at once."""

    weights: Vector
    adjust: Adjust | None = None

    def carried_out(self, client: Trainee) -> Vector:
        """The training of one client by itself."""
        from rayfl.learn.fit import fit

        return fit(client, self.weights, adjust=self.adjust)


Training = Generator[Fit, Vector, T]
"""A phase whose local training is left to the place: `local = yield Fit(w)`."""
