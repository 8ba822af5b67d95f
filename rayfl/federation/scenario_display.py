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

_Facts = Sequence[tuple[str, str]]
_Rows = Sequence[tuple[str, ...]]

# Okabe and Ito's colours, which readers with any common colour blindness can tell apart.
_BLUE = "#0072B2"
_ORANGE = "#D55E00"

_COLUMNS = ("client", "samples", "classes", "nominal noise", "realised noise")
_MOST_WRITTEN_CELLS = 200
_MOST_NAMED_CLASSES = 25
_MOST_NAMED_CLIENTS = 30
_MOST_DRAWN_CLIENTS = 400
_NOISY_ROLES = (Role.PUBLIC, Role.LABELLED)


def list_scenario_facts(scenario: Scenario) -> list[tuple[str, str]]:
    """The facts about `scenario` as a whole, as (what, value)."""
    samples = len(scenario.owner)
    classes = len(scenario.classes)
    sizes = scenario.sizes()
    smallest, largest = sizes.min(), sizes.max()
    name = scenario.dataset.name
    facts = [
        ("dataset", f"{name}, {samples} training samples, {classes} classes"),
        (
            "clients",
            f"{scenario.clients}, {sizes.sum()} samples ({smallest} to {largest} each)",
        ),
        ("empty clients", str(int((sizes == 0).sum()))),
        ("client noise", format_percent(scenario.noise_rate())),
    ]
    for role in Role:
        value = str(len(scenario.indices(role)))
        noise = scenario.noise_rate(role) if role in _NOISY_ROLES else None
        if noise is not None:
            value += f", noise {format_percent(noise)}"
        if role is Role.PUBLIC and scenario.public is not None:
            value = f"{len(scenario.public.rows)} images of {scenario.public.name}"
        facts.append((role.name.lower(), value))
    tested = "all" if scenario.test is None else str(len(scenario.test))
    facts.append(("test", tested))
    facts.append(("seed", str(scenario.seed)))
    facts.append(("sha256", scenario.sha256))
    return facts


def format_percent(rate: float | None) -> str:
    """A `rate` for a table: `-` where it has no meaning, `unknown` without true labels."""
    if rate is None:
        return "unknown"
    return "-" if math.isnan(rate) else f"{100 * rate:.2f} %"


def _choose_labels(scenario: Scenario) -> tuple[str, Ints]:
    """The labels that say what a client really holds, and their name: the true ones where there are
    any."""
    if scenario.true is None:
        return "given", scenario.given
    return "true", scenario.true


def list_client_rows(scenario: Scenario, most: int | None = None) -> list[tuple[str, ...]]:
    """One row for each of the first `most` clients of `scenario` (None: for all), in the order of
    the table's columns."""
    _, labels = _choose_labels(scenario)
    sizes = scenario.sizes()
    held = (scenario.class_counts(labels) > 0).sum(axis=1)
    realised = scenario.realised
    rows: list[tuple[str, ...]] = []
    for k in range(scenario.clients)[:most]:
        # What is added to labels of unknown quality is not the rate of the wrong ones.
        nominal = format_percent(None if realised is None else scenario.nominal[k])
        found = format_percent(None if realised is None else realised[k])
        rows.append((scenario.name_client(k), str(sizes[k]), str(held[k]), nominal, found))
    return rows


def print_scenario(scenario: Scenario, most: int | None = 100) -> None:
    """Print summary and table: drawn with rich on a terminal, aligned plain text elsewhere.

    Parameters
    ----------
    scenario
        What to print.
    most
        Only so many clients get a row; None shows all.
    """
    from rich.console import Console

    console = Console()
    facts = list_scenario_facts(scenario)
    rows = list_client_rows(scenario, most)
    if console.is_terminal:
        draw_tables(console, facts, rows)
    else:
        print(format_plain_text(facts, rows))
    unseen = scenario.clients - len(rows)
    if unseen:
        print(f"... and {unseen} more clients")


def format_plain_text(facts: _Facts, rows: _Rows) -> str:
    """`facts` and `rows` in aligned columns that `grep` and `awk` can read."""
    table = [_COLUMNS, *rows]
    columns = list(zip(*table, strict=True))
    widths = [max(map(len, column)) for column in columns]
    lines = [f"{what:<14} {value}" for what, value in facts]
    lines.append("")
    for row in table:
        cells = map(str.rjust, row, widths)
        lines.append("  ".join(cells))
    return "\n".join(lines)


def draw_tables(
    console: Console,
    facts: _Facts,
    rows: _Rows,
) -> None:
    """The same `facts` and `rows` on a terminal."""
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


def draw_scenario_figures(scenario: Scenario) -> dict[str, Figure]:
    """Every figure that `scenario` allows, by name; those that need true labels are absent without
    them."""
    drawn = {
        "classes_by_client": _draw_classes_by_client(scenario),
        "sizes": _draw_sizes_histogram(scenario),
    }
    if scenario.true is not None:
        drawn["noise_by_client"] = _draw_noise_by_client(scenario)
        drawn["transition"] = _draw_transition(scenario, scenario.true)
    return drawn


