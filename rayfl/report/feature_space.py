"""Figures of images: where a model puts them (t-SNE), and which ones an encoder takes for
neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.arrays import Floats
from rayfl.errors import RayflError
from rayfl.plots.style import (
    GREEN,
    VERMILION,
    choose_line_style,
    make_panel_figure,
    wrap_title,
)
from rayfl.report.material import (
    Drawing,
    Group,
    NoData,
    Panel,
    iterate_groups,
    join_titles,
    make_slug,
    open_run_federation,
)
from rayfl.tracking.saved_model import read_saved_weights

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from rayfl.run.store import Record

MOST_IMAGES = 1000
MOST_CLASSES = 14
"""As many as there are looks."""
MOST_EMBEDDED = 12
"""Models in all panels: t-SNE takes seconds for each."""
MOST_NEAR = 30.0
"""The perplexity of t-SNE, where there are images enough."""
ANCHORS = 5
EXAMPLES = 4
"""Images on either side of an anchor's row."""


# -- t-SNE -----------------------------------------------------------------------------------------

EMBEDDING_CAPTION = (
    "Features of at most 1,000 test images under the model of the first seed's run; colours and "
    "markers are true classes. Distances between far groups mean nothing."
)


@dataclass(frozen=True)
class EmbeddedImages:
    """Test images in the plane."""

    title: str
    points: Floats
    labels: NDArray[np.int64]
    classes: Sequence[str]


def draw_tsne(panels: Sequence[Panel]) -> list[Drawing]:
    """The features of test images under the models that the runs ended with, one figure a panel."""
    drawn = []
    left = MOST_EMBEDDED
    reason = "no run has saved its model"
    for panel in panels:
        found: list[EmbeddedImages] = []
        for group in panel.groups[:left]:
            try:
                found.append(_embed_group(group))
            except (NoData, RayflError) as error:
                reason = str(error)
        left -= len(found)
        if found:
            drawn.append(_draw_panel_embeddings(panel, found))
    if not drawn:
        raise NoData(reason)
    return drawn


def _draw_panel_embeddings(panel: Panel, found: Sequence[EmbeddedImages]) -> Drawing:
    title = join_titles("t-SNE of features", panel.title)
    models = ", ".join(each.title for each in found)
    return Drawing(
        f"tsne_{make_slug(panel.title)}",
        title,
        EMBEDDING_CAPTION,
        f"{title}: {models}.",
        figure=draw_embeddings(found),
    )


def _embed_group(group: Group) -> EmbeddedImages:
    """One run's features, brought to two dimensions. The seed is fixed, so that a report can be
    made again."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    features, labels, classes = compute_test_features(group.first)
    near = min(MOST_NEAR, (len(features) - 1) / 3)
    # Its threads wait for each other in a busy loop: two of them on a busy machine take minutes.
    with threadpool_limits(1):
        points = TSNE(init="pca", perplexity=near, random_state=0).fit_transform(features)
    return EmbeddedImages(
        group.title,
        np.asarray(points, dtype=np.float64),
        labels,
        classes,
    )


def compute_test_features(
    record: Record,
) -> tuple[NDArray[np.float32], NDArray[np.int64], Sequence[str]]:
    """Features of test images, their classes, and the classes' names."""
    import torch

    from rayfl.run.assembly import build_spec, take_test_set

    network = load_saved_network(record)
    config, dataset, scenario = open_run_federation(record)
    test = take_test_set(dataset, scenario)
    assert test.y is not None
    few = np.flatnonzero(test.y < MOST_CLASSES)
    chosen = np.random.default_rng(0).permutation(few)[:MOST_IMAGES]
    rows = np.sort(chosen)
    learner = build_spec(config, dataset, scenario, "cpu").make_learner()
    with torch.no_grad():
        features = network.features(learner.normalise(learner.pixels(test.x[rows])))
    return features.float().numpy(), test.y[rows], dataset.classes[:MOST_CLASSES]


def load_saved_network(record: Record) -> Any:
    """The global model that a run has saved, the first client's for methods with several."""
    folder = record.directory / "model"
    if not folder.is_dir():
        raise NoData(
            f"the run {record.directory.name} has saved no model "
            "(tracking was disabled, or it ran elsewhere)"
        )
    try:
        weights = read_saved_weights(folder)
    except ValueError as error:
        name = record.directory.name
        raise NoData(f"the weights that {name} has saved are damaged: {error}") from None
    if weights is None:
        raise NoData(
            f"the run {record.directory.name} has saved its model as a pickle alone, which may "
            "hold anybody's code: run it again"
        )
    return _rebuild_network(record, weights)


def _rebuild_network(record: Record, weights: NDArray[np.float32]) -> Any:
    """The network that the configuration describes, with these weights."""
    from rayfl.run.assembly import NetworkRecipe, filled_network

    config, dataset, scenario = open_run_federation(record)
    recipe = NetworkRecipe(config, dataset.shape, len(scenario.classes))
    return filled_network(recipe, weights).eval()


def draw_embeddings(found: Sequence[EmbeddedImages]) -> Figure:
    """The images of several models, a pair of axes a model, with one legend for all."""
    figure = make_panel_figure(len(found), 3.6, 3.6)
    for axes, each in zip(figure.axes, found, strict=True):
        for number, name in enumerate(each.classes):
            points = each.points[each.labels == number]
            _scatter_class(axes, points, number, name)
        axes.set_title(wrap_title(each.title), fontsize=10)
        axes.set(
            xticks=[],
            yticks=[],
            xlabel="t-SNE 1",
            ylabel="t-SNE 2",
        )
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=5 if len(found) == 1 else 10,
        frameon=False,
        fontsize=8,
        handletextpad=0.2,
        columnspacing=1.0,
        markerscale=1.6,
    )
    return figure


