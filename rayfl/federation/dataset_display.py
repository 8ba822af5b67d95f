"""What a dataset holds, in figures and in pictures."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rayfl.federation.arrays import Floats, Ints, Pixels
from rayfl.federation.dataset import Dataset, Images

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PICTURES = 10
_ROWS = 25
_CHUNK_VALUES = 1 << 22
_WHITE = 255


@dataclass(frozen=True)
class PartSummary:
    """One part in figures; means and deviations per channel, with white as 1."""

    size: int
    counts: Ints
    mean: Floats
    std: Floats
    groups: int | None


def summarize_images(images: Images, classes: int) -> PartSummary:
    """The figures of a training or a test set.

    Parameters
    ----------
    images
        The set.
    classes
        How many classes the dataset has, those without an image here included.
    """
    mean, std = measure_channels(images.x)
    groups = images.groups
    return PartSummary(
        size=len(images),
        counts=np.bincount(images.y, minlength=classes),
        mean=mean,
        std=std,
        groups=None if groups is None else len(np.unique(groups)),
    )


def measure_channels(x: Pixels) -> tuple[Floats, Floats]:
    """Mean and standard deviation of each channel of `x`, exact: from the counts of the 256
    values."""
    channels = x.shape[3]
    counts = np.zeros((channels, 256), dtype=np.int64)
    values_per_image = max(1, math.prod(x.shape[1:]))
    step = max(1, _CHUNK_VALUES // values_per_image)
    for start in range(0, len(x), step):
        piece = x[start : start + step]
        columns = piece.reshape(-1, channels).T
        for channel, values in enumerate(columns):
            counts[channel] += np.bincount(values, minlength=256)
    # Only 256 values occur, so their counts say all, and no float copy of the images is needed.
    levels = np.arange(256) / _WHITE
    total = counts.sum(axis=1, keepdims=True)
    share = counts / np.maximum(total, 1)
    mean = share @ levels
    # Rounding can carry the variance of a constant channel below zero.
    variance = share @ levels**2 - mean**2
    return mean, np.sqrt(np.maximum(variance, 0))


def describe_dataset(dataset: Dataset) -> str:
    """The text about `dataset` that `rayfl data describe` prints."""
    classes = len(dataset.classes)
    parts = {
        "train": summarize_images(dataset.train, classes),
        "test": summarize_images(dataset.test, classes),
    }
    shape = " x ".join(map(str, dataset.shape))
    sizes = " and ".join(f"{part.size:,} {name}" for name, part in parts.items())
    lines = [
        f"{dataset.name}: {classes} classes, images {shape}, {sizes}",
        f"sha256 {dataset.sha256}",
    ]
    for name, part in parts.items():
        mean = _format_numbers(part.mean)
        std = _format_numbers(part.std)
        lines.append(f"{name} mean {mean} std {std}")
        if part.groups is not None:
            lines.append(f"{name} groups {part.groups:,}")
    if dataset.sites:
        lines.append(f"sites {len(dataset.sites):,}: {', '.join(dataset.sites)}")
    if dataset.skipped:
        left_out = ", ".join(dataset.skipped)
        lines.append(f"left out as damaged: {len(dataset.skipped):,} ({left_out})")
    lines += _list_class_counts(dataset.classes, parts)
    return "\n".join(lines)


def _format_numbers(values: Floats) -> str:
    return " ".join(f"{value:.8f}" for value in values)


def _list_class_counts(classes: tuple[str, ...], parts: dict[str, PartSummary]) -> list[str]:
    """A line a class: number, name, how many of each part."""
    width = max(len("class"), *(len(name) for name in classes))
    titles = "".join(f"{name:>9}" for name in parts)
    lines = [f"{'':>4} {'class':<{width}}{titles}"]
    for c, name in enumerate(classes):
        counts = "".join(f"{part.counts[c]:>9,}" for part in parts.values())
        lines.append(f"{c:>4} {name:<{width}}{counts}")
    return lines


def draw_contact_sheet(dataset: Dataset) -> Figure:
    """The first ten training images of every class of `dataset`, a row a class, in as many columns
    of rows as it takes."""
    from matplotlib.figure import Figure

    classes = len(dataset.classes)
    blocks = -(-classes // _ROWS)
    rows = -(-classes // blocks)
    # Matplotlib does not know how wide the names are before it draws.
    longest = max(len(name) for name in dataset.classes)
    names_inches = 0.3 + 0.085 * longest
    inches = (blocks * (4.0 + names_inches), 0.6 + 0.4 * rows)
    figure = Figure(figsize=inches, dpi=120, layout="constrained")
    figure.suptitle(f"{dataset.name}: training images by class", fontsize=10)
    columns = figure.subplots(1, blocks, squeeze=False)[0]
    first = 0
    for axes in columns:
        last = min(first + rows, classes)
        _draw_block(axes, dataset, range(first, last))
        first = last
    return figure


def _draw_block(
    axes: Axes,
    dataset: Dataset,
    shown: range,
) -> None:
    """One column of rows: the images of some classes with their names."""
    sheet = paint_montage(dataset.train, shown)
    axes.imshow(sheet, interpolation="nearest", aspect="equal")
    height = dataset.shape[0]
    step = height + _find_gap(height)
    middles = np.arange(len(shown)) * step + (height - 1) / 2
    names = dataset.classes[shown.start : shown.stop]
    axes.set_yticks(middles, names)
    axes.set_xticks([])
    axes.tick_params(length=0, labelsize=9)
    axes.set_frame_on(False)


def _find_gap(height: int) -> int:
    """The white between pictures, in their pixels."""
    return max(1, height // 16)


def paint_montage(images: Images, classes: range) -> Pixels:
    """One picture of the first `images` of some `classes`; where a class has too few, white."""
    height, width, channels = images.x.shape[1:]
    gap = _find_gap(height)
    rows = len(classes)
    cells = (rows, _PICTURES, height + gap, width + gap, 3)
    canvas = np.full(cells, _WHITE, dtype=np.uint8)
    for row, c in enumerate(classes):
        members = np.flatnonzero(images.y == c)[:_PICTURES]
        pictures = images.x[members]
        # Two or more than three channels have no colours of their own: the first one is shown in
        # grey.
        coloured = pictures if channels == 3 else pictures[..., :1]
        canvas[row, : len(members), :height, :width] = coloured
    # From (row, column, y, x) to the y of all rows by the x of all columns.
    upright = canvas.transpose(0, 2, 1, 3, 4)
    sheet: Pixels = upright.reshape(rows * (height + gap), -1, 3)
    return sheet
