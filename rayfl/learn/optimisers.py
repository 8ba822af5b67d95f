"""Optimisers on one flat buffer: a handful of kernels a step, however many tensors a network has.

They compute exactly what torch.optim computes tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from rayfl.errors import RayflError, broken
from rayfl.learn.resident import Vector
from rayfl.learn.roots import square_root
from rayfl.learn.training import LocalTraining


class FlatParameters(Protocol):
    """Flat parameters and their gradient: a network's, or a matrix with a row for each of many."""

    @property
    def parameters(self) -> Tensor: ...
    @property
    def gradient(self) -> Tensor: ...


Live = Callable[[Tensor], list[Tensor]]
"""The pieces of a flat tensor that change where nothing but a loss says so."""


def keep_whole(flat: Tensor) -> list[Tensor]:
    """All of it is one piece."""
    return [flat]


class Descent(Protocol):
    """What a training loop needs of an optimiser."""

    def clear(self) -> None:
        """Forget the last gradient, before another is added up."""

    def step(self, factor: float = 1.0) -> None:
        """Change the parameters by their gradient, which may be overwritten; the learning rate is
        scaled by `factor`."""


class Optimiser(Descent, Protocol):
    """On flat parameters, or a matrix of them."""

    def narrow(self, rows: int) -> None:
        """From now on, change only the first rows of a matrix of parameters."""

    def dump(self) -> Vector:
        """All that a later visit needs in order to go on where this one stopped."""

    def resume(self, memory: Vector) -> None:
        """Go on from what `dump` left."""


class Sgd:
    """v <- momentum v + (g + weight_decay w);  w <- w - lr v."""

    def __init__(
        self, trained: FlatParameters, settings: LocalTraining, live: Live = keep_whole
    ) -> None:
        self.settings = settings
        self.velocity = (
            torch.zeros_like(trained.gradient) if settings.momentum else trained.gradient
        )
        flat = (trained.parameters, trained.gradient, self.velocity)
        self.pieces = [flat] if live is keep_whole else list(zip(*map(live, flat), strict=True))

    def clear(self) -> None:
        for _, gradient, _ in self.pieces:
            gradient.zero_()

    @torch.no_grad()
    def step(self, factor: float = 1.0) -> None:
        for weights, gradient, velocity in self.pieces:
            _take_sgd_step(weights, gradient, velocity, self.settings, factor)

    def narrow(self, rows: int) -> None:
        self.pieces = [
            (weights[:rows], gradient[:rows], velocity[:rows])
            for weights, gradient, velocity in self.pieces
        ]

    def dump(self) -> Vector:
        return _flatten_memory(self.velocity if self.settings.momentum else self.velocity[:0])

    def resume(self, memory: Vector) -> None:
        if self.settings.momentum:
            _refuse_foreign_memory(memory, self.velocity.numel())
            self.velocity.copy_(_make_tensor(memory))


class LooseSgd:
    """`Sgd`, tensor by tensor, on gradients that lie where the backward pass made them.

    Those of a large network fit in no cache: to clear a flat gradient, to add to it and to read it
    again takes several times as long as the step itself."""

    def __init__(self, tensors: Sequence[Tensor], settings: LocalTraining) -> None:
        self.tensors = tensors
        self.settings = settings
        self.velocities = [
            torch.zeros_like(tensor) if settings.momentum else None for tensor in tensors
        ]

    def clear(self) -> None:
        for tensor in self.tensors:
            tensor.grad = None

    @torch.no_grad()
    def step(self, factor: float = 1.0) -> None:
        for tensor, velocity in zip(self.tensors, self.velocities, strict=True):
            # A parameter that no loss has reached still decays, and keeps its momentum.
            gradient = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            moving = gradient if velocity is None else velocity
            _take_sgd_step(tensor, gradient, moving, self.settings, factor)


def _take_sgd_step(
    weights: Tensor,
    gradient: Tensor,
    velocity: Tensor,
    settings: LocalTraining,
    factor: float = 1.0,
) -> None:
    """One step of SGD; without momentum, the velocity is the gradient itself."""
    if settings.weight_decay:
        gradient.add_(weights, alpha=settings.weight_decay)
    if settings.momentum:
        velocity.mul_(settings.momentum).add_(gradient)
    weights.add_(velocity, alpha=-settings.lr * factor)


class Adam:
    """D. P. Kingma and J. Ba, "Adam", ICLR 2015, with the usual (0.9, 0.999) and 1e-8."""

    BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, trained: FlatParameters, settings: LocalTraining) -> None:
        self.settings = settings
        self.weights = trained.parameters
        self.gradient = trained.gradient
        self.first = torch.zeros_like(self.gradient)
        self.second = torch.zeros_like(self.gradient)
        self.steps = 0

    def clear(self) -> None:
        self.gradient.zero_()

    @torch.no_grad()
    def step(self, factor: float = 1.0) -> None:
        self.steps += 1
        # Part of the gradient, as in torch's Adam; AdamW's is another rule.
        if self.settings.weight_decay:
            self.gradient.add_(self.weights, alpha=self.settings.weight_decay)
        self.first.lerp_(self.gradient, 1 - self.BETA1)
        self.second.mul_(self.BETA2).addcmul_(self.gradient, self.gradient, value=1 - self.BETA2)
        scale = (1 - self.BETA2**self.steps) ** 0.5
        denominator = (square_root(self.second) / scale).add_(self.EPSILON)
        rate = self.settings.lr * factor / (1 - self.BETA1**self.steps)
        self.weights.addcdiv_(self.first, denominator, value=-rate)

    def narrow(self, rows: int) -> None:
        self.weights, self.gradient, self.first, self.second = (
            held[:rows] for held in (self.weights, self.gradient, self.first, self.second)
        )

    def dump(self) -> Vector:
        # float32 counts exactly up to 2^24 steps
        return _flatten_memory(self.first.new_tensor([self.steps]), self.first, self.second)

    def resume(self, memory: Vector) -> None:
        _refuse_foreign_memory(memory, 1 + self.first.numel() + self.second.numel())
        self.steps = int(memory[0])
        for moment, saved in zip(
            (self.first, self.second), _make_tensor(memory[1:]).chunk(2), strict=True
        ):
            moment.copy_(saved)


def make_optimiser(
    trained: FlatParameters,
    settings: LocalTraining,
    memory: Vector | None = None,
    live: Live = keep_whole,
) -> Optimiser:
    """A fresh optimiser for one visit, or one that goes on with the memory of an earlier visit."""
    made: Optimiser = (
        Sgd(trained, settings, live) if settings.optimizer == "sgd" else Adam(trained, settings)
    )
    if memory is not None:
        made.resume(memory)
    return made


def _refuse_foreign_memory(memory: Vector, size: int) -> None:
    """An optimiser goes on with what it left itself, on the same network."""
    if memory.shape != (size,):
        rule = f"an optimiser's memory is a vector of {size} numbers for this network"
        remedy = "Give it Trained.memory of the same network, under the same settings."
        raise RayflError(broken(rule, f"one of shape {memory.shape}", remedy))


def _flatten_memory(*parts: Tensor) -> Vector:
    """Tensors one behind the other, as numbers of their own."""
    return np.concatenate([part.cpu().numpy() for part in parts])


def _make_tensor(memory: Vector) -> Tensor:
    return torch.from_numpy(np.array(memory, copy=not memory.flags.writeable))
