"""A scenario for the eye: a table per client, and the distribution plots that papers show of their
federations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rayfl.federation.arrays import Floats, Ints
from rayfl.federation.scenario import Scenario
from rayfl.federation.split import Role

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from rich.console import Console

# Okabe and Ito's colours, which readers with any common colour blindness can tell apart.
BLUE, ORANGE = "#0072B2", "#D55E00"

_COLUMNS = ("client", "samples", "classes", "nominal noise", "realised noise")
_MOST_WRITTEN_CELLS = 200
_MOST_NAMED_CLASSES = 25
_MOST_DRAWN_CLIENTS = 400


def summary(scenario: Scenario) -> list[tuple[str, str]]:
    """The facts about a scenario as a whole, as (what, value)."""
    sizes = scenario.sizes()
    facts = [
        (
            "dataset",
            f"{scenario.dataset.name}, {len(scenario.owner)} training samples, {len(scenario.classes)} classes",
        ),
        (
            "clients",
            f"{scenario.clients}, {sizes.sum()} samples ({sizes.min()} to {sizes.max()} each)",
        ),
        ("empty clients", str(int((sizes == 0).sum()))),
        ("client noise", format_percent(scenario.noise_rate())),
    ]
    for role in Role:
        count = len(scenario.indices(role))
        noise = scenario.noise_rate(role) if role in (Role.PUBLIC, Role.LABELLED) else None
        facts.append(
            (
                role.name.lower(),
                str(count) if noise is None else f"{count}, noise {format_percent(noise)}",
            )
        )
    tested = "all" if scenario.test is None else str(len(scenario.test))
    return [*facts, ("test", tested), ("seed", str(scenario.seed)), ("sha256", scenario.sha256)]


def format_percent(rate: float | None) -> str:
    """A rate for a table: `-` where it has no meaning, `unknown` without true labels."""
    if rate is None:
        return "unknown"
    return "-" if math.isnan(rate) else f"{100 * rate:.2f} %"


def _choose_labels(scenario: Scenario) -> tuple[str, Ints]:
    """The labels that say what a client really holds, and their name: the true ones where there are
    any."""
    return ("given", scenario.given) if scenario.true is None else ("true", scenario.true)


def list_client_rows(scenario: Scenario, most: int | None = None) -> list[tuple[str, ...]]:
    """One row a client, in the order of `COLUMNS`."""
    sizes, held = (
        scenario.sizes(),
        (scenario.class_counts(_choose_labels(scenario)[1]) > 0).sum(axis=1),
    )
    realised = scenario.realised
    return [
        (
            str(k),
            str(sizes[k]),
            str(held[k]),
            format_percent(scenario.nominal[k]),
            format_percent(None if realised is None else realised[k]),
        )
        for k in range(scenario.clients)[:most]
    ]


def print_scenario(scenario: Scenario, most: int | None = 100) -> None:
    """Print summary and table: drawn with rich on a terminal, aligned plain text elsewhere."""
    from rich.console import Console

    console = Console()
    rows = list_client_rows(scenario, most)
    if console.is_terminal:
        draw_tables(console, summary(scenario), rows)
    else:
        print(format_plain_text(summary(scenario), rows))
    if len(rows) < scenario.clients:
        print(f"... and {scenario.clients - len(rows)} more clients")


def format_plain_text(facts: Sequence[tuple[str, str]], rows: Sequence[tuple[str, ...]]) -> str:
    """The summary and the table in aligned columns that `grep` and `awk` can read."""
    widths = [max(len(row[i]) for row in [_COLUMNS, *rows]) for i in range(len(_COLUMNS))]
    lines = [
        "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True))
        for row in [_COLUMNS, *rows]
    ]
    return "\n".join([*(f"{what:<14} {value}" for what, value in facts), "", *lines])


def draw_tables(
    console: Console, facts: Sequence[tuple[str, str]], rows: Sequence[tuple[str, ...]]
) -> None:
    """The same on a terminal."""
    from rich.table import Table

    whole = Table(show_header=False, box=None)
    for fact in facts:
        whole.add_row(*fact)
    each = Table(*_COLUMNS)
    for column in each.columns:
        column.justify = "right"
    for row in rows:
        each.add_row(*row)
    console.print(whole, each)


def figures(scenario: Scenario) -> dict[str, Figure]:
    """Every figure that this scenario allows, by name; those that need true labels are absent
    without them."""
    drawn = {
        "classes_by_client": _draw_classes_by_client(scenario),
        "sizes": _draw_sizes_histogram(scenario),
    }
    if scenario.true is not None or not np.isnan(scenario.nominal).all():
        drawn["noise_by_client"] = _draw_noise_by_client(scenario)
    if scenario.true is not None:
        drawn["transition"] = _draw_transition(scenario)
    return drawn


def save_figures(scenario: Scenario, directory: Path) -> list[Path]:
    """Write every figure as PNG; answers the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in figures(scenario).items():
        paths.append(directory / f"{name}.png")
        figure.savefig(paths[-1], dpi=150)
    return paths