def save_scenario_figures(scenario: Scenario, directory: Path) -> list[Path]:
    """Write every figure of `scenario` as PNG into `directory`; answers the paths."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, figure in draw_scenario_figures(scenario).items():
        path = directory / f"{name}.png"
        figure.savefig(path, dpi=150)
        paths.append(path)
    return paths


def _open_axes(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _draw_classes_by_client(scenario: Scenario) -> Figure:
    """How many samples of each class every client holds, by true labels where there are any."""
    kind, labels = _choose_labels(scenario)
    # Thousands of columns would be narrower than a pixel: every so many are drawn.
    every = -(-scenario.clients // _MOST_DRAWN_CLIENTS)
    counts = scenario.class_counts(labels)[::every].T
    width = min(14, 5 + 0.08 * counts.shape[1])
    height = min(9, 2.5 + 0.25 * len(scenario.classes))
    figure, axes = _open_axes(width, height)
    # A square root, because one client with most of a class would make all the others look alike.
    unit = "samples (square-root scale)"
    cells = counts.astype(np.float64)
    _draw_heat_map(figure, axes, cells, unit, ".0f", power=0.5, every=every)
    thinned = f"client (one in {every} of {scenario.clients} is drawn)"
    axes.set_xlabel("client" if every == 1 else thinned)
    axes.set_ylabel(f"class ({kind} label)")
    _name_classes(axes, scenario.classes, "y")
    _name_clients(axes, scenario)
    return figure


def _draw_transition(scenario: Scenario, true: Ints) -> Figure:
    """The share of given labels for every true label, over the samples of all clients."""
    held = scenario.owner >= 0
    n = len(scenario.classes)
    pairs = true[held] * n + scenario.given[held]
    counts = np.bincount(pairs, minlength=n * n).reshape(n, n)
    totals = counts.sum(axis=1, keepdims=True)
    shares = counts / np.maximum(totals, 1)
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

    top = max(float(cells.max()), 1.0)
    scale = PowerNorm(power, vmin=0, vmax=top)
    rows, columns = cells.shape
    edges = (-0.5, columns * every - 0.5, rows - 0.5, -0.5)
    image = axes.imshow(
        cells,
        aspect="auto",
        cmap="Blues",
        norm=scale,
        extent=edges,
        interpolation="nearest",
    )
    figure.colorbar(image, ax=axes, label=unit)
    if cells.size > _MOST_WRITTEN_CELLS:
        return
    for row, column in np.argwhere(cells > 0):
        value = float(cells[row, column])
        # Dark cells take white figures.
        ink = "white" if scale(value) > 0.6 else "black"
        axes.text(
            column,
            row,
            format(value, style),
            ha="center",
            va="center",
            color=ink,
            fontsize=7,
        )


def _name_classes(
    axes: Axes,
    classes: Sequence[str],
    side: str,
) -> None:
    """Class names as tick labels, or numbers where the names would run into each other."""
    if len(classes) > _MOST_NAMED_CLASSES:
        return
    ticks = range(len(classes))
    if side == "y":
        axes.set_yticks(ticks, classes)
    else:
        longest = max(map(len, classes))
        axes.set_xticks(ticks, classes, rotation=45 if longest > 3 else 0)


def _name_clients(axes: Axes, scenario: Scenario) -> None:
    """The names of clients as tick labels, where they have some that do not run into each other."""
    names = scenario.client_names
    if names is None or len(names) > _MOST_NAMED_CLIENTS:
        _use_whole_numbers(axes.xaxis)
        return
    upright = max(map(len, names)) <= 3
    axes.set_xticks(range(len(names)), names, rotation=0 if upright else 45)


def _use_whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=10))


def _draw_noise_by_client(scenario: Scenario) -> Figure:
    """The rate that each client was meant to have beside the one it has."""
    figure, axes = _open_axes(min(14, 5 + 0.05 * scenario.clients), 4)
    clients = np.arange(scenario.clients)
    size = 18 if scenario.clients <= 200 else 3
    if not np.isnan(scenario.nominal).all():
        # Larger and hollow, so that a realised rate on the same spot shows inside.
        axes.scatter(
            clients,
            scenario.nominal,
            s=3 * size,
            facecolors="none",
            edgecolors=_ORANGE,
            label="nominal",
        )
    assert scenario.realised is not None, "without true labels there is nothing to draw"
    axes.scatter(
        clients,
        scenario.realised,
        s=size,
        color=_BLUE,
        linewidths=0,
        label="realised",
    )
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("client")
    axes.set_ylabel("share of wrong labels")
    _name_clients(axes, scenario)
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    return figure


def _draw_sizes_histogram(scenario: Scenario) -> Figure:
    """How many clients have how many samples."""
    sizes = scenario.sizes()
    low, high = int(sizes.min()), int(sizes.max())
    mean = float(sizes.mean())
    figure, axes = _open_axes(6, 4)
    axes.hist(
        sizes,
        bins=min(30, high - low + 1),
        # Half a sample to either side, so that bins sit on whole numbers.
        range=(low - 0.5, high + 0.5),
        color=_BLUE,
        edgecolor="white",
    )
    axes.axvline(mean, color=_ORANGE, label=f"mean {mean:.1f}")
    # A single bar would fill the whole picture.
    if high - low < 6:
        axes.set_xlim(low - 3, high + 3)
    axes.set_xlabel("samples of a client")
    axes.set_ylabel("clients")
    _use_whole_numbers(axes.xaxis)
    _use_whole_numbers(axes.yaxis)
    figure.legend(loc="outside upper center", frameon=False)
    return figure
