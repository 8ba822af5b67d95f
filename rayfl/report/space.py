"""Figures of images: where a model puts them (t-SNE), and which ones an encoder takes for
neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.errors import RayflError
from rayfl.plots.run_figures import wide
from rayfl.plots.style import GREEN, VERMILION, style, wrapped
from rayfl.report.curves import slug
from rayfl.report.material import Drawing, Group, NoData, Panel, federation_of, groups_of, joined

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rayfl.run.store import Record

MOST_IMAGES = 1000
MOST_CLASSES = 14
MOST_EMBEDDED = 12
ANCHORS, EXAMPLES = 5, 4

Floats = NDArray[np.float64]

# -- t-SNE -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Embedded:
    """Test images in the plane."""

    title: str
    points: Floats
    labels: NDArray[np.int64]
    classes: Sequence[str]


def tsne(panels: Sequence[Panel]) -> list[Drawing]:
    """The features of test images under the models that the runs ended with, one figure a panel."""
    drawn, left, reason = [], MOST_EMBEDDED, "no run has saved its model"
    for panel in panels:
        found: list[Embedded] = []
        for group in panel.groups[:left]:
            try:
                found.append(embedded(group))
            except (NoData, RayflError) as error:
                reason = str(error)
        left -= len(found)
        if found:
            title = joined("t-SNE of features", panel.title)
            caption = "Features of at most 1,000 test images under the model of the first seed's run; colours and "
            caption += "markers are true classes. Distances between far groups mean nothing."
            alt = f"{title}: {', '.join(each.title for each in found)}."
            drawn.append(
                Drawing(
                    f"tsne_{slug(panel.title)}", title, caption, alt, figure=embedding_figure(found)
                )
            )
    if not drawn:
        raise NoData(reason)
    return drawn


def embedded(group: Group) -> Embedded:
    """One run's features, brought to two dimensions. The seed is fixed, so that a report can be
    made again."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    features, labels, classes = test_features(group.first)
    near = min(30.0, (len(features) - 1) / 3)
    # Its threads wait for each other in a busy loop: two of them on a busy machine take minutes.
    with threadpool_limits(1):
        points = TSNE(init="pca", perplexity=near, random_state=0).fit_transform(features)
    return Embedded(group.title, np.asarray(points, dtype=np.float64), labels, classes)


def test_features(record: Record) -> tuple[NDArray[np.float32], NDArray[np.int64], Sequence[str]]:
    """Features of test images, their classes, and the classes' names."""
    import torch

    from rayfl.run.assembly import spec_of, test_set

    network = saved_network(record)
    config, dataset, scenario = federation_of(record)
    test = test_set(dataset, scenario)
    assert test.y is not None
    few = np.flatnonzero(test.y < MOST_CLASSES)
    rows = np.sort(np.random.default_rng(0).permutation(few)[:MOST_IMAGES])
    learner = spec_of(config, dataset, scenario, "cpu").make_learner()
    with torch.no_grad():
        features = network.features(learner.normalise(learner.pixels(test.x[rows])))
    return features.float().numpy(), test.y[rows], dataset.classes[:MOST_CLASSES]


def saved_network(record: Record) -> Any:
    """The global model that a run has saved, the first client's for methods with several."""
    folder = record.directory / "model"
    if not folder.is_dir():
        raise NoData(
            f"the run {record.directory.name} has saved no model (tracking was disabled, or it ran elsewhere)"
        )
    import mlflow

    return mlflow.pytorch.load_model(str(folder), map_location="cpu").eval()


def embedding_figure(found: Sequence[Embedded]) -> Figure:
    figure = wide(len(found), 3.6, 3.6)
    for axes, each in zip(figure.axes, found, strict=True):
        for number, name in enumerate(each.classes):
            look, points = style(number), each.points[each.labels == number]
            # Where colours begin again, markers are hollow.
            face = look["color"] if look["linestyle"] == "-" else "none"
            axes.scatter(
                points[:, 0],
                points[:, 1],
                s=14,
                marker=look["marker"],
                facecolors=face,
                edgecolors=look["color"],
                linewidth=0.8 if face == "none" else 0,
                alpha=0.8,
                label=name,
            )
        axes.set_title(wrapped(each.title), fontsize=10)
        axes.set(xticks=[], yticks=[], xlabel="t-SNE 1", ylabel="t-SNE 2")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    columns = 5 if len(found) == 1 else 10
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, fontsize=8,
                  handletextpad=0.2, columnspacing=1.0, markerscale=1.6)  # fmt: skip
    return figure


