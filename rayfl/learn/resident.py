"""A network that stays in memory and takes its weights from, and gives them back to, one flat vector.

Trainable parameters come first, then frozen ones, then floating-point buffers (BatchNorm statistics), each in the
order of the module; integer counters are left out. Four-dimensional weights lie as (out, height, width, in), the layout
in which CPUs and GPUs commonly convolve fastest, unless the run asks for torch's own: the vector has one meaning
wherever it goes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Vector = NDArray[np.float32]
Layout = Literal["channels_last", "channels_first"]


class Resident:
    """A module whose parameters, gradients and float buffers are views into flat tensors."""

    def __init__(self, net: nn.Module, device: torch.device, layout: Layout = "channels_last") -> None:
        self.net, self.layout = net.to(device), layout
        # A frozen parameter must stay out of reach of weight decay and momentum, which act on the whole front part.
        self.tensors = sorted(net.parameters(), key=lambda parameter: not parameter.requires_grad)
        buffers = [name for name, buffer in net.named_buffers() if buffer.is_floating_point()]
        self.n_parameters = sum(tensor.numel() for tensor in self.tensors if tensor.requires_grad)
        total = sum(tensor.numel() for tensor in self.tensors) + sum(net.get_buffer(name).numel() for name in buffers)
        self.flat = torch.empty(total, dtype=torch.float32, device=device)
        self.gradient = torch.zeros(self.n_parameters, dtype=torch.float32, device=device)
        self._adopt_buffers(buffers, self._adopt_parameters())

    def _adopt_parameters(self) -> int:
        start = 0
        for parameter in self.tensors:
            stop = start + parameter.numel()
            parameter.data = settle(self.flat[start:stop], parameter.data, self.layout)
            if parameter.requires_grad:
                parameter.grad = shaped(self.gradient[start:stop], parameter.data, self.layout)
            start = stop
        return start

    def _adopt_buffers(self, names: list[str], start: int) -> None:
        for name in names:
            owner = self.net.get_submodule(name.rpartition(".")[0])
            buffer = self.net.get_buffer(name)
            stop = start + buffer.numel()
            owner._buffers[name.rpartition(".")[2]] = settle(self.flat[start:stop], buffer, self.layout)
            start = stop

    @property
    def parameters(self) -> Tensor:
        """The trainable part of the flat vector, as a view."""
        return self.flat[: self.n_parameters]

    def load(self, weights: Vector) -> Resident:
        """Take these weights, in place."""
        if self.flat.device.type == "cpu":
            # torch will not look at read-only memory, and a copy to make it writable would cost as much as the load.
            np.copyto(self.flat.numpy(), weights)
        else:
            self.flat.copy_(torch.from_numpy(np.require(weights, np.float32, "W")))
        return self

    def dump(self) -> Vector:
        """A copy of the weights."""
        return np.array(self.flat.detach().cpu().numpy(), copy=True)

    def span(self, module: nn.Module) -> list[slice]:
        """Where the parameters of a submodule lie in the flat vector."""
        wanted = {id(parameter) for parameter in module.parameters()}
        spans, start = [], 0
        for parameter in self.tensors:
            stop = start + parameter.numel()
            if id(parameter) in wanted:
                spans.append(slice(start, stop))
            start = stop
        return spans


def shaped(flat: Tensor, like: Tensor, layout: Layout) -> Tensor:
    """A view of `flat` with the shape of `like`; convolution kernels in the layout."""
    if like.dim() == 4 and layout == "channels_last":
        out, inner, height, width = like.shape
        return flat.view(out, height, width, inner).permute(0, 3, 1, 2)
    return flat.view(like.shape)


def settle(flat: Tensor, tensor: Tensor, layout: Layout) -> Tensor:
    """Move a tensor's values into `flat` and return the view that replaces it."""
    view = shaped(flat, tensor, layout)
    view.copy_(tensor.detach())
    return view
