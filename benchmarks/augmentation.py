"""What augmenting a batch costs beside training on it.

    python benchmarks/augmentation.py [--repeats 60]

Prints a table: the median time of each augmentation of 64 RGB images of 32x32 pixels, as a share of
the forward and backward pass of the 4-convolution network on the same batch, on one thread. All are
timed in turn within each repetition, so that a slow moment of the machine falls on all of them.
Nothing is written."""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from rayfl.learn.augment import AUGMENTATIONS
from rayfl.learn.mixing import encode_labels, mix_rows

BATCH = 64
SIDE = 32
CLASSES = 10
WIDTH = 64
WARM_UP = 5
LIMIT = 0.15


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Cost of augmentation beside training the 4-convolution network."
    )
    parser.add_argument("--repeats", type=int, default=60)
    torch.set_num_threads(1)
    medians = interleaved(contenders(), parser.parse_args().repeats)
    print_table(medians)


def contenders() -> dict[str, Callable[[], object]]:
    """What is timed, by the name in the table; the yardsticks come first."""
    generator = torch.Generator().manual_seed(0)
    raw = torch.randint(
        256,
        (BATCH, 3, SIDE, SIDE),
        generator=generator,
        dtype=torch.uint8,
    )
    raw = raw.contiguous(memory_format=torch.channels_last)
    y = torch.randint(CLASSES, (BATCH,), generator=generator)
    rows = encode_labels(y, CLASSES)
    pixels = raw.float() / 255
    timed: dict[str, Callable[[], object]] = {
        "train, channels last": train_step(pixels, y, torch.channels_last),
        "train, contiguous": train_step(pixels.contiguous(), y, torch.contiguous_format),
    }
    for name in AUGMENTATIONS.names():
        timed[name] = partial(AUGMENTATIONS.build(name), raw, generator)
    weak = AUGMENTATIONS.build({"name": "weak", "ctrr": True})
    timed["weak (ctrr)"] = partial(weak, raw, generator)
    timed["mixup"] = partial(mix_rows, pixels, rows, 1.0, generator)
    return timed


def train_step(
    x: Tensor,
    y: Tensor,
    layout: torch.memory_format,
) -> Callable[[], object]:
    """Forward and backward pass of 4 x [3x3 convolution, batch norm, ReLU, max pool] and a linear
    layer."""
    blocks: list[nn.Module] = []
    for channels in (3, WIDTH, WIDTH, WIDTH):
        blocks += [
            nn.Conv2d(channels, WIDTH, 3, padding=1),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    network = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(WIDTH * (SIDE // 16) ** 2, CLASSES))
    network = network.to(memory_format=layout)

    def step() -> None:
        network.zero_grad()
        nn.functional.cross_entropy(network(x), y).backward()  # type: ignore[no-untyped-call]

    return step


def interleaved(timed: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median milliseconds of each, all taken in turn in every repetition."""
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(WARM_UP + repeats):
        for name, run in timed.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return {name: 1000 * statistics.median(taken[WARM_UP:]) for name, taken in seconds.items()}


def print_table(medians: dict[str, float]) -> None:
    last, contiguous = list(medians.values())[:2]
    print(f"{date.today()}, {processor()}, torch {torch.__version__}, 1 thread")
    target = f"target: below {LIMIT:.0%} of forward + backward"
    print(f"batch of {BATCH}, {SIDE}x{SIDE}x3; medians; {target}\n")
    print(f"{'':22}{'ms':>9}{'% of channels last':>21}{'% of contiguous':>18}")
    for name, taken in medians.items():
        above = not name.startswith("train") and taken > LIMIT * last
        mark = "  above target" if above else ""
        shares = f"{100 * taken / last:21.1f}{100 * taken / contiguous:18.1f}"
        print(f"{name:22}{taken:9.2f}{shares}{mark}")


def processor() -> str:
    """The processor's name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


if __name__ == "__main__":
    main()
