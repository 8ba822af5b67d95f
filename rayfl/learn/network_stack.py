"""Many copies of a small network as rows of one matrix: one kernel does a step of every copy.

Networks made of linear layers and pointwise ones are written out as batched matrix products; others
go through torch.func.vmap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.learn.resident import Resident, Vector

POINTWISE: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.Identity,
)
PLAIN: tuple[type[nn.Module], ...] = (nn.Linear, nn.Flatten, nn.ReLU)
Slope = Callable[[Tensor], Tensor]
"""The gradient of a loss with respect to logits (copy, image, class), which may be overwritten."""


class Stack:
    """Copies of one network: `parameters` and `gradient` have a row a copy, and `forward` maps
    (copy, image, ...) to (copy, image, class). It is trained by the optimisers of a single
    network."""

    def __init__(self, resident: Resident, copies: int) -> None:
        self.parameters = torch.empty(copies, resident.n_parameters, device=resident.flat.device)
        self.gradient = torch.zeros_like(self.parameters)
        self.spans = dict(_find_spans(resident))
        self.net = resident.net
        self.layers = list_layers(resident.net)
        self._rows: dict[int, Rows] = {}

    def rows(self, copies: int) -> Rows:
        """The first copies, at work."""
        if copies not in self._rows:
            self._rows[copies] = Rows(self, copies)
        return self._rows[copies]

    def load(self, weights: Sequence[Vector]) -> None:
        """Give the first rows these weights, which are commonly one global model."""
        # By identity: a place hands one array to all who begin with it.
        common = all(vector is weights[0] for vector in weights)
        rows = np.array(weights[0], np.float32) if common else np.stack(weights)
        self.parameters[: len(weights)].copy_(torch.from_numpy(rows))

    def dump(self, copies: int) -> Vector:
        """A copy of the first rows."""
        return np.array(self.parameters[:copies].cpu().numpy(), copy=True)


class Rows:
    """The first copies of a stack, at work."""

    def __init__(self, stack: Stack, copies: int) -> None:
        self.net = stack.net
        self.layers = stack.layers
        self.leaves = {
            name: _shape_rows(stack.parameters[:copies, span], like).requires_grad_()
            for name, (span, like) in stack.spans.items()
        }
        self.gradients = {
            name: _shape_rows(stack.gradient[:copies, span], like)
            for name, (span, like) in stack.spans.items()
        }
        kinds = [type(layer) for _, layer in self.layers or []]
        self.plain = bool(kinds) and all(issubclass(kind, PLAIN) for kind in kinds)
        self.first_linear = kinds.index(nn.Linear) if nn.Linear in kinds else 0

    def forward(self, x: Tensor) -> Tensor:
        """Logits (copy, image, class) of images (copy, image, ...)."""
        if self.layers is not None:
            return _apply_layers(self.layers, self.leaves, x)

        def one(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            answered: Tensor = torch.func.functional_call(self.net, parameters, (x,))
            return answered

        together: Tensor = torch.func.vmap(one)(self.leaves, x)
        return together

    def backward(self, loss: Tensor) -> None:
        """Put the gradient of a sum of losses in its place."""
        # Not `backward`, which would leave gradients at the leaves: the optimiser reads one matrix.
        # What a loss leaves out (a second head, say) has a gradient of 0, as in a single network.
        made = torch.autograd.grad(loss, list(self.leaves.values()), materialize_grads=True)
        for place, gradient in zip(self.gradients.values(), made, strict=True):
            place.copy_(gradient)

    @torch.no_grad()
    def descend_by_hand(self, x: Tensor, slope_of: Slope) -> None:
        """The gradient of a loss through a chain of linear layers and ReLU, without a graph."""
        layers = self.layers or []
        entered = [x]
        for named_layer in layers:
            entered.append(_apply_layers([named_layer], self.leaves, entered[-1]))
        slope = slope_of(entered.pop())
        for i, (name, layer) in reversed(list(enumerate(layers))):
            if isinstance(layer, nn.ReLU):
                slope = torch.ops.aten.threshold_backward(slope, entered[i], 0)
            elif isinstance(layer, nn.Linear):
                torch.bmm(
                    slope.transpose(1, 2),
                    entered[i].flatten(2),
                    out=self.gradients[f"{name}.weight"],
                )
                if layer.bias is not None:
                    torch.sum(slope, dim=1, out=self.gradients[f"{name}.bias"])
                if i > self.first_linear:  # nobody asks for the gradient of an image
                    slope = torch.bmm(slope, self.leaves[f"{name}.weight"])


def _find_spans(resident: Resident) -> Iterator[tuple[str, tuple[slice, Tensor]]]:
    """Where each named parameter lies in a row, and a tensor of its shape."""
    names = {id(parameter): name for name, parameter in resident.net.named_parameters()}
    start = 0
    for tensor in resident.tensors:
        yield names[id(tensor)], (slice(start, start + tensor.numel()), tensor)
        start += tensor.numel()


def _shape_rows(rows: Tensor, like: Tensor) -> Tensor:
    """A matrix of rows as tensors of one shape; convolution kernels channels-last, as in a single
    network."""
    start, stride = rows.storage_offset(), rows.stride(0)
    shape, strides = (len(rows), *like.shape), (stride, *like.stride())
    return rows.as_strided(shape, strides, start)


def list_layers(net: nn.Module, name: str = "") -> list[tuple[str, nn.Module]] | None:
    """The layers of a network that is a chain of linear and pointwise ones, with their names; None
    for any other."""
    children = list(net.named_children())
    if not children:
        return [(name, net)] if isinstance(net, (nn.Linear, nn.Flatten, *POINTWISE)) else None
    # What a module does with its children is known of these alone.
    if not isinstance(net, nn.Sequential) and [child for child, _ in children] != ["trunk", "head"]:
        return None
    chain: list[tuple[str, nn.Module]] = []
    for child, module in children:
        inner = list_layers(module, f"{name}.{child}" if name else child)
        if inner is None:
            return None
        chain += inner
    return chain


def _apply_layers(
    layers: Sequence[tuple[str, nn.Module]], leaves: dict[str, Tensor], x: Tensor
) -> Tensor:
    """The chain of layers for every copy at once."""
    for name, layer in layers:
        if isinstance(layer, nn.Flatten):
            x = x.flatten(2)
        elif isinstance(layer, nn.Linear):
            weight = leaves[f"{name}.weight"].transpose(1, 2)
            bias = leaves.get(f"{name}.bias")
            x = (
                torch.bmm(x, weight)
                if bias is None
                else torch.baddbmm(bias.unsqueeze(1), x, weight)
            )
        else:
            x = layer(x)
    return x