def _open_axes(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _draw_classes_by_client(scenario: Scenario) -> Figure:
    """How many samples of each class every client holds, by true labels where there are any."""
    kind, labels = _choose_labels(scenario)
    every = -(-scenario.clients // _MOST_DRAWN_CLIENTS)
    counts = scenario.class_counts(labels)[::every].T
    figure, axes = _open_axes(
        min(14, 5 + 0.08 * counts.shape[1]), min(9, 2.5 + 0.25 * len(scenario.classes))
    )
    # A square root, because one client with most of a class would make all the others look alike.
    _draw_heat_map(
        figure,
        axes,
        counts.astype(np.float64),
        "samples (square-root scale)",
        ".0f",
        power=0.5,
        every=every,
    )
    axes.set_xlabel(
        "client" if every == 1 else f"client (one in {every} of {scenario.clients} is drawn)"
    )
    axes.set_ylabel(f"class ({kind} label)")
    _name_classes(axes, scenario.classes, "y")
    _use_whole_numbers(axes.xaxis)
    return figure


def _draw_transition(scenario: Scenario) -> Figure:
    """The share of given labels for every true label, over the samples of all clients."""
    assert scenario.true is not None
    held, n = scenario.owner >= 0, len(scenario.classes)
    counts = np.bincount(scenario.true[held] * n + scenario.given[held], minlength=n * n).reshape(
        n, n
    )
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    side = min(9.0, 3.5 + 0.35 * n)
    figure, axes = _open_axes(side + 1, side)
    _draw_heat_map(figure, axes, shares, "share of the true class", ".2f")
    axes.set_xlabel("given label")
    axes.set_ylabel("true label")
    _name_classes(axes, scenario.classes, "x")
    _name_classes(axes, scenario.classes, "y")
    return figure


def _draw_heat_map(
    figure: Figure,
    axes: Axes,
    cells: Floats,
    unit: str,
    style: str,
    power: float = 1.0,
    every: int = 1,
) -> None:
    """A map with a colour bar, white at nothing, and with its numbers written in where there are
    few.

    Column j is drawn at the place `every * j` of the horizontal axis.
    """
    from matplotlib.colors import PowerNorm

    scale = PowerNorm(power, vmin=0, vmax=max(float(cells.max()), 1.0))
    rows, columns = cells.shape
    edges = (-0.5, columns * every - 0.5, rows - 0.5, -0.5)
    image = axes.imshow(
        cells, aspect="auto", cmap="Blues", norm=scale, extent=edges, interpolation="nearest"
    )
    figure.colorbar(image, ax=axes, label=unit)
    if cells.size <= _MOST_WRITTEN_CELLS:
        for row, column in np.argwhere(cells > 0):
            value = float(cells[row, column])
            ink = "white" if scale(value) > 0.6 else "black"
            axes.text(
                column, row, format(value, style), ha="center", va="center", color=ink, fontsize=7
            )


def _name_classes(axes: Axes, classes: Sequence[str], side: str) -> None:
    """Class names as tick labels, or numbers where the names would run into each other."""
    if len(classes) > _MOST_NAMED_CLASSES:
        return
    if side == "y":
        axes.set_yticks(range(len(classes)), classes)
    else:
        axes.set_xticks(
            range(len(classes)), classes, rotation=45 if max(map(len, classes)) > 3 else 0
        )


def _use_whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=10))


def _draw_noise_by_client(scenario: Scenario) -> Figure:
    """The rate that each client was meant to have beside the one it has."""
    figure, axes = _open_axes(min(14, 5 + 0.05 * scenario.clients), 4)
    clients, size = np.arange(scenario.clients), 18 if scenario.clients <= 200 else 3
    if not np.isnan(scenario.nominal).all():
        axes.scatter(
            clients,
            scenario.nominal,
            s=3 * size,
            facecolors="none",
            edgecolors=ORANGE,
            label="nominal",
        )
    if scenario.realised is not None:
        axes.scatter(clients, scenario.realised, s=size, color=BLUE, linewidths=0, label="realised")
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("client")
    axes.set_ylabel("share of wrong labels")
    _use_whole_numbers(axes.xaxis)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _draw_sizes_histogram(scenario: Scenario) -> Figure:
    """How many clients have how many samples."""
    sizes = scenario.sizes()
    low, high = int(sizes.min()), int(sizes.max())
    figure, axes = _open_axes(6, 4)
    axes.hist(
        sizes,
        bins=min(30, high - low + 1),
        range=(low - 0.5, high + 0.5),
        color=BLUE,
        edgecolor="white",
    )
    axes.axvline(float(sizes.mean()), color=ORANGE, label=f"mean {sizes.mean():.1f}")
    if high - low < 6:
        axes.set_xlim(low - 3, high + 3)
    axes.set_xlabel("samples of a client")
    axes.set_ylabel("clients")
    _use_whole_numbers(axes.xaxis)
    _use_whole_numbers(axes.yaxis)
    figure.legend(loc="outside upper center", frameon=False)
    return figure
