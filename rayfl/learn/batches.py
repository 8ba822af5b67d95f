"""The mini-batches of a visit: which samples, in which order, and what a loss can ask of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rayfl.errors import RayflError, broken
from rayfl.learn.augment.base import Augmentation
from rayfl.learn.learner import Learner, draw_seed
from rayfl.learn.local_fit import Trainee
from rayfl.learn.training import LocalTraining

Rows = NDArray[np.int64]
Gather = Callable[[Rows], "tuple[Tensor, Tensor | None]"]
OF_THE_PLACE = ("normalise", "precision", "stack", "layout", "kernels", "compile")
"""Local settings that a place's networks are made for: one visit cannot have its own."""


class Notes:
    """What a loss noted of its batches, as means over their samples."""

    def __init__(self) -> None:
        self._values: dict[str, list[Tensor | float]] = defaultdict(list)
        self._sizes: dict[str, list[int]] = defaultdict(list)

    def add(self, name: str, value: Tensor | float, size: int) -> None:
        # A tensor stays one until the end: on a GPU, to read it would be to wait for it.
        self._values[name].append(value.detach() if isinstance(value, Tensor) else value)
        self._sizes[name].append(size)

    def means(self) -> dict[str, float]:
        """One number a name; batches count by their samples."""
        return {
            name: float(np.average(list(map(float, values)), weights=self._sizes[name]))
            for name, values in self._values.items()
        }


@dataclass(slots=True)
class Batch:
    """One mini-batch.

    Parameters
    ----------
    x
        Network input: augmented and normalised images.
    pixels
        The raw images, 0 .. 255.
    index
        The positions of its samples in the client's data.
    generator
        The visit's stream for augmentations and draws of torch.
    step, epoch, step_in_epoch
        Its number in the visit, the pass over the data, and its number in that pass, from 0.
    """

    x: Tensor
    pixels: Tensor
    index: Rows
    generator: torch.Generator
    labels: Tensor | None
    learner: Learner
    notes: Notes = field(default_factory=Notes)
    step: int = 0
    epoch: int = 0
    step_in_epoch: int = 0

    @property
    def y(self) -> Tensor:
        """Its labels."""
        if self.labels is None:
            rule = "a loss reads labels only where the method may see them"
            remedy = "Declare the set in the method's `needs` as `labels`, or use another loss."
            raise RayflError(broken(rule, "a batch whose labels are out of bounds", remedy))
        return self.labels

    def __len__(self) -> int:
        return len(self.index)

    def take(self, values: NDArray[Any]) -> Tensor:
        """This batch's rows of `values`, which has one for each of the client's samples."""
        return torch.from_numpy(values.take(self.index, axis=0)).to(self.learner.device)

    def view(self, augment: Augmentation | None = None) -> Tensor:
        """Its images as network input, anew: augmented by this, or as they are.

        Parameters
        ----------
        augment
            Any augmentation; by default none.
        """
        pixels = self.pixels if augment is None else augment(self.pixels, self.generator)
        return self.learner.normalise(pixels)

    def note(self, **values: Tensor | float) -> None:
        """Keep the mean of these values over the visit, by name: `Trained.means`."""
        for name, value in values.items():
            self.notes.add(name, value, len(self.index))


class Position(NamedTuple):
    """Where a mini-batch stands in a visit, and its samples."""

    rows: Rows
    step: int
    epoch: int
    step_in_epoch: int


def draw_batches(
    client: Trainee,
    settings: LocalTraining,
    keep: NDArray[np.bool_] | None = None,
    targets: NDArray[Any] | None = None,
    notes: Notes | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Batch]:
    """The mini-batches of one visit, shuffled and augmented by the client's own stream.

    Parameters
    ----------
    client
        Whose images, labels and stream.
    settings
        Batch size, epochs or steps, augmentation.
    keep
        A mask of the samples that are wanted.
    targets
        In place of the client's labels.
    notes
        Where `batch.note` writes.
    generator
        A stream of torch's other than the place's, for a second run of batches beside a first.
    """
    learner = client.learner
    labels = as_targets(targets)
    if labels is None and client.labels is not None:
        labels = as_targets(client.y)
    gather = gather_rows(learner, client.x, labels)
    generator = learner.generator if generator is None else generator
    generator.manual_seed(draw_seed(client.rng))
    notes = Notes() if notes is None else notes
    learner.probe(client.x)
    smallest = learner.smallest_batch
    for index, *place in plan_batches(len(client.x), settings, client.rng, smallest, keep):
        raw, y = gather(index)
        x = learner.normalise(settings.augment(raw, generator))
        yield Batch(x, raw, index, generator, y, learner, notes, *place)


