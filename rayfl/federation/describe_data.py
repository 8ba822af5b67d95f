"""What a dataset holds, in figures and in pictures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayfl.federation.arrays import Floats
from rayfl.federation.dataset import Dataset, Images

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PICTURES = 10
_ROWS = 25
_CHUNK_VALUES = 1 << 22


@dataclass(frozen=True)
class PartSummary:
    """One part in figures; means and deviations per channel, with white as 1."""

    size: int
    counts: NDArray[np.int64]
    mean: Floats
    std: Floats
    groups: int | None


def summarize_images(images: Images, classes: int) -> PartSummary:
    mean, std = measure_channels(images.x)
    groups = None if images.groups is None else len(np.unique(images.groups))
    return PartSummary(len(images), np.bincount(images.y, minlength=classes), mean, std, groups)


def measure_channels(x: NDArray[np.uint8]) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each channel, exact: from the counts of the 256 values."""
    channels = x.shape[3]
    counts = np.zeros((channels, 256), dtype=np.int64)
    step = max(1, _CHUNK_VALUES // max(1, int(np.prod(x.shape[1:]))))
    for start in range(0, len(x), step):
        piece = x[start : start + step].reshape(-1, channels)
        for channel in range(channels):
            counts[channel] += np.bincount(piece[:, channel], minlength=256)
    # Only 256 values occur, so their counts say all, and no float copy of the images is needed.
    values = np.arange(256) / 255
    share = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    mean = share @ values
    return mean, np.sqrt(np.maximum(share @ values**2 - mean**2, 0))


def description(dataset: Dataset) -> str:
    """The text that `rayfl data describe` prints."""
    parts = {
        "train": summarize_images(dataset.train, len(dataset.classes)),
        "test": summarize_images(dataset.test, len(dataset.classes)),
    }
    height, width, channels = dataset.shape
    head = [
        f"{dataset.name}: {len(dataset.classes)} classes, images {height} x {width} x {channels}, "
        + " and ".join(f"{part.size:,} {name}" for name, part in parts.items()),
        f"sha256 {dataset.sha256}",
    ]
    for name, part in parts.items():
        head.append(f"{name} mean {_format_numbers(part.mean)} std {_format_numbers(part.std)}")
        if part.groups is not None:
            head.append(f"{name} groups {part.groups:,}")
    return "\n".join([*head, *_list_class_counts(dataset.classes, parts)])


def _format_numbers(values: Floats) -> str:
    return " ".join(f"{value:.8f}" for value in values)


def _list_class_counts(classes: tuple[str, ...], parts: dict[str, PartSummary]) -> list[str]:
    """A line a class: number, name, how many of each part."""
    wide = max(len("class"), *(len(name) for name in classes))
    lines = [f"{'':>4} {'class':<{wide}}" + "".join(f"{name:>9}" for name in parts)]
    for c, name in enumerate(classes):
        lines.append(
            f"{c:>4} {name:<{wide}}" + "".join(f"{part.counts[c]:>9,}" for part in parts.values())
        )
    return lines


def contact_sheet(dataset: Dataset) -> Figure:
    """The first ten training images of every class, a row a class, in as many columns of rows as it
    takes."""
    from matplotlib.figure import Figure

    classes = len(dataset.classes)
    blocks = -(-classes // _ROWS)
    rows = -(-classes // blocks)
    # Matplotlib does not know how wide the names are before it draws.
    longest = max(len(name) for name in dataset.classes)
    names_inches = 0.3 + 0.085 * longest
    figure = Figure(
        figsize=(blocks * (4.0 + names_inches), 0.6 + 0.4 * rows), dpi=120, layout="constrained"
    )
    figure.suptitle(f"{dataset.name}: training images by class", fontsize=10)
    for block, axes in enumerate(figure.subplots(1, blocks, squeeze=False)[0]):
        shown = range(block * rows, min((block + 1) * rows, classes))
        axes.imshow(paint_montage(dataset.train, shown), interpolation="nearest", aspect="equal")
        height = dataset.shape[0]
        step = height + _find_gap(height)
        axes.set_yticks(
            [step * i + (height - 1) / 2 for i in range(len(shown))],
            [dataset.classes[c] for c in shown],
        )
        axes.set_xticks([])
        axes.tick_params(length=0, labelsize=9)
        axes.set_frame_on(False)
    return figure


def _find_gap(height: int) -> int:
    """The white between pictures, in their pixels."""
    return max(1, height // 16)


def paint_montage(images: Images, classes: range) -> NDArray[np.uint8]:
    """One picture of the first images of some classes; where a class has too few, white."""
    height, width, channels = images.x.shape[1:]
    gap = _find_gap(height)
    canvas = np.full((len(classes), _PICTURES, height + gap, width + gap, 3), 255, dtype=np.uint8)
    for row, c in enumerate(classes):
        members = np.flatnonzero(images.y == c)[:_PICTURES]
        # Two or more than three channels have no colours of their own: the first one is shown in
        # grey.
        canvas[row, : len(members), :height, :width] = (
            images.x[members] if channels == 3 else images.x[members][..., :1]
        )
    sheet: NDArray[np.uint8] = canvas.transpose(0, 2, 1, 3, 4).reshape(
        len(classes) * (height + gap), -1, 3
    )
    return sheet
