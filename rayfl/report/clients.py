"""Figures of who holds what and who is believed: reliability, confusion, similarity, merge order,
distributions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.plots.run_figures import draw_left_array, paint_confusion
from rayfl.plots.style import choose_line_style, make_panel_figure, wrap_title
from rayfl.report.material import (
    Drawing,
    Group,
    NoData,
    Panel,
    iterate_groups,
    join_titles,
    make_name,
    make_slug,
    open_run_federation,
    read_array,
    read_config,
    read_picture,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from rayfl.run.store import Record

ESTIMATE = "estimate/"
"""What the names of arrays begin with that say what a method believes of each client."""
TITLE_LETTERS = 34
"""Letters that fit above a panel."""


# -- reliability -----------------------------------------------------------------------------------


def draw_reliability(panels: Sequence[Panel]) -> list[Drawing]:
    """What methods believe of clients against the clients' true share of wrong labels."""
    drawn: list[Drawing] = []
    for panel in panels:
        drawn += _draw_panel_reliability(panel)
    if not drawn:
        raise NoData(
            "no run left what its method believes of clients, beside known true labels (arrays.npz)"
        )
    return drawn


def _draw_panel_reliability(panel: Panel) -> Iterator[Drawing]:
    names = {name for group in panel.groups for name in group.first.arrays}
    for name in sorted(names):
        if not name.startswith(ESTIMATE):
            continue
        believed = [(group, collect_estimates(group, name)) for group in panel.groups]
        known = [(group, points) for group, points in believed if len(points)]
        if known:
            yield _draw_estimates(panel, name.removeprefix(ESTIMATE), known)


def _draw_estimates(
    panel: Panel,
    what: str,
    believed: Sequence[tuple[Group, NDArray[np.float64]]],
) -> Drawing:
    """One quantity that methods estimate, a pair of axes a method."""
    figure = make_panel_figure(len(believed), 3.4, 3.2)
    for axes, (group, points) in zip(figure.axes, believed, strict=True):
        _scatter_clients(axes, group, points, what)
    title = join_titles(f"{what[0].upper()}{what[1:]} against noise rate", panel.title)
    found = [f"{group.title}: r = {correlate_points(points):.2f}" for group, points in believed]
    return Drawing(
        f"reliability_{what}_{make_slug(panel.title)}",
        title,
        "A point is a client, all seeds together. r: Pearson's correlation; the line: least"
        " squares.",
        f"{title}. {'; '.join(found)}.",
        figure=figure,
    )


def collect_estimates(group: Group, name: str) -> NDArray[np.float64]:
    """(noise rate, estimate) of every client of which both are known, over all repetitions."""
    arrays = [record.arrays for record in group.records]
    pairs = [
        np.column_stack([left["noise_rate"], left[name]])
        for left in arrays
        if name in left and "noise_rate" in left
    ]
    stacked = np.concatenate(pairs) if pairs else np.zeros((0, 2))
    known: NDArray[np.float64] = stacked[np.isfinite(stacked).all(axis=1)]
    return known


def correlate_points(points: NDArray[np.float64]) -> float:
    """Pearson's correlation of the two columns."""
    from rayfl.estimate import measure_correlation

    return measure_correlation(points[:, 1], points[:, 0])


def _scatter_clients(
    axes: Axes,
    group: Group,
    points: NDArray[np.float64],
    what: str,
) -> None:
    """A point a client, and the line of least squares where there is one."""
    noise, believed = points.T
    colour = choose_line_style(group.style)["color"]
    axes.scatter(
        100 * noise,
        believed,
        s=18,
        color=colour,
        alpha=0.7,
        linewidth=0,
    )
    low, high = axes.get_ylim()
    # Through clients of one noise rate there are many lines.
    if len(set(noise.tolist())) > 1:
        slope, level = np.polyfit(noise, believed, 1)
        ends = np.array([noise.min(), noise.max()])
        axes.plot(
            100 * ends,
            level + slope * ends,
            color="#000000",
            linewidth=1,
            linestyle="--",
        )
    title = wrap_title(group.title, TITLE_LETTERS)
    axes.set_title(f"{title}\nr = {correlate_points(points):.2f}", fontsize=10)
    axes.set(xlabel="wrong labels (%)", ylabel=what, ylim=(low, high))
    axes.grid(alpha=0.3)


# -- confusion -------------------------------------------------------------------------------------


def draw_confusion_matrices(panels: Sequence[Panel]) -> list[Drawing]:
    """Confusion matrices of the last models, summed over repetitions."""
    drawn: list[Drawing] = []
    for panel in panels:
        drawn += _draw_summed_confusion(panel)
        drawn += _show_confusion_pictures(panel)
    if not drawn:
        raise NoData("no run left a confusion matrix")
    return drawn


def _sum_confusion(group: Group) -> NDArray[np.int64] | None:
    """The matrix of all repetitions that left one."""
    arrays = [record.arrays for record in group.records]
    matrices = [left["confusion"] for left in arrays if "confusion" in left]
    return np.sum(matrices, axis=0) if matrices else None


