"""Figures of components, each made by the component itself: what a noise does to labels, what a
partition deals to clients, what a dataset's images look like."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from rayfl.federation.arrays import Floats
from rayfl.federation.dataset import Dataset
from rayfl.federation.interfaces import Pool
from rayfl.federation.partition import PARTITIONS
from rayfl.federation.plan import FederationPlan
from rayfl.federation.scenario import Scenario, build_scenario, open_stream

CLIENTS, CLASSES = 20, 10
SAMPLES = 8000
GREY = "#808890"
"""Told apart from the light page and from the dark one."""
LOOKS = {
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "rayfl",
}
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"),
    *("#D55E00", "#8C6BB1", "#B2A12B", "#7F7F7F", "#A65628"),
)
"""One a class, on both grounds."""
Settings = Mapping[str, Any]


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure that stands on any ground."""
    path.parent.mkdir(parents=True, exist_ok=True)
    date = {"Date": None} if path.suffix == ".svg" else {}
    figure.savefig(path, transparent=True, metadata=date)


# -- noises ----------------------------------------------------------------------------------------


def corrupt_blobs(noise: Settings, partition: Any = "iid") -> Scenario:
    """A federation of made-up images of ten classes, with the labels that a noise gives them."""
    plan = FederationPlan(
        data={"name": "blobs", "samples": SAMPLES, "test_samples": CLASSES, "side": 4},
        clients=CLIENTS,
        partition=partition,
        noise=noise,
    )
    return build_scenario(plan, plan.data.load(Path()), seed=0)


def draw_noise(scenario: Scenario, path: Path) -> None:
    """How classes turn into each other, and how many labels of each client are wrong."""
    with rc_context(LOOKS):
        # Places are given: to find them, a figure would be drawn twice.
        figure = Figure(figsize=(8.4, 3.4))
        left = figure.add_axes((0.06, 0.15, 0.32, 0.75))
        right = figure.add_axes((0.47, 0.15, 0.52, 0.75))
        draw_matrix(left, count_transitions(scenario))
        draw_rates(right, scenario)
        save_figure(figure, path)


def count_transitions(scenario: Scenario) -> Floats:
    """The share of each true class, in the rows, that is given each label."""
    assert scenario.true is not None, "made-up images come with their classes"
    held = scenario.owner >= 0
    counts = np.zeros((CLASSES, CLASSES))
    np.add.at(counts, (scenario.true[held], scenario.given[held]), 1)
    shares: Floats = counts / counts.sum(axis=1, keepdims=True)
    return shares


def draw_matrix(axes: Axes, shares: Floats) -> None:
    """A transition matrix whose entries are written into it."""
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    for true, given in np.argwhere(shares >= 0.005):
        share = shares[true, given]
        colour = "white" if share > 0.5 else "#334455"
        words = f"{100 * share:.0f}"
        axes.text(given, true, words, ha="center", va="center", fontsize=6, color=colour)
    axes.set(xlabel="given label", ylabel="true class", title="labels given, % of a class")
    axes.set_xticks(range(CLASSES))
    axes.set_yticks(range(CLASSES))
    axes.tick_params(length=0)


def draw_rates(axes: Axes, scenario: Scenario) -> None:
    """Wrong labels by client; a mark where the noise meant them to be."""
    clients = np.arange(scenario.clients)
    realised = scenario.realised
    assert realised is not None, "made-up images come with their classes"
    axes.bar(clients, 100 * realised, color=COLOURS[0], label="realised")
    if np.isfinite(scenario.nominal).any():
        meant = 100 * scenario.nominal
        axes.plot(clients, meant, "_", color="#D55E00", markersize=9, label="meant")
        axes.legend(frameon=False, loc="upper left")
    axes.set(xlabel="client", ylabel="wrong labels, %", ylim=(0, 105), title="wrong labels")
    axes.set_xticks(clients[::2])


# -- partitions ------------------------------------------------------------------------------------


