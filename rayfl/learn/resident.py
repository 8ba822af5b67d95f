"""A network that stays in memory and takes its weights from, and gives them back to, one flat
vector.

Trainable parameters come first, then frozen ones, then floating-point buffers (BatchNorm
statistics), each in the order of the module; integer counters are left out: they begin anew with
every visit. Four-dimensional weights lie as (out, height, width, in), the layout in which CPUs and
GPUs commonly convolve fastest, unless the run asks for torch's own: the vector has one meaning
wherever it goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor, nn

from rayfl.arrays import Vector as Vector

Layout = Literal["channels_last", "channels_first"]
Block = tuple[slice, ...]
LARGE = 1 << 18  # numbers; below, the bookkeeping that spares a copy takes longer than the copy


def make_blank(length: int) -> Vector:
    """A vector to be filled."""
    return np.empty(length, np.float32)


class Resident:
    """A module whose parameters, gradients and float buffers are views into flat tensors."""

    def __init__(
        self, net: nn.Module, device: torch.device, layout: Layout = "channels_last"
    ) -> None:
        self.net, self.layout = net.to(device), layout
        # A frozen parameter must stay out of reach of weight decay and momentum, which act on the
        # whole front part.
        self.tensors = sorted(net.parameters(), key=lambda parameter: not parameter.requires_grad)
        buffers = [buffer for buffer in net.buffers() if buffer.is_floating_point()]
        self.homes = list(place_tensors([*self.tensors, *buffers], layout))
        self.n_parameters = sum(tensor.numel() for tensor in self.tensors if tensor.requires_grad)
        self.flat = torch.empty(
            sum(home.length for home in self.homes), dtype=torch.float32, device=device
        )
        self.gradient = torch.zeros(self.n_parameters, dtype=torch.float32, device=device)
        # The same memory for numpy, where it can see it: small clients come by too often to ask for
        # it each time.
        self.array = self.flat.numpy() if device.type == "cpu" else None
        self.large = self.array is not None and len(self.flat) >= LARGE
        self.given = self.narrowed = False
        # BatchNorm counts its batches: what one client counted must not reach the next.
        self.counters = [
            (buffer, buffer.clone())
            for buffer in net.buffers()
            if not buffer.is_floating_point() and buffer.numel()
        ]
        for home in self.homes:
            place = home.of(self.flat)
            place.copy_(home.tensor.detach())
            home.tensor.data = place
            if home.tensor.requires_grad:
                home.tensor.grad = home.of(self.gradient)

    @property
    def parameters(self) -> Tensor:
        """The trainable part of the flat vector, as a view."""
        return self.flat[: self.n_parameters]

    def load(self, weights: Vector) -> Resident:
        """Take these weights, in place."""
        self._reset_counters()
        if self.array is not None:
            # torch will not look at read-only memory, and a copy to make it writable would cost as
            # much as the load.
            np.copyto(self.array, weights)
        else:
            self.flat.copy_(torch.from_numpy(np.require(weights, np.float32, "W")))
        return self

    def dump(self, fresh: Callable[[int], Vector] = make_blank) -> Vector:
        """A copy of the weights, in memory of this kind."""
        source = self.flat.cpu().numpy() if self.array is None else self.array
        weights = fresh(len(source))
        np.copyto(weights, source)
        return weights

    def give(self, fresh: Callable[[int], Vector] = make_blank) -> Vector:
        """The weights, at the end of a visit. Large ones are not copied: their memory is given
        away, and the network gets other, by `move`, before anybody uses it again."""
        if not self.large:
            return self.dump(fresh)
        assert self.array is not None
        self.given = True
        return self.array

    def move(self, fresh: Callable[[int], Vector], weights: Vector | None = None) -> Resident:
        """Into memory of this kind, with these weights or those that were given away."""
        assert self.array is not None
        if weights is not None:
            self._reset_counters()
        moved = fresh(len(self.array))
        np.copyto(moved, self.array if weights is None else weights)
        # The gradient stays where it is: nobody was given that.
        self.flat, self.array, self.given = torch.from_numpy(moved), moved, False
        for home in self.homes:
            home.tensor.data = home.of(self.flat)
        return self

    def _reset_counters(self) -> None:
        for buffer, first in self.counters:
            buffer.copy_(first)

    def tensor_of(self, vector: Vector) -> Tensor:
        """A flat vector of numpy's as a tensor on this network's device."""
        return torch.from_numpy(np.array(vector, np.float32)).to(self.flat.device)

    @contextmanager
    def loose(self) -> Iterator[list[Tensor]]:
        """For a while, the gradients of the trainable parameters stay where a backward pass makes
        them."""
        try:
            yield [tensor for tensor in self.tensors if tensor.requires_grad]
        finally:
            for home in self.homes:
                if home.tensor.requires_grad:
                    home.tensor.grad = home.of(self.gradient)

    def narrow(self, parameter: Tensor, block: Block) -> Tensor | None:
        """Show a network only a block of a parameter; where the gradient of the block lies, if it
        has one."""
        at = next(i for i, home in enumerate(self.homes) if home.tensor is parameter)
        home = self.homes[at] = replace(self.homes[at], block=block)
        self.narrowed = True
        parameter.data, parameter.grad = home.of(self.flat), None
        return home.of(self.gradient) if parameter.requires_grad else None

    def span(self, module: nn.Module) -> list[slice]:
        """Where the parameters of a submodule lie in the flat vector."""
        wanted = {id(parameter) for parameter in module.parameters()}
        return [home.span for home in self.homes if id(home.tensor) in wanted]

    def live(self, flat: Tensor) -> list[Tensor]:
        """What a narrowed network shows of a flat vector of its trainable parameters."""
        pieces, start = [], 0
        for home in self.homes:
            if home.block is not None and home.tensor.requires_grad:
                pieces += [flat[start : home.span.start], home.of(flat)]
                start = home.span.stop
        return [*pieces, flat[start : self.n_parameters]]


@dataclass(frozen=True)
class Home:
    """Where a tensor lies in a flat vector: its span, its whole shape, and the block of it that is
    shown."""

    tensor: Tensor
    span: slice
    shape: torch.Size
    layout: Layout
    block: Block | None = None

    @property
    def length(self) -> int:
        return cast(int, self.span.stop - self.span.start)

    def of(self, flat: Tensor) -> Tensor:
        """The view of it in a flat vector."""
        whole = shape_view(flat[self.span], self.shape, self.layout)
        return whole if self.block is None else whole[self.block]


def place_tensors(tensors: Sequence[Tensor], layout: Layout) -> Iterator[Home]:
    """One behind the other."""
    start = 0
    for tensor in tensors:
        stop = start + tensor.numel()
        yield Home(tensor, slice(start, stop), tensor.shape, layout)
        start = stop


def shape_view(flat: Tensor, shape: torch.Size, layout: Layout) -> Tensor:
    """A view of `flat` with this shape; convolution kernels in the layout."""
    if len(shape) == 4 and layout == "channels_last":
        out, inner, height, width = shape
        return flat.view(out, height, width, inner).permute(0, 3, 1, 2)
    return flat.view(shape)