def _scatter_class(
    axes: Axes,
    points: Floats,
    number: int,
    name: str,
) -> None:
    """The images of one class."""
    look = choose_line_style(number)
    # Where colours begin again, markers are hollow.
    hollow = look["linestyle"] != "-"
    axes.scatter(
        points[:, 0],
        points[:, 1],
        s=14,
        marker=look["marker"],
        facecolors="none" if hollow else look["color"],
        edgecolors=look["color"],
        linewidth=0.8 if hollow else 0,
        alpha=0.8,
        label=name,
    )


# -- retrieval -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RetrievedImages:
    """One batch of a client: its images, their true classes, and how near they are to each other
    for an encoder."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    cosines: NDArray[np.float32]
    classes: Sequence[str]


def draw_retrieved(panels: Sequence[Panel]) -> list[Drawing]:
    """The images of a batch that an encoder finds nearest to and farthest from some of them."""
    drawn = []
    seen = set()
    reason = "no method of these runs retrieves neighbours by an encoder (local_k_similarity does)"
    for panel_title, group in iterate_groups(panels):
        encoder = group.first.config["method"].get("encoder")
        key = (repr(encoder), group.first.scenario)
        if encoder is None or key in seen:
            continue
        seen.add(key)
        try:
            batch = _retrieve_batch(group.first)
        except RayflError as error:
            reason = str(error)
            continue
        subject = join_titles(group.title, panel_title)
        drawn.append(_draw_batch(subject, encoder["name"], batch))
    if not drawn:
        raise NoData(reason)
    return drawn


def _draw_batch(subject: str, encoder: str, batch: RetrievedImages) -> Drawing:
    title = join_titles("Nearest and farthest images", subject)
    purity = measure_purity(batch)
    caption = (
        f"A batch of one client under the encoder '{encoder}'. Solid green: of the anchor's true "
        f"class; dashed red: of another. In this batch {100 * purity:.0f} % of the {EXAMPLES} "
        "nearest images have the anchor's class."
    )
    return Drawing(
        f"retrieved_{make_slug(subject)}",
        title,
        caption,
        f"{title}. {caption}",
        figure=draw_retrieval(batch),
    )


def _retrieve_batch(record: Record) -> RetrievedImages:
    """The first mini-batch of the largest client, encoded."""
    config, dataset, scenario = open_run_federation(record)
    largest = int(scenario.sizes().argmax())
    size = max(config.training.batch_size, ANCHORS + 2 * EXAMPLES)
    rows = np.random.default_rng(0).permutation(scenario.shard(largest))[:size]
    # Not every method has an encoder: only those that have one come here.
    spec: Any = config.method
    encoder = spec.encoder.build(dataset.shape)
    images = dataset.train.x[rows]
    features = encoder.encode(images)
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    unit = features / np.maximum(lengths, 1e-12)
    return RetrievedImages(
        images,
        dataset.train.y[rows],
        unit @ unit.T,
        dataset.classes,
    )


def rank_nearest(batch: RetrievedImages, anchor: int) -> NDArray[np.int64]:
    """All other images of the batch, the nearest first."""
    order = np.argsort(-batch.cosines[anchor], kind="stable")
    return np.asarray(order[order != anchor])


def measure_purity(batch: RetrievedImages) -> float:
    """The share of nearest images that have the anchor's class, over all anchors."""
    alike = []
    for anchor, label in enumerate(batch.labels):
        nearest = rank_nearest(batch, anchor)[:EXAMPLES]
        alike.append(batch.labels[nearest] == label)
    return float(np.mean(np.concatenate(alike)))


def draw_retrieval(batch: RetrievedImages) -> Figure:
    """A row an anchor: itself, its positives, and the farthest of its negatives."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 1.16 * ANCHORS + 0.5), layout="constrained")
    gap = 0.25
    ratios = [1, gap, *[1] * EXAMPLES, gap, *[1] * EXAMPLES]
    grid = figure.add_gridspec(ANCHORS, len(ratios), width_ratios=ratios)
    nearest = 2
    farthest = nearest + EXAMPLES + 1
    heads = {0: "anchor", nearest: "nearest (positives)", farthest: "farthest (negatives)"}
    for row, anchor in enumerate(choose_anchors(batch.labels)):
        order = rank_nearest(batch, anchor)
        places = {0: anchor}
        places |= dict(enumerate(order[:EXAMPLES], nearest))
        places |= dict(enumerate(order[::-1][:EXAMPLES], farthest))
        for column, image in places.items():
            axes = figure.add_subplot(grid[row, column])
            _show_image(axes, batch, int(image), None if column == 0 else anchor)
            if row == 0 and column in heads:
                axes.set_title(heads[column], fontsize=9, loc="left")
    return figure


def choose_anchors(labels: NDArray[np.int64]) -> list[int]:
    """Images of as many classes as there are."""
    _, places = np.unique(labels, return_index=True)
    first = [int(place) for place in places]
    others = [place for place in range(len(labels)) if place not in first]
    return [*first, *others][:ANCHORS]


def _show_image(
    axes: Axes,
    batch: RetrievedImages,
    image: int,
    anchor: int | None,
) -> None:
    """One image with its class, framed by whether that is the anchor's."""
    pixels = batch.images[image]
    grey = pixels.shape[-1] == 1
    axes.imshow(pixels.squeeze(), cmap="gray" if grey else None, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(batch.classes[batch.labels[image]], fontsize=7.5, labelpad=2)
    if anchor is None:
        return
    same = batch.labels[image] == batch.labels[anchor]
    for spine in axes.spines.values():
        spine.set(edgecolor=GREEN if same else VERMILION, linewidth=2.2, capstyle="butt")
        spine.set_linestyle("-" if same else (0, (3, 2)))
