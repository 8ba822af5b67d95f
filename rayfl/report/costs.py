"""What methods cost, measured: bytes and sample passes of a participant, also in models and epochs.

FedRN's Table 8 counts in M (the model, sent once), F and B (a forward, a backward pass over a
client's data)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.plots.run_figures import wide
from rayfl.plots.style import BLUE, SKY, wrapped
from rayfl.report.curves import slug
from rayfl.report.material import Drawing, Group, NoData, Panel, joined
from rayfl.run.store import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BYTES_OF_A_NUMBER = 4
MEASURED = {
    "down": "cost/down_mb",
    "up": "cost/up_mb",
    "forward": "cost/forward",
    "backward": "cost/backward",
}


@dataclass(frozen=True)
class Cost:
    """Of one participant in one round, on average over rounds and repetitions."""

    title: str
    down: float
    up: float
    """Megabytes."""
    forward: float
    backward: float
    """Images."""
    model: float | None
    """Megabytes of the model, where the runs say."""
    samples: float | None
    """Images of a client, where the runs say."""

    def row(self) -> dict[str, Any]:
        """The columns of a table, in both units."""
        measured = {
            "server to client (MB)": self.down,
            "client to server (MB)": self.up,
            "forward (images)": self.forward,
            "backward (images)": self.backward,
        }
        named = {
            "method": self.title,
            **{name: f"{value:,.4g}" for name, value in measured.items()},
        }
        named["communication (M)"] = units(self.model, (self.down, "M"), (self.up, "M"))
        named["computation (F, B)"] = units(self.samples, (self.forward, "F"), (self.backward, "B"))
        return named


def units(unit: float | None, *amounts: tuple[float, str]) -> str:
    """Amounts in a unit, `1.02M + 1.00M`."""
    if not unit:
        return "-"
    return " + ".join(f"{amount / unit:.2f}{name}" for amount, name in amounts)


def cost_of(group: Group) -> Cost | None:
    """What the runs of a group have measured; None where they have not."""
    each = [per_participant(record) for record in group.records]
    if not each or not all(each):
        return None
    mean = {name: float(np.mean([found[name] for found in each])) for name in MEASURED}
    facts = group.first.facts
    parameters, samples = facts.get("parameters"), facts.get("mean_client_samples")
    model = None if parameters is None else parameters * BYTES_OF_A_NUMBER / 1e6
    return Cost(group.title, **mean, model=model, samples=samples)


def per_participant(record: Record) -> dict[str, float]:
    """Totals over all rounds, divided by all participations."""
    people = sum(record.series("clients/participants")[1])
    if not people or not all(record.series(metric)[1] for metric in MEASURED.values()):
        return {}
    return {name: sum(record.series(metric)[1]) / people for name, metric in MEASURED.items()}


def costs(panels: Sequence[Panel]) -> list[Drawing]:
    """Communication and computation of each method."""
    drawn = []
    for panel in panels:
        found = [cost for group in panel.groups if (cost := cost_of(group)) is not None]
        if found:
            title = joined("Communication and computation", panel.title)
            caption = "Measured, per participant and round, averaged over all rounds. M: the model, sent once. "
            caption += "F, B: one forward, one backward pass over the average client's images."
            alt = f"{title}. " + "; ".join(
                f"{c.title}: {c.down + c.up:.3g} MB, {c.forward:.4g} forward" for c in found
            )
            rows = [cost.row() for cost in found]
            name = f"costs_{slug(panel.title)}".rstrip("_")
            drawn.append(Drawing(name, title, caption, alt, figure=cost_figure(found), rows=rows))
    if not drawn:
        raise NoData("no run has measured its costs (metrics cost/...)")
    return drawn


def cost_figure(found: Sequence[Cost]) -> Figure:
    """Two groups of bars, side by side: what is sent and what is computed."""
    names = [wrapped(cost.title, 34) for cost in found]
    letters = max(len(line) for name in names for line in name.split("\n"))
    figure = wide(2, 3.9 + 0.045 * letters, 1.3 + 0.42 * len(found))
    places = np.arange(len(found))[::-1]
    left, right = figure.axes
    bars(
        left,
        found,
        places,
        "MB sent per participant",
        ("down", "server to client"),
        ("up", "client to server"),
    )
    bars(
        right,
        found,
        places,
        "images computed per participant",
        ("forward", "forward"),
        ("backward", "backward"),
    )
    left.set_yticks(places, names, fontsize=9)
    right.set_yticks(places, [""] * len(found))
    return figure


def bars(
    axes: Axes,
    found: Sequence[Cost],
    places: NDArray[np.int64],
    label: str,
    first: tuple[str, str],
    second: tuple[str, str],
) -> None:
    """Two amounts of every method, one after the other on one bar."""
    begun, added = ([getattr(cost, field) for cost in found] for field, _ in (first, second))
    axes.barh(places, begun, height=0.6, color=BLUE, label=first[1])
    look: dict[str, Any] = {"color": SKY, "hatch": "//", "edgecolor": "white", "linewidth": 0}
    axes.barh(places, added, left=begun, height=0.6, label=second[1], **look)
    axes.set_xlabel(label)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.locator_params(axis="x", nbins=5)
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=2,
        frameon=False,
        fontsize=9,
        borderaxespad=0.2,
    )
