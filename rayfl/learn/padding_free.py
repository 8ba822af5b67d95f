"""Convolution kernels without the taps that only ever meet padding.

Small images grow smaller from layer to layer. Where a 3 x 3 kernel is applied to a single pixel,
eight of its nine taps are multiplied by padding at every position: they add nothing forward, and
their gradient is zero. Such zeros cost as much as any other number; in torchvision's ResNet-18 for
images of 32 x 32 they are two thirds of all parameters. Here such a kernel shows the convolution
the block of taps that meet the image somewhere. The others stay in the flat vectors, where
momentum, weight decay and sums find them, with a gradient of zero. What is left is computed tap by
tap (`tapwise`) where most of it would be padding still."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from rayfl.errors import ConfigError, broken
from rayfl.learn.resident import Resident
from rayfl.learn.tapwise_convolution import Tap, Taps

Image = tuple[int, int, int]
"""Height, width and channels."""
Size = tuple[int, int]
MOSTLY_PADDING = 0.5


@dataclass(frozen=True)
class Axis:
    """One axis of a convolution: the block of taps that meet the image, the padding that the block
    needs, the number of positions, and for each tap of the block the pixels that it meets, and
    where."""

    block: slice
    padding: int
    positions: int
    taps: list[tuple[slice, slice]]

    @property
    def meetings(self) -> int:
        """How often a tap meets a pixel."""
        return sum(positions.stop - positions.start for _, positions in self.taps)


def leave_out_padding(resident: Resident, image: Image) -> None:
    """Change every convolution of a resident network that has much to do with padding."""
    for conv, size in list(_sizes_met(resident.net, image)):
        rows, columns = (_narrow_axis(conv, which, size[which]) for which in (0, 1))
        if rows is not None and columns is not None:
            _narrow_convolution(resident, conv, size, rows, columns)


def _sizes_met(net: nn.Module, image: Image) -> Iterator[tuple[nn.Conv2d, Size]]:
    """The convolutions that have a kernel to themselves and meet inputs of one size, with that
    size."""
    met: dict[nn.Conv2d, set[Size]] = {}

    def note(conv: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        met.setdefault(cast(nn.Conv2d, conv), set()).add(image_size(inputs[0]))

    hooks = [
        module.register_forward_pre_hook(note)
        for module in net.modules()
        if type(module) is nn.Conv2d
    ]
    was_training, device = net.training, next(net.parameters()).device
    height, width, channels = image
    with torch.no_grad():
        # Two images, because batch norm may have none but the batch's own statistics.
        net.eval()(torch.zeros(2, channels, height, width, device=device))
    net.train(was_training)
    for hook in hooks:
        hook.remove()
    # A kernel that two convolutions share can be narrowed for neither.
    owners = Counter(id(held) for module in net.modules() for held in module._parameters.values())
    for conv, sizes in met.items():
        if len(sizes) == 1 and owners[id(conv._parameters.get("weight"))] == 1:
            yield conv, sizes.pop()


def _narrow_axis(conv: nn.Conv2d, which: int, size: int) -> Axis | None:
    """An axis without the taps that meet padding only; None where no padding that is the same on
    both sides makes the others answer as many positions as the whole kernel does."""
    # Reflected or circular padding is no zero: every tap meets something.
    if isinstance(conv.padding, str) or conv.padding_mode != "zeros":
        return None
    taps, stride, padding, step = (
        setting[which] for setting in (conv.kernel_size, conv.stride, conv.padding, conv.dilation)
    )
    positions = (size + 2 * padding - step * (taps - 1) - 1) // stride + 1
    met = [
        [at for at in range(positions) if 0 <= at * stride - padding + tap * step < size]
        for tap in range(taps)
    ]
    reached = [tap for tap in range(taps) if met[tap]]
    if not reached:
        return None
    first, last = reached[0], reached[-1]
    needed = padding - first * step
    if needed < 0 or (size + 2 * needed - step * (last - first) - 1) // stride + 1 != positions:
        return None
    found = []
    for tap in range(first, last + 1):
        at, count = (met[tap][0], len(met[tap])) if met[tap] else (0, 0)
        pixel = at * stride - padding + tap * step
        found.append((slice(pixel, pixel + count * stride, stride), slice(at, at + count)))
    return Axis(slice(first, last + 1), needed, positions, found)


def _narrow_convolution(
    resident: Resident, conv: nn.Conv2d, size: Size, rows: Axis, columns: Axis
) -> None:
    """Show a convolution its block of the kernel, and compute it tap by tap where the whole meets
    mostly padding."""
    kernel, block = conv.kernel_size, (len(rows.taps), len(columns.taps))
    share = (
        rows.meetings
        * columns.meetings
        / (rows.positions * columns.positions * kernel[0] * kernel[1])
    )
    # A GPU is quicker with one kernel than with many small ones.
    tapwise = share <= MOSTLY_PADDING and conv.groups == 1 and conv.weight.device.type == "cpu"
    if block == kernel and not tapwise:
        return
    slopes = conv.weight.grad
    if block != kernel:
        slopes = resident.narrow(conv.weight, (slice(None), slice(None), rows.block, columns.block))
        conv.padding, conv.kernel_size = (rows.padding, columns.padding), block
    conv.register_forward_pre_hook(_check_input_size(size))
    if tapwise:
        taps = Taps(
            list(_list_meeting_taps(rows, columns)), rows.positions, columns.positions, slopes
        )
        conv._conv_forward = taps.convolved  # type: ignore[method-assign, assignment]
    elif slopes is not None:
        # torch itself adds in place only to a gradient that lies densely.
        conv.weight.register_post_accumulate_grad_hook(_make_delivery(slopes))  # type: ignore[no-untyped-call]


def _list_meeting_taps(rows: Axis, columns: Axis) -> Iterator[Tap]:
    """The taps of a block that meet anything."""
    for row, (down, up) in enumerate(rows.taps):
        for column, (right, left) in enumerate(columns.taps):
            if up.start < up.stop and left.start < left.stop:
                yield Tap(row, column, (down, right), (up, left))


def _make_delivery(place: Tensor) -> Callable[[Tensor], None]:
    """Adds a parameter's fresh gradient to where it belongs."""

    def deliver(parameter: Tensor) -> None:
        assert parameter.grad is not None
        place.add_(parameter.grad)
        parameter.grad = None

    return deliver


def _check_input_size(size: Size) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
    """A check that a narrowed convolution meets what it was narrowed for."""

    def check(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if image_size(inputs[0]) != size:
            rule = (
                f"with training.kernels: reached, a layer that was narrowed for inputs of {size} "
                "meets no others"
            )
            raise ConfigError(broken(rule, image_size(inputs[0]), "Set training.kernels: whole."))

    return check


def image_size(x: Tensor) -> Size:
    """Height and width."""
    return x.shape[-2], x.shape[-1]
