"""The training loop and the passes without gradients, written once for every method."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray
from torch import Tensor, nn

from rayfl.learn.learner import Learner, fresh_seed
from rayfl.learn.local_fit import Adjust, Trainee
from rayfl.learn.optimisers import Descent, LooseSgd, Optimiser, optimiser, whole
from rayfl.learn.resident import Resident, Vector
from rayfl.learn.training import LocalTraining


@dataclass(frozen=True)
class Batch:
    """One mini-batch: network input, labels, raw pixels, and the positions of its samples in the
    shard."""

    x: Tensor
    y: Tensor
    pixels: Tensor
    index: NDArray[np.int64]
    generator: torch.Generator


Loss = Callable[[nn.Module, Batch], Tensor]
Chosen = Callable[[NDArray[np.int64]], tuple[Tensor, Tensor]]


def cross_entropy(net: nn.Module, batch: Batch) -> Tensor:
    """Mean cross-entropy with the labels of the batch."""
    return functional.cross_entropy(net(batch.x), batch.y)


def fit(
    client: Trainee,
    weights: Vector,
    *,
    loss: Loss = cross_entropy,
    adjust: Adjust | None = None,
    keep: NDArray[np.bool_] | None = None,
    training: LocalTraining | None = None,
    after_step: Callable[[Resident], object] | None = None,
    update: Optimiser | None = None,
) -> Vector:
    """Train from `weights` on the client's data (the kept samples of it) and return the new
    weights.

    `update` is an optimiser of the first resident network in place of a fresh one.
    """
    settings = training or client.learner.training
    resident = client.learner.resident(weights)
    # Setting the mode visits every module, which at small clients shows.
    if not resident.net.training:
        resident.net.train()
    with descent(resident, settings, adjust) if update is None else nullcontext(update) as way:
        for batch in batches(client, settings, keep):
            way.clear()
            with client.learner.precision():
                value = loss(resident.net, batch)
            value.backward()  # type: ignore[no-untyped-call]
            if adjust is not None:
                adjust(resident.parameters, resident.gradient)
            way.step()
            client.learner.passes.backward += len(batch.index)
            if after_step is not None:
                after_step(resident)
    return resident.give(client.learner.fresh)


@contextmanager
def descent(
    resident: Resident, settings: LocalTraining, adjust: Adjust | None
) -> Iterator[Descent]:
    """A fresh optimiser, on the gradients that are the least work."""
    if resident.large and not resident.narrowed and adjust is None and settings.optimizer == "sgd":
        with resident.loose() as tensors:
            yield LooseSgd(tensors, settings)
    else:
        # Decay, and whatever adjusts a gradient, may reach numbers that no loss depends on.
        all_moves = settings.weight_decay or adjust is not None or not resident.narrowed
        yield optimiser(resident, settings, live=whole if all_moves else resident.live)


def batches(
    client: Trainee, settings: LocalTraining, keep: NDArray[np.bool_] | None = None
) -> Iterator[Batch]:
    """The mini-batches of one visit, shuffled and augmented by the client's own stream."""
    learner = client.learner
    # Methods whose clients own no labels read batches too, and leave these alone.
    labels = client.y if client.labels is not None else np.zeros(len(client.x), np.int64)
    chosen = samples(learner, client.x, labels)
    generator = learner.generator.manual_seed(fresh_seed(client.rng))
    learner.probe(client.x)
    for index in visits(len(client.x), settings, client.rng, learner.smallest_batch, keep):
        raw, y = chosen(index)
        x = learner.normalise(settings.augment(raw, generator))
        learner.passes.forward += len(index)
        yield Batch(x, y, raw, index, generator)


def samples(learner: Learner, x: NDArray[np.uint8], y: NDArray[np.int64]) -> Chosen:
    """How to take a client's images and labels by position, as tensors on the device."""
    return (
        on_the_device(learner, x, y) if learner.device.type == "cuda" else in_memory(learner, x, y)
    )


def in_memory(learner: Learner, x: NDArray[np.uint8], y: NDArray[np.int64]) -> Chosen:
    """From where they lie: of a small batch, numpy makes a tensor in half the time that torch's own
    indexing takes."""
    return lambda index: (learner.pixels(x.take(index, axis=0)), torch.from_numpy(y.take(index)))


def on_the_device(learner: Learner, x: NDArray[np.uint8], y: NDArray[np.int64]) -> Chosen:
    """All of them go there once, at the beginning of a visit."""
    images, labels = learner.pixels(x), torch.from_numpy(np.array(y)).to(learner.device)

    def chosen(index: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        at = torch.from_numpy(index).to(learner.device)
        return images[at], labels[at]

    return chosen


def visits(
    size: int,
    settings: LocalTraining,
    rng: np.random.Generator,
    smallest: int,
    keep: NDArray[np.bool_] | None,
) -> Iterator[NDArray[np.int64]]:
    """Positions of every mini-batch: whole epochs, or as many steps as the settings say."""
    pool: int | NDArray[np.int64] = (
        size if keep is None else np.flatnonzero(keep)
    )  # either can be permuted
    least = settings.batch_size if settings.drop_last else smallest
    # No batch would be large enough: counting steps would never end.
    if min(size if keep is None else int(keep.sum()), settings.batch_size) < least:
        return
    done, epoch = 0, 0
    while settings.steps is not None or epoch < settings.epochs:
        order = rng.permutation(pool)
        for start in range(0, len(order), settings.batch_size):
            index = order[start : start + settings.batch_size]
            if len(index) < least:
                continue
            if done == settings.steps:
                return
            done += 1
            yield index
        epoch += 1


@torch.no_grad()
def outputs(
    learner: Learner,
    weights: Vector | None,
    x: NDArray[np.uint8],
    read: Callable[[nn.Module, Tensor], Tensor] | None = None,
    name: str = "first",
) -> NDArray[np.float32]:
    """What the network answers, in evaluation mode and in the order of `x`: logits, or whatever
    `read` takes from it.

    Batches are of a fixed size in a fixed order, so that networks with batch statistics answer the
    same anywhere."""
    net = learner.resident(weights, name).net.eval()
    parts = []
    for start in range(0, len(x), learner.evaluation_batch):
        part = learner.normalise(learner.pixels(x[start : start + learner.evaluation_batch]))
        parts.append((net(part) if read is None else read(net, part)).float().cpu().numpy())
    learner.passes.forward += len(x)
    return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)


def sample_losses(logits: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cross-entropy of every sample, in float64."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    losses: NDArray[np.float64] = (
        np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]
    )
    return losses
