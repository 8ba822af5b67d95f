"""Figures of an audit: shares with intervals, and what is written as what."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rayfl.audit.findings import WRONG, Findings
from rayfl.audit.verdict import ACCUSED_ABOVE
from rayfl.plots.run_figures import paint_confusion
from rayfl.plots.style import BLUE, GREY, VERMILION, escape_math, make_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_NAMED = 40
"""More clients than this are numbered by their rank alone."""


def draw_figures(findings: Findings) -> dict[str, Figure]:
    """All figures by name."""
    return {"shares": draw_shares(findings), "transitions": draw_transitions(findings)}


def draw_shares(findings: Findings) -> Figure:
    """Every client's share of wrong labels with its interval, the worst on top."""
    order = sorted(findings.clients, key=lambda client: client.share.value)
    height = float(np.clip(1.2 + 0.24 * len(order), 2.2, 11))
    figure, axes = make_figure(6.4, height)
    places = np.arange(len(order))
    values = np.array([client.share for client in order])
    spans = np.abs(values[:, 1:].T - values[:, 0])
    colours = [VERMILION if client.verdict == WRONG else BLUE for client in order]
    axes.errorbar(values[:, 0], places, xerr=spans, fmt="none", ecolor=GREY, capsize=2)
    axes.scatter(values[:, 0], places, c=colours, zorder=3, s=26)
    axes.axvline(ACCUSED_ABOVE, color=GREY, linestyle=":", linewidth=1)
    axes.set(xlabel="estimated share of wrong labels, 90 % interval", xlim=(-0.02, 1.02))
    axes.set_ylim(-0.7, len(order) - 0.3)
    if len(order) <= MOST_NAMED:
        axes.set_yticks(places, [escape_math(client.name) for client in order])
    else:
        axes.set_ylabel("clients, the worst on top")
    axes.grid(axis="x", alpha=0.3)
    return figure


def draw_transitions(findings: Findings) -> Figure:
    """What is written as what, over the whole federation."""
    sizes = np.array([client.samples for client in findings.clients], dtype=np.float64)
    matrices = np.stack([client.transition for client in findings.clients])
    joined = np.tensordot(sizes / sizes.sum(), matrices, axes=1)
    side = float(np.clip(2.5 + 0.4 * len(joined), 4.2, 10))
    figure, axes = make_figure(side + 0.8, side)
    counts = np.asarray(joined * 1e6, dtype=np.int64)
    image = paint_confusion(axes, counts, findings.classes)
    axes.set(xlabel="written as", ylabel="class")
    figure.colorbar(image, ax=axes, label="chance", shrink=0.8)
    return figure