def as_targets(values: NDArray[Any] | None) -> NDArray[Any] | None:
    """Labels, or rows of probabilities, in the precision that losses of torch ask for.

    Parameters
    ----------
    values
        Integers of any width, or floats of any.
    """
    if values is None:
        return None
    wanted = np.float32 if values.dtype.kind == "f" else np.int64
    return np.asarray(values, wanted)


def gather_rows(learner: Learner, x: NDArray[np.uint8], y: NDArray[Any] | None) -> Gather:
    """How to take images and labels by position, as tensors on the device."""
    on_gpu = learner.device.type == "cuda"
    return _gather_on_device(learner, x, y) if on_gpu else _gather_in_memory(learner, x, y)


def _gather_in_memory(learner: Learner, x: NDArray[np.uint8], y: NDArray[Any] | None) -> Gather:
    """From where they lie: of a small batch, numpy makes a tensor in half the time that torch's own
    indexing takes."""
    if y is None:
        return lambda index: (learner.pixels(x.take(index, axis=0)), None)
    return lambda index: (
        learner.pixels(x.take(index, axis=0)),
        torch.from_numpy(y.take(index, axis=0)),
    )


def _gather_on_device(learner: Learner, x: NDArray[np.uint8], y: NDArray[Any] | None) -> Gather:
    """All of them go there once, at the beginning of a visit."""
    images = learner.pixels(x)
    labels = None if y is None else torch.from_numpy(np.array(y)).to(learner.device)

    def gather(index: Rows) -> tuple[Tensor, Tensor | None]:
        at = torch.from_numpy(index).to(learner.device)
        return images[at], None if labels is None else labels[at]

    return gather


def plan_batches(
    size: int,
    settings: LocalTraining,
    rng: np.random.Generator,
    smallest: int,
    keep: NDArray[np.bool_] | None,
) -> Iterator[Position]:
    """The samples of every mini-batch: whole epochs, or as many steps as the settings say."""
    pool: Rows = np.arange(size) if keep is None else np.flatnonzero(keep)
    samples = size if keep is None else int(keep.sum())
    least = settings.batch_size if settings.drop_last else smallest
    # No batch would be large enough: counting steps would never end.
    if min(samples, settings.batch_size) < least:
        return
    step = 0
    epoch = 0
    while settings.steps is not None or epoch < settings.epochs:
        # What `permutation` does, in half the time.
        order = pool.copy()
        rng.shuffle(order)
        step_in_epoch = 0
        for start in range(0, len(order), settings.batch_size):
            index = order[start : start + settings.batch_size]
            if len(index) < least:
                continue
            if step == settings.steps:
                return
            yield Position(index, step, epoch, step_in_epoch)
            step += 1
            step_in_epoch += 1
        epoch += 1


def resolve_settings(run: LocalTraining, changes: Mapping[str, Any] | None) -> LocalTraining:
    """The run's local settings with some of them changed.

    Parameters
    ----------
    run
        The run's own.
    changes
        By name; a name that there is none of is refused, and so is one that belongs to the whole
        place. Where `epochs` is given and `steps` is not, epochs count. `augment` is an
        augmentation itself, such as `Unchanged()`.
    """
    if not changes:
        return run
    own = dict(changes)
    known = [name for name in LocalTraining.model_fields if name not in OF_THE_PLACE]
    strangers = sorted(set(own) - set(known))
    if strangers:
        rule = f"a Fit's settings are those of one visit: {', '.join(known)}"
        raise RayflError(broken(rule, f"'{strangers[0]}'"))
    if not callable(own.get("augment", run.augment)):
        rule = "a Fit's augment is an augmentation, not the name of one"
        raise RayflError(broken(rule, repr(own["augment"]), "Give Unchanged(), CropFlip(), ..."))
    if "epochs" in own:
        own.setdefault("steps", None)
    return run.model_copy(update=own)
