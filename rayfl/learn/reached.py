"""Convolution kernels without the taps that only ever meet padding.

Small images grow smaller from layer to layer. Where a 3 x 3 kernel is applied to a single pixel, eight of its nine taps
are multiplied by padding at every position: they add nothing forward, and their gradient is zero. Such zeros cost as
much as any other number; in torchvision's ResNet-18 for images of 32 x 32 they are two thirds of all parameters. Here
such a kernel shows the convolution the block of taps that meet the image somewhere. The others stay in the flat
vectors, where momentum, weight decay and sums find them, with a gradient of zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from rayfl.errors import ConfigError, broken
from rayfl.learn.resident import Resident

Image = tuple[int, int, int]
"""Height, width and channels."""
Size = tuple[int, int]
Axis = tuple[slice, int]
"""Along one axis: the block of taps that is left, and the padding that it needs."""


def leave_out_padding(resident: Resident, image: Image) -> None:
    """Narrow every kernel of a resident network whose convolution meets its whole input with fewer taps."""
    for conv, size in list(sizes_met(resident.net, image)):
        rows, columns = (left(conv, axis, size[axis]) for axis in (0, 1))
        if rows is not None and columns is not None:
            narrow(resident, conv, size, rows, columns)


def sizes_met(net: nn.Module, image: Image) -> Iterator[tuple[nn.Conv2d, Size]]:
    """The convolutions that have a kernel to themselves and meet inputs of one size, with that size."""
    met: dict[nn.Conv2d, set[Size]] = {}

    def note(conv: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        met.setdefault(cast(nn.Conv2d, conv), set()).add(size_of(inputs[0]))

    hooks = [module.register_forward_pre_hook(note) for module in net.modules() if type(module) is nn.Conv2d]
    was_training, device = net.training, next(net.parameters()).device
    height, width, channels = image
    with torch.no_grad():
        # Two images, because batch norm may have none but the batch's own statistics.
        net.eval()(torch.zeros(2, channels, height, width, device=device))
    net.train(was_training)
    for hook in hooks:
        hook.remove()
    owners = Counter(id(held) for module in net.modules() for held in module._parameters.values())
    for conv, sizes in met.items():
        if len(sizes) == 1 and owners[id(conv._parameters.get("weight"))] == 1:
            yield conv, sizes.pop()


def left(conv: nn.Conv2d, axis: int, size: int) -> Axis | None:
    """The taps along an axis that meet the image; None where no padding that is the same on both sides makes these
    answer as many positions as the whole kernel does."""
    if isinstance(conv.padding, str) or conv.padding_mode != "zeros":
        return None
    taps, stride, padding, step = (
        setting[axis] for setting in (conv.kernel_size, conv.stride, conv.padding, conv.dilation)
    )
    positions = (size + 2 * padding - step * (taps - 1) - 1) // stride + 1
    meeting = [
        tap for tap in range(taps) if any(0 <= at * stride - padding + tap * step < size for at in range(positions))
    ]
    if not meeting:
        return None
    first, last = meeting[0], meeting[-1]
    needed = padding - first * step
    same = (size + 2 * needed - step * (last - first) - 1) // stride + 1 == positions
    return (slice(first, last + 1), needed) if same and needed >= 0 else None


def narrow(resident: Resident, conv: nn.Conv2d, size: Size, rows: Axis, columns: Axis) -> None:
    """Show a convolution only these taps of its kernel; what they learn goes to their place in the flat gradient."""
    (down, top), (across, beside) = rows, columns
    taps = (down.stop - down.start, across.stop - across.start)
    if taps == conv.kernel_size:
        return
    slopes = resident.narrow(conv.weight, (slice(None), slice(None), down, across))
    conv.padding, conv.kernel_size = (top, beside), taps
    conv.register_forward_pre_hook(only(size))
    if taps == size and conv.padding == (0, 0) and conv.groups == 1:
        conv._conv_forward = partial(covering, slopes)  # type: ignore[method-assign]
    elif slopes is not None:
        # torch itself adds in place only to a gradient that lies densely.
        conv.weight.register_post_accumulate_grad_hook(delivery(slopes))  # type: ignore[no-untyped-call]


def covering(slopes: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """A convolution whose kernel covers its input."""
    answer: Tensor = Covering.apply(x, weight, slopes)
    return (answer if bias is None else answer + bias)[:, :, None, None]


class Covering(torch.autograd.Function):
    """A matrix product, which takes the kernel as it lies and adds the kernel's gradient to where it belongs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, slopes: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.slopes = slopes
        return in_rows(x) @ in_rows(weight).t()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        slope = slope.to(torch.float32)
        if ctx.slopes is not None:
            made = slope.t() @ in_rows(x).to(torch.float32)
            ctx.slopes.permute(TAPS_FIRST).add_(made.view(ctx.slopes.permute(TAPS_FIRST).shape))
        if not ctx.needs_input_grad[0]:
            return None, None, None
        images, channels, height, width = x.shape
        back = (slope @ in_rows(weight)).view(images, height, width, channels).permute(0, 3, 1, 2)
        return back.to(x.dtype), None, None


TAPS_FIRST = (0, 2, 3, 1)


def in_rows(x: Tensor) -> Tensor:
    """A row for each image, or each kernel: pixel by pixel, as channels-last tensors lie."""
    return x.permute(TAPS_FIRST).flatten(1)


def delivery(place: Tensor) -> Callable[[Tensor], None]:
    """Adds a parameter's fresh gradient to where it belongs."""

    def deliver(parameter: Tensor) -> None:
        assert parameter.grad is not None
        place.add_(parameter.grad)
        parameter.grad = None

    return deliver


def only(size: Size) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """A check that a narrowed convolution meets what it was narrowed for."""

    def check(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if size_of(inputs[0]) != size:
            rule = f"with training.kernels: reached, a layer that was narrowed for inputs of {size} meets no others"
            raise ConfigError(broken(rule, size_of(inputs[0]), "Set training.kernels: whole."))

    return check


def size_of(x: Tensor) -> Size:
    """Height and width."""
    return x.shape[-2], x.shape[-1]