def _draw_summed_confusion(panel: Panel) -> Iterator[Drawing]:
    summed = [(group, _sum_confusion(group)) for group in panel.groups]
    counted = [(group, matrix) for group, matrix in summed if matrix is not None]
    if not counted:
        return
    facts = counted[0][0].first.facts
    classes = [str(name) for name in facts.get("classes", ())]
    figure = make_panel_figure(len(counted), 4.0, 3.7)
    for axes, (group, matrix) in zip(figure.axes, counted, strict=True):
        image = paint_confusion(axes, matrix, classes or None)
        axes.set_title(wrap_title(group.title, TITLE_LETTERS), fontsize=10)
    figure.colorbar(image, ax=figure.axes, label="share of the true class", shrink=0.7)
    title = join_titles("Confusion matrices", panel.title)
    shares = [(group.title, np.trace(matrix) / np.sum(matrix)) for group, matrix in counted]
    said = [f"{name} {100 * share:.1f} % on the diagonal" for name, share in shares]
    yield Drawing(
        f"confusion_{make_slug(panel.title)}",
        title,
        "Test images after the last round, seeds summed. A row is a true class, a column a"
        " predicted one.",
        f"{title}: {'; '.join(said)}.",
        figure=figure,
    )


def _show_confusion_pictures(panel: Panel) -> Iterator[Drawing]:
    """For runs that left no matrix: the picture that the first of them drew."""
    for group in panel.groups:
        if _sum_confusion(group) is not None:
            continue
        picture = read_picture(group.first, "confusion")
        if picture is None:
            continue
        title = join_titles("Confusion matrix", group.title, panel.title)
        seed = group.first.config["seed"]
        caption = f"Drawn by the run itself (seed {seed}), test images after the last round."
        yield Drawing(f"confusion_{make_slug(title)}", title, caption, title, image=picture)


# -- similarity and merge order --------------------------------------------------------------------


def draw_similarity(panels: Sequence[Panel]) -> list[Drawing]:
    """How similar a method finds its clients."""
    caption = (
        "The last matrix of one run (seed {seed}); clients that have not taken part are blank."
    )
    return _draw_left_arrays("similarity", "Similarity of clients", caption, panels)


def draw_merge_order(panels: Sequence[Panel]) -> list[Drawing]:
    """In which order a method merges its clients."""
    caption = "One run (seed {seed}). Numbers are clients."
    return _draw_left_arrays("dendrogram", "Order of merging", caption, panels)


def _draw_left_arrays(
    name: str, heading: str, caption: str, panels: Sequence[Panel]
) -> list[Drawing]:
    """A figure of an array that methods leave, of each group's first run."""
    drawn = []
    for panel_title, group in iterate_groups(panels):
        array = read_array(group.first, name)
        if array is None:
            continue
        figure = draw_left_array(name, array)
        figure.axes[0].set_title(wrap_title(group.title, 60), fontsize=10)
        title = join_titles(heading, group.title, panel_title)
        drawing = Drawing(
            f"{name}_{make_slug(join_titles(group.title, panel_title))}",
            title,
            caption.format(seed=group.first.config["seed"]),
            f"{title}: {_describe_array(name, array)}",
            figure=figure,
        )
        drawn.append(drawing)
    if not drawn:
        raise NoData(f"no method of these runs leaves the array '{name}'")
    return drawn


def _describe_array(name: str, array: NDArray[Any]) -> str:
    """What somebody who does not see the figure is told: its size, and the values' range."""
    if array.ndim != 2 or array.dtype.kind not in "biuf" or not np.isfinite(array).any():
        return f"values of shape {' x '.join(map(str, array.shape))}."
    rows, columns = array.shape
    if name == "dendrogram" and columns == 4:
        return f"{rows + 1} clients, last merged at distance {array[-1, 2]:.3g}."
    square = rows == columns
    # A client's similarity to itself says nothing.
    told = array[~np.eye(rows, dtype=bool)] if square and rows > 1 else array.ravel()
    known = told[np.isfinite(told)]
    size = f"{rows} clients" if square else f"{rows} x {columns} values"
    if not len(known):
        return f"{size}, none known of two."
    where = " off the diagonal" if square and rows > 1 else ""
    return f"{size}, between {known.min():.3g} and {known.max():.3g}{where}."


# -- distributions ---------------------------------------------------------------------------------

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
"""By the name of a scenario's figure: its heading and its caption."""


def draw_distributions(panels: Sequence[Panel]) -> list[Drawing]:
    """Classes and noise of the clients, one federation a panel."""
    drawn: list[Drawing] = []
    seen: set[str] = set()
    for panel in panels:
        record = panel.groups[0].first
        if record.scenario not in seen:
            seen.add(record.scenario)
            drawn += _draw_federation(panel.title, record)
    return drawn


def _draw_federation(panel_title: str, record: Record) -> list[Drawing]:
    """The figures of one federation."""
    found = _find_distributions(record)
    if not found:
        raise NoData("the runs' datasets are not on this machine, and the runs drew no figures")
    seed = read_config(record).seeds_for("data")
    drawn = []
    for name, (heading, caption) in DISTRIBUTIONS.items():
        if name not in found:
            continue
        title = join_titles(heading, panel_title)
        drawing = Drawing(
            make_name(name, panel_title),
            title,
            f"{caption} The federation of data seed {seed}.",
            f"{title}. {caption}",
            **_choose_medium(found[name]),
        )
        drawn.append(drawing)
    return drawn


def _choose_medium(shown: Any) -> dict[str, Any]:
    """Under which name a drawing holds a figure, or a picture that a run has drawn."""
    return {"image": shown} if isinstance(shown, bytes) else {"figure": shown}


def _find_distributions(record: Record) -> Mapping[str, Any]:
    """The federation's figures, drawn anew; where its data is not here, those that the run drew."""
    from rayfl.errors import RayflError
    from rayfl.federation.scenario_display import draw_scenario_figures

    try:
        _, _, scenario = open_run_federation(record)
        return dict(draw_scenario_figures(scenario))
    except RayflError:
        pictures = {name: read_picture(record, name) for name in DISTRIBUTIONS}
        return {name: picture for name, picture in pictures.items() if picture is not None}