# -- retrieval -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Retrieved:
    """One batch of a client: its images, their true classes, and how near they are to each other
    for an encoder."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    cosines: NDArray[np.float32]
    classes: Sequence[str]


def retrieved(panels: Sequence[Panel]) -> list[Drawing]:
    """The images of a batch that an encoder finds nearest to and farthest from some of them."""
    drawn, seen = [], set()
    reason = "no method of these runs retrieves neighbours by an encoder (local_k_similarity does)"
    for title, group in groups_of(panels):
        encoder = group.first.config["method"].get("encoder")
        key = (repr(encoder), group.first.scenario)
        if encoder is not None and key not in seen:
            seen.add(key)
            try:
                batch = batch_of(group.first)
            except RayflError as error:
                reason = str(error)
                continue
            whole = joined("Nearest and farthest images", group.title, title)
            purity = purity_of(batch)
            caption = f"A batch of one client under the encoder '{encoder['name']}'. Solid green: of the anchor's true "
            caption += f"class; dashed red: of another. In this batch {100 * purity:.0f} % of the {EXAMPLES} nearest "
            caption += "images have the anchor's class."
            name = f"retrieved_{slug(joined(group.title, title))}"
            drawn.append(
                Drawing(name, whole, caption, f"{whole}. {caption}", figure=retrieval_figure(batch))
            )
    if not drawn:
        raise NoData(reason)
    return drawn


def batch_of(record: Record) -> Retrieved:
    """The first mini-batch of the largest client, encoded."""
    config, dataset, scenario = federation_of(record)
    shard = scenario.shard(int(scenario.sizes().argmax()))
    rows = np.random.default_rng(0).permutation(shard)[
        : max(config.training.batch_size, ANCHORS + 2 * EXAMPLES)
    ]
    encoder = getattr(config.method, "encoder").build(dataset.shape)  # noqa: B009 - of this method alone
    images = dataset.train.x[rows]
    features = encoder.encode(images)
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    return Retrieved(images, dataset.train.y[rows], unit @ unit.T, dataset.classes)


def nearest(batch: Retrieved, anchor: int) -> NDArray[np.int64]:
    """All other images of the batch, the nearest first."""
    order = np.argsort(-batch.cosines[anchor], kind="stable")
    return np.asarray(order[order != anchor])


def purity_of(batch: Retrieved) -> float:
    """The share of nearest images that have the anchor's class, over all anchors."""
    alike = [
        batch.labels[nearest(batch, i)[:EXAMPLES]] == batch.labels[i]
        for i in range(len(batch.labels))
    ]
    return float(np.mean(np.concatenate(alike)))


def retrieval_figure(batch: Retrieved) -> Figure:
    """A row an anchor: itself, its positives, and the farthest of its negatives."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.2, 1.16 * ANCHORS + 0.5), layout="constrained")
    ratios = [1, 0.25, *[1] * EXAMPLES, 0.25, *[1] * EXAMPLES]
    grid = figure.add_gridspec(ANCHORS, len(ratios), width_ratios=ratios)
    anchors = anchors_of(batch.labels)
    for row, anchor in enumerate(anchors):
        order = nearest(batch, anchor)
        places = [
            (0, anchor),
            *enumerate(order[:EXAMPLES], 2),
            *enumerate(order[::-1][:EXAMPLES], 3 + EXAMPLES),
        ]
        for column, image in places:
            axes = figure.add_subplot(grid[row, column])
            shown(axes, batch, int(image), None if column == 0 else int(anchor))
            if row == 0 and column in (0, 2, 3 + EXAMPLES):
                title = {0: "anchor", 2: "nearest (positives)"}.get(column, "farthest (negatives)")
                axes.set_title(title, fontsize=9, loc="left")
    return figure


def anchors_of(labels: NDArray[np.int64]) -> list[int]:
    """Images of as many classes as there are."""
    first = [int(np.flatnonzero(labels == label)[0]) for label in np.unique(labels)]
    others = [i for i in range(len(labels)) if i not in first]
    return [*first, *others][:ANCHORS]


def shown(axes: Any, batch: Retrieved, image: int, anchor: int | None) -> None:
    """One image with its class, framed by whether that is the anchor's."""
    pixels = batch.images[image]
    axes.imshow(
        pixels.squeeze(), cmap="gray" if pixels.shape[-1] == 1 else None, interpolation="nearest"
    )
    axes.set(xticks=[], yticks=[])
    axes.set_xlabel(batch.classes[batch.labels[image]], fontsize=7.5, labelpad=2)
    if anchor is not None:
        same = batch.labels[image] == batch.labels[anchor]
        for spine in axes.spines.values():
            spine.set(edgecolor=GREEN if same else VERMILION, linewidth=2.2, capstyle="butt")
            spine.set_linestyle("-" if same else (0, (3, 2)))