def make_pool() -> Pool:
    """Samples of ten classes, of 60 groups of which each has seen few classes, at 20 sites."""
    labels = np.repeat(np.arange(CLASSES), SAMPLES // CLASSES)
    rng = np.random.default_rng(0)
    groups = labels * 6 + rng.integers(0, 6, len(labels))
    return Pool(labels, CLASSES, CLIENTS, groups=groups)


def make_sites() -> Pool:
    """The same samples at sites with names, some larger than others."""
    pool = make_pool()
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(CLIENTS, 3.0), size=CLASSES)
    sites = [rng.choice(CLIENTS, SAMPLES // CLASSES, p=row) for row in shares]
    names = tuple(f"site {number:02d}" for number in range(CLIENTS))
    return Pool(pool.labels, CLASSES, CLIENTS, groups=np.concatenate(sites), sites=names)


def count_classes(pool: Pool, partition: Settings) -> Floats:
    """Clients by classes: how many samples a partition deals to each."""
    dealt = PARTITIONS.build(partition).assign(pool, open_stream(0, "partition"))
    counts = np.zeros((CLIENTS, CLASSES))
    held = dealt.owner >= 0
    np.add.at(counts, (dealt.owner[held], pool.labels[held]), 1)
    return counts


def draw_partition(counts: Mapping[str, Floats], path: Path) -> None:
    """Class counts by client as stacked bars, a panel for each setting."""
    with rc_context(LOOKS):
        width = 2.9 * max(len(counts), 2)
        figure = Figure(figsize=(width, 3.2))
        left, gap = 0.55 / width, 0.15 / width
        share = (1 - left) / len(counts)
        highest = max(table.sum(axis=1).max() for table in counts.values())
        for place, (title, table) in enumerate(counts.items()):
            axes = figure.add_axes((left + place * share, 0.26, share - gap, 0.64))
            draw_shares(axes, table)
            axes.set(title=title, xlabel="client", ylim=(0, 1.05 * highest))
            axes.set_xticks(range(0, len(table), 4))
            if place:
                axes.tick_params(labelleft=False)
            else:
                axes.set_ylabel("samples")
        swatches = [Patch(color=colour, label=str(label)) for label, colour in enumerate(COLOURS)]
        figure.legend(handles=swatches, loc="lower center", ncols=CLASSES, frameon=False,
                      handlelength=1, columnspacing=0.9, fontsize=7)  # fmt: skip
        save_figure(figure, path)


def draw_shares(axes: Axes, counts: Floats) -> None:
    """One panel: a bar a client, a colour a class."""
    clients = np.arange(len(counts))
    tops = counts.cumsum(axis=1)
    for label, colour in enumerate(COLOURS):
        low, high = tops[:, label] - counts[:, label], tops[:, label]
        x = clients[:, None] + np.array([-0.42, 0.42, 0.42, -0.42])
        y = np.stack([low, low, high, high], axis=1)
        # One collection a class: single bars take ten times as long to draw.
        corners = list(np.stack([x, y], axis=2))
        axes.add_collection(PolyCollection(corners, facecolors=colour))
    axes.set_xlim(-0.8, len(counts) - 0.2)


# -- datasets --------------------------------------------------------------------------------------

MOST_CLASSES, PICTURES = 10, 8


def draw_images(dataset: Dataset, path: Path) -> None:
    """A row of training images for each of the first classes."""
    names = dataset.classes[:MOST_CLASSES]
    mosaic = join_images(dataset, len(names))
    height, width = mosaic.shape[:2]
    with rc_context(LOOKS):
        figure = Figure(figsize=(5.6, 4.4 * height / width), dpi=110)
        axes = figure.add_axes((1.2 / 5.6, 0, 4.4 / 5.6, 1))
        axes.imshow(mosaic, cmap="gray", vmin=0, vmax=255, aspect="auto")
        step = height / len(names)
        axes.set_yticks([(row + 0.5) * step for row in range(len(names))], names)
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        save_figure(figure, path)


def join_images(dataset: Dataset, classes: int) -> NDArray[np.uint8]:
    """One picture of many; a class with fewer images than others ends in white."""
    side, across, channels = dataset.shape
    cells = np.full((classes, PICTURES, side, across, channels), 255, np.uint8)
    for label in range(classes):
        rows = np.flatnonzero(dataset.train.y == label)[:PICTURES]
        cells[label, : len(rows)] = dataset.train.x[rows]
    rows_first = cells.transpose(0, 2, 1, 3, 4)
    joined: NDArray[np.uint8] = rows_first.reshape(classes * side, PICTURES * across, channels)
    return joined.squeeze()
