"""Figures of who holds what and who is believed: reliability, confusion, similarity, merge order,
distributions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.plots.run_figures import confusion_on, dendrogram_figure, matrix_figure, wide
from rayfl.plots.style import style, wrapped
from rayfl.report.curves import slug
from rayfl.report.material import (
    Drawing,
    Group,
    NoData,
    Panel,
    array_of,
    config_of,
    federation_of,
    groups_of,
    joined,
    picture_of,
)

if TYPE_CHECKING:
    from rayfl.run.store import Record

ESTIMATE = "estimate/"
ACROSS = 3


# -- reliability -----------------------------------------------------------------------------------------------------


def reliability(panels: Sequence[Panel]) -> list[Drawing]:
    """What methods believe of clients against the clients' true share of wrong labels."""
    drawn = [drawing for panel in panels for drawing in reliability_of(panel)]
    if not drawn:
        raise NoData(
            "no run left what its method believes of clients, beside known true labels (arrays.npz)"
        )
    return drawn


def reliability_of(panel: Panel) -> Iterator[Drawing]:
    names = sorted(
        {name for group in panel.groups for name in group.first.arrays if name.startswith(ESTIMATE)}
    )
    for name in names:
        believed = [
            (group, points) for group in panel.groups if len(points := estimates(group, name))
        ]
        if believed:
            what = name.removeprefix(ESTIMATE)
            figure = wide(len(believed), 3.4, 3.2)
            for axes, (group, points) in zip(figure.axes, believed, strict=True):
                scattered(axes, group, points, what)
            heading = joined(f"{what[0].upper()}{what[1:]} against noise rate", panel.title)
            said = "; ".join(
                f"{group.title}: r = {correlation(points):.2f}" for group, points in believed
            )
            caption = "A point is a client, all seeds together. r: Pearson's correlation; the line: least squares."
            yield Drawing(
                f"reliability_{what}_{slug(panel.title)}",
                heading,
                caption,
                f"{heading}. {said}.",
                figure=figure,
            )


def estimates(group: Group, name: str) -> NDArray[np.float64]:
    """(noise rate, estimate) of every client of which both are known, over all repetitions."""
    pairs = [
        np.column_stack([record.arrays["noise_rate"], record.arrays[name]])
        for record in group.records
        if name in record.arrays and "noise_rate" in record.arrays
    ]
    stacked = np.concatenate(pairs) if pairs else np.zeros((0, 2))
    known: NDArray[np.float64] = stacked[np.isfinite(stacked).all(axis=1)]
    return known


def correlation(points: NDArray[np.float64]) -> float:
    from rayfl.estimate import pearson

    return pearson(points[:, 1], points[:, 0])


def scattered(axes: Any, group: Group, points: NDArray[np.float64], what: str) -> None:
    noise, believed = points.T
    axes.scatter(
        100 * noise, believed, s=18, color=style(group.style)["color"], alpha=0.7, linewidth=0
    )
    low, high = axes.get_ylim()
    if len(set(noise.tolist())) > 1:
        slope, level = np.polyfit(noise, believed, 1)
        ends = np.array([noise.min(), noise.max()])
        axes.plot(100 * ends, level + slope * ends, color="#000000", linewidth=1, linestyle="--")
    axes.set_title(f"{wrapped(group.title, 34)}\nr = {correlation(points):.2f}", fontsize=10)
    axes.set(xlabel="wrong labels (%)", ylabel=what, ylim=(low, high))
    axes.grid(alpha=0.3)


# -- confusion -------------------------------------------------------------------------------------------------------


def confusion(panels: Sequence[Panel]) -> list[Drawing]:
    """Confusion matrices of the last models, summed over repetitions."""
    drawn = [
        drawing
        for panel in panels
        for drawing in (*confusion_of(panel), *confusion_pictures(panel))
    ]
    if not drawn:
        raise NoData("no run left a confusion matrix")
    return drawn


def confusion_of(panel: Panel) -> Iterator[Drawing]:
    counted = [
        (group, [r.arrays["confusion"] for r in group.records if "confusion" in r.arrays])
        for group in panel.groups
    ]
    counted = [(group, matrices) for group, matrices in counted if matrices]
    if not counted:
        return
    classes = [str(name) for name in counted[0][0].first.facts.get("classes", ())] or None
    figure = wide(len(counted), 4.0, 3.7)
    for axes, (group, matrices) in zip(figure.axes, counted, strict=True):
        image = confusion_on(axes, np.sum(matrices, axis=0), classes)
        axes.set_title(wrapped(group.title, 34), fontsize=10)
    figure.colorbar(image, ax=figure.axes, label="share of the true class", shrink=0.7)
    heading = joined("Confusion matrices", panel.title)
    right = {group.title: np.trace(sum(found)) / np.sum(found) for group, found in counted}
    said = "; ".join(
        f"{title} {100 * share:.1f} % on the diagonal" for title, share in right.items()
    )
    caption = "Test images after the last round, seeds summed. A row is a true class, a column a predicted one."
    yield Drawing(
        f"confusion_{slug(panel.title)}", heading, caption, f"{heading}: {said}.", figure=figure
    )


