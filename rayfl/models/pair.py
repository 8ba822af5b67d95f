"""Two networks that learn side by side, as one module: Co-teaching, DivideMix and their kin."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfl.errors import ConfigError, broken

Answer = Literal["first", "mean"]


class Pair(nn.Module):
    """Networks a and b of the same shape. What the pair answers is for evaluation: training takes
    `pair.a` and `pair.b` on their own.

    first   the logits of a
    mean    log((softmax a(x) + softmax b(x)) / 2), whose softmax is the mean of the two
            distributions; equal networks answer a's logits less their logsumexp

    Parameters
    ----------
    a, b
        Networks whose tensors have the same names and shapes. Two of the same seed are the same
        network: let the seeds differ.
    answer
        What `forward` makes of the two.
    """

    def __init__(
        self,
        a: nn.Module,
        b: nn.Module,
        answer: Answer = "first",
    ) -> None:
        super().__init__()
        if answer not in ("first", "mean"):
            raise ConfigError(broken("a pair's answer is first or mean", repr(answer)))
        _check_alike(a, b)
        self.a = a
        self.b = b
        self.answer = answer

    @property
    def networks(self) -> tuple[nn.Module, nn.Module]:
        """Both, for whoever counts what passes through them."""
        return self.a, self.b

    def forward(self, x: Tensor) -> Tensor:
        """What the pair says about the images `x`, as logits."""
        first: Tensor = self.a(x)
        if self.answer == "first":
            return first
        second: Tensor = self.b(x)
        both = torch.stack([first, second])
        logs = F.log_softmax(both, dim=-1)
        # The logarithm of a sum, never the sum itself: a probability below 1e-38 would become 0,
        # and its logarithm minus infinity.
        return torch.logsumexp(logs, dim=0) - math.log(2)


def _check_alike(a: nn.Module, b: nn.Module) -> None:
    """Refuse networks of different tensors: nothing could be averaged or exchanged between them."""
    shapes = _list_shapes(a)
    others = _list_shapes(b)
    for name in sorted({*shapes, *others}):
        shape = shapes.get(name)
        other = others.get(name)
        if shape != other:
            rule = "the two networks of a pair have the same tensors"
            found = f"{name} {shape} and {other}"
            raise ConfigError(broken(rule, found, "Build both from one setting"))


def _list_shapes(network: nn.Module) -> dict[str, tuple[int, ...]]:
    tensors = network.state_dict()
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
