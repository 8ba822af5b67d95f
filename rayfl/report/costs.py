"""What methods cost, measured: bytes and sample passes of a participant, also in models and epochs.

FedRN's Table 8 counts in M (the model, sent once), F and B (a forward, a backward pass over a
client's data)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.plots.style import BLUE, SKY, make_panel_figure, wrap_title
from rayfl.report.material import Drawing, Group, NoData, Panel, join_titles, make_name
from rayfl.run.store import Record

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BYTES_OF_A_NUMBER = 4
NAME_LETTERS = 34
MEASURED = {
    "down": "cost/down_mb",
    "up": "cost/up_mb",
    "forward": "cost/forward",
    "backward": "cost/backward",
}
"""The metric behind each amount of a cost."""
CAPTION = (
    "Measured, per participant and round, averaged over all rounds. M: the model, sent once. "
    "F, B: one forward, one backward pass over the average client's images."
)


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
        sent = ((self.down, "M"), (self.up, "M"))
        computed = ((self.forward, "F"), (self.backward, "B"))
        return {
            "method": self.title,
            "server to client (MB)": f"{self.down:,.4g}",
            "client to server (MB)": f"{self.up:,.4g}",
            "forward (images)": f"{self.forward:,.4g}",
            "backward (images)": f"{self.backward:,.4g}",
            "communication (M)": _express_in_units(self.model, *sent),
            "computation (F, B)": _express_in_units(self.samples, *computed),
        }

    def summary(self) -> str:
        """What somebody who does not see the bars is told."""
        return f"{self.title}: {self.down + self.up:.3g} MB, {self.forward:.4g} forward"


def _express_in_units(unit: float | None, *amounts: tuple[float, str]) -> str:
    """Amounts in a unit, `1.02M + 1.00M`."""
    if not unit:
        return "-"
    return " + ".join(f"{amount / unit:.2f}{name}" for amount, name in amounts)


def measure_cost(group: Group) -> Cost | None:
    """What the runs of a group have measured; None where they have not."""
    each = [_average_per_participant(record) for record in group.records]
    if not each or not all(each):
        return None
    amounts = {}
    for name in MEASURED:
        amounts[name] = float(np.mean([found[name] for found in each]))
    facts = group.first.facts
    parameters = facts.get("parameters")
    return Cost(
        group.title,
        **amounts,
        model=None if parameters is None else parameters * BYTES_OF_A_NUMBER / 1e6,
        samples=facts.get("mean_client_samples"),
    )


def _average_per_participant(record: Record) -> dict[str, float]:
    """Totals over all rounds, divided by all participations; nothing where a metric is missing."""
    participations = sum(record.series("clients/participants")[1])
    series = {name: record.series(metric)[1] for name, metric in MEASURED.items()}
    if not participations or not all(series.values()):
        return {}
    return {name: sum(values) / participations for name, values in series.items()}


# -- drawing ---------------------------------------------------------------------------------------


def draw_costs(panels: Sequence[Panel]) -> list[Drawing]:
    """Communication and computation of each method."""
    drawn = []
    for panel in panels:
        measured = map(measure_cost, panel.groups)
        costs = [cost for cost in measured if cost is not None]
        if costs:
            drawn.append(_draw_panel_costs(panel, costs))
    if not drawn:
        raise NoData("no run has measured its costs (metrics cost/...)")
    return drawn


def _draw_panel_costs(panel: Panel, costs: Sequence[Cost]) -> Drawing:
    title = join_titles("Communication and computation", panel.title)
    said = "; ".join(cost.summary() for cost in costs)
    return Drawing(
        make_name("costs", panel.title),
        title,
        CAPTION,
        f"{title}. {said}",
        figure=_draw_cost_bars(costs),
        rows=[cost.row() for cost in costs],
    )


def _draw_cost_bars(costs: Sequence[Cost]) -> Figure:
    """Two groups of bars, side by side: what is sent and what is computed."""
    names = [wrap_title(cost.title, NAME_LETTERS) for cost in costs]
    lines = "\n".join(names).split("\n")
    letters = max(map(len, lines))
    figure = make_panel_figure(2, 3.9 + 0.045 * letters, 1.3 + 0.42 * len(costs))
    # The first method is the uppermost.
    places = np.arange(len(costs))[::-1]
    left, right = figure.axes
    sent = {"down": "server to client", "up": "client to server"}
    _stack_bars(left, costs, places, sent)
    left.set_xlabel("MB sent per participant")
    left.set_yticks(places, names, fontsize=9)
    computed = {"forward": "forward", "backward": "backward"}
    _stack_bars(right, costs, places, computed)
    right.set_xlabel("images computed per participant")
    right.set_yticks(places, [""] * len(costs))
    return figure


def _stack_bars(
    axes: Axes,
    costs: Sequence[Cost],
    places: NDArray[np.int64],
    labels: dict[str, str],
) -> None:
    """Two amounts of every method, one after the other on one bar."""
    first, second = labels
    begin = [getattr(cost, first) for cost in costs]
    added = [getattr(cost, second) for cost in costs]
    axes.barh(
        places,
        begin,
        height=0.6,
        color=BLUE,
        label=labels[first],
    )
    axes.barh(
        places,
        added,
        left=begin,
        height=0.6,
        label=labels[second],
        color=SKY,
        hatch="//",
        edgecolor="white",
        linewidth=0,
    )
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
