"""What a phase wishes for when it trains, and what it gets back.

A phase yields a `Fit`: what is to be trained on which samples by which loss, not where and when.
The place carries it out, alone or stacked with other clients', and sends back a `Trained`:

    def train(client, *, w, method):
        trained = yield Fit(w, loss=method.loss)
        return Out(update=trained.weights)

No torch here: methods that only wish do not need it where their rounds run.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from rayfl.arrays import Vector
from rayfl.errors import RayflError, broken
from rayfl.learn.losses.base import CROSS_ENTROPY, SampleLoss

if TYPE_CHECKING:
    from torch import Tensor

    from rayfl.learn.batches import Batch
    from rayfl.learn.learner import Learner

T = TypeVar("T")
Weights = Vector | Mapping[str, Vector]
"""One network's, or several networks' by name."""
Adjust = Callable[["Tensor", "Tensor"], object]
"""Changes the flat gradient in place, given (parameters, gradient)."""
BatchLoss = Callable[[Any, "Batch"], "Tensor | None"]
"""The loss of a mini-batch, given the network (or the networks by name) and the batch; None where
the batch has nothing to teach, and no step is taken."""
Schedule = Callable[[int], float]
"""The factor of the learning rate at a step of the visit."""


class Trainee(Protocol):
    """What training needs of a client."""

    @property
    def id(self) -> int: ...
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
class Pull:
    """A proximal term strength/2 ||parameters - anchor||^2; BatchNorm statistics are not pulled."""

    anchor: Vector
    strength: float


# Of a hundred thousand visits each makes one: frozen ones take three times as long to make.
@dataclass(slots=True)
class Fit:
    """A wish for local training.

    Parameters
    ----------
    weights
        Where it begins: one flat vector, or several by name, for networks that one loss trains
        together. They live in residents of these names.
    loss
        A `SampleLoss` (per-sample losses from logits and labels, averaged over the batch), or any
        function of (network, batch). Wishes with the first kind can be stacked with other clients'.
    keep
        A mask of the samples to train on.
    sample_weights
        One factor for each sample's loss; the batch is divided by its size, not by their sum.
    targets
        Labels (N,), or rows of probabilities (N, classes), in place of the client's own.
    settings
        Local settings by name in place of the run's: `{"epochs": 1, "lr": 0.01}`.
    pull
        A proximal term.
    drift
        A constant vector that is added to every gradient (a control variate).
    adjust
        Any other change of the flat gradient. Such a wish is carried out alone.
    clip
        Largest Euclidean norm of the gradient, after the changes above.
    schedule
        Factor of the learning rate at each step of the visit.
    after_step
        Called after every step with the resident network (or networks by name), for teachers that
        follow. Such a wish is carried out alone.
    client
        Whose data, stream and labels; by default the visited client's own. `client.on(public)` is
        the same visitor on other images.
    memory
        The optimiser's memory of an earlier visit (`Trained.memory`), to go on from.
    remember
        Whether `Trained.memory` is wanted.
    """

    weights: Weights
    loss: SampleLoss | BatchLoss = CROSS_ENTROPY
    keep: NDArray[np.bool_] | None = None
    sample_weights: NDArray[np.floating[Any]] | None = None
    targets: NDArray[Any] | None = None
    settings: Mapping[str, Any] | None = None
    pull: Pull | None = None
    drift: Vector | None = None
    adjust: Adjust | None = None
    clip: float | None = None
    schedule: Schedule | None = None
    after_step: Callable[[Any], object] | None = None
    client: Trainee | None = None
    memory: Weights | None = None
    remember: bool = False


@dataclass(slots=True)
class Trained:
    """What came of a `Fit`.

    Parameters
    ----------
    weights
        In the form in which they were given.
    steps
        Steps that were taken; 0 where the data did not fill one batch.
    samples
        Samples that were passed forward and backward by these steps.
    means
        Means over the samples of what the loss noted with `batch.note(name=value)`.
    memory
        The optimiser's memory, where it was asked for.
    """

    weights: Any
    steps: int
    samples: int
    means: Mapping[str, float] = field(default_factory=dict)
    memory: Any = None


Fitting = Generator[Fit, Trained, T]
"""A phase, or a part of one, whose training is left to the place."""


def refuse_misfits(wish: Fit, size: int) -> None:
    """Arrays that have an entry a sample have as many as there are samples.

    Parameters
    ----------
    wish
        What is to be trained.
    size
        How many samples the client has.
    """
    if wish.keep is not None and np.asarray(wish.keep).dtype != np.bool_:
        # Positions would be taken for a mask.
        raise RayflError(broken("a Fit's keep is a mask", np.asarray(wish.keep).dtype))
    if wish.keep is None and wish.sample_weights is None and wish.targets is None:
        return
    for name in ("keep", "sample_weights", "targets"):
        array = getattr(wish, name)
        if array is not None and len(array) != size:
            rule = f"a Fit's {name} has one entry for each of {size} samples"
            remedy = "A mask goes into keep: the other arrays stay whole."
            raise RayflError(broken(rule, len(array), remedy))