def confusion_pictures(panel: Panel) -> Iterator[Drawing]:
    """For runs that left no matrix: the picture that the first of them drew."""
    for group in panel.groups:
        picture = (
            None
            if any("confusion" in r.arrays for r in group.records)
            else picture_of(group.first, "confusion")
        )
        if picture is not None:
            heading = joined("Confusion matrix", group.title, panel.title)
            caption = f"Drawn by the run itself (seed {group.first.config['seed']}), test images after the last round."
            yield Drawing(f"confusion_{slug(heading)}", heading, caption, heading, image=picture)


# -- similarity and merge order --------------------------------------------------------------------------------------


def similarity(panels: Sequence[Panel]) -> list[Drawing]:
    """How similar a method finds its clients."""
    caption = (
        "The last matrix of one run (seed {seed}); clients that have not taken part are blank."
    )
    return left("similarity", "Similarity of clients", caption, panels)


def dendrogram(panels: Sequence[Panel]) -> list[Drawing]:
    """In which order a method merges its clients."""
    return left(
        "dendrogram", "Order of merging", "One run (seed {seed}). Numbers are clients.", panels
    )


def left(name: str, heading: str, caption: str, panels: Sequence[Panel]) -> list[Drawing]:
    """A figure of an array that methods leave, of each group's first run."""
    drawn = []
    for title, group in groups_of(panels):
        array = array_of(group.first, name)
        if array is not None:
            figure = (
                dendrogram_figure(array) if name == "dendrogram" else matrix_figure(name, array)
            )
            figure.axes[0].set_title(wrapped(group.title, 60), fontsize=10)
            whole = joined(heading, group.title, title)
            said = caption.format(seed=group.first.config["seed"])
            drawn.append(
                Drawing(
                    f"{name}_{slug(joined(group.title, title))}",
                    whole,
                    said,
                    alt_of(whole, name, array),
                    figure=figure,
                )
            )
    if not drawn:
        raise NoData(f"no method of these runs leaves the array '{name}'")
    return drawn


def alt_of(title: str, name: str, array: NDArray[Any]) -> str:
    if name == "dendrogram":
        return f"{title}: {len(array) + 1} clients, last merged at distance {array[-1, 2]:.3g}."
    apart = array[~np.eye(len(array), dtype=bool)]
    return f"{title}: {len(array)} clients, between {np.nanmin(apart):.3g} and {np.nanmax(apart):.3g} off the diagonal."


# -- distributions ---------------------------------------------------------------------------------------------------

DISTRIBUTIONS = {
    "classes_by_client": (
        "Classes of each client",
        "Samples of each class that every client holds.",
    ),
    "sizes": ("Sizes of clients", "How many clients hold how many samples."),
    "noise_by_client": (
        "Noise of each client",
        "The share of wrong labels that each client was meant to have, and has.",
    ),
    "transition": ("Given labels by true class", "Over the samples of all clients."),
}


def distributions(panels: Sequence[Panel]) -> list[Drawing]:
    """Classes and noise of the clients, one federation a panel."""
    drawn: list[Drawing] = []
    seen: set[str] = set()
    for panel in panels:
        record = panel.groups[0].first
        if record.scenario not in seen:
            seen.add(record.scenario)
            drawn += distributions_of(panel.title, record)
    return drawn


def distributions_of(title: str, record: Record) -> list[Drawing]:
    """The federation's figures, drawn anew; where its data is not here, those that the run drew."""
    from rayfl.errors import RayflError
    from rayfl.federation.describe_scenario import figures

    seed = config_of(record).seeds_for("data")
    try:
        figured: dict[str, Any] = dict(figures(federation_of(record)[2]))
    except RayflError:
        figured = {
            name: picture
            for name in DISTRIBUTIONS
            if (picture := picture_of(record, name)) is not None
        }
    if not figured:
        raise NoData("the runs' datasets are not on this machine, and the runs drew no figures")
    drawn = []
    for name, (heading, caption) in DISTRIBUTIONS.items():
        if name in figured:
            whole, what = joined(heading, title), figured[name]
            picture = what if isinstance(what, bytes) else None
            figure = None if picture else what
            said = f"{caption} The federation of data seed {seed}."
            drawn.append(
                Drawing(
                    f"{name}_{slug(title)}".rstrip("_"),
                    whole,
                    said,
                    f"{whole}. {caption}",
                    figure=figure,
                    image=picture,
                )
            )
    return drawn
