"""Optimisers on one flat buffer: a handful of kernels a step, however many tensors a network has.

Both compute exactly what torch.optim computes tensor by tensor.
"""

from __future__ import annotations

from typing import Protocol

import torch

from rayfl.learn.resident import Resident
from rayfl.learn.training import LocalTraining


class Optimiser(Protocol):
    def step(self) -> None:
        """Change the parameters by their gradient, which may be overwritten."""


class Sgd:
    """v <- momentum v + (g + weight_decay w);  w <- w - lr v."""

    def __init__(self, resident: Resident, settings: LocalTraining) -> None:
        self.weights, self.gradient, self.settings = resident.parameters, resident.gradient, settings
        self.velocity = torch.zeros_like(self.gradient) if settings.momentum else self.gradient

    @torch.no_grad()
    def step(self) -> None:
        if self.settings.weight_decay:
            self.gradient.add_(self.weights, alpha=self.settings.weight_decay)
        if self.settings.momentum:
            self.velocity.mul_(self.settings.momentum).add_(self.gradient)
        self.weights.add_(self.velocity, alpha=-self.settings.lr)


class Adam:
    """D. P. Kingma and J. Ba, "Adam", ICLR 2015, with the usual (0.9, 0.999) and 1e-8."""

    BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8

    def __init__(self, resident: Resident, settings: LocalTraining) -> None:
        self.weights, self.gradient, self.settings = resident.parameters, resident.gradient, settings
        self.first, self.second = torch.zeros_like(self.gradient), torch.zeros_like(self.gradient)
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        if self.settings.weight_decay:
            self.gradient.add_(self.weights, alpha=self.settings.weight_decay)
        self.first.lerp_(self.gradient, 1 - self.BETA1)
        self.second.mul_(self.BETA2).addcmul_(self.gradient, self.gradient, value=1 - self.BETA2)
        scale = (1 - self.BETA2**self.steps) ** 0.5
        denominator = (self.second.sqrt() / scale).add_(self.EPSILON)
        self.weights.addcdiv_(self.first, denominator, value=-self.settings.lr / (1 - self.BETA1**self.steps))


def optimiser(resident: Resident, settings: LocalTraining) -> Optimiser:
    """A fresh optimiser for one visit."""
    return Sgd(resident, settings) if settings.optimizer == "sgd" else Adam(resident, settings)
