"""Pictures of images: which ones are shown, how they are framed, and what is missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rayfl.plots.style import GREEN, VERMILION
from rayfl.report.feature_space import (
    ANCHORS,
    EmbeddedImages,
    RetrievedImages,
    choose_anchors,
    compute_test_features,
    draw_embeddings,
    draw_retrieval,
    load_saved_network,
    measure_purity,
    rank_nearest,
)
from rayfl.report.material import Group, NoData
from tests.report.conftest import Made
from tests.report.results import record

compute_test_features.__test__ = False  # type: ignore[attr-defined]


@pytest.fixture
def batch() -> RetrievedImages:
    """Twenty images on a line: neighbours are those with near numbers, and classes change every
    ten."""
    place = np.arange(20) / 20
    cosines = np.cos(place[:, None] - place).astype(np.float32)
    images = np.zeros((20, 4, 4, 1), np.uint8)
    return RetrievedImages(images, np.repeat([0, 1], 10), cosines, ["cat", "dog"])


def test_the_nearest_come_first_and_an_image_is_not_its_own_neighbour(
    batch: RetrievedImages,
) -> None:
    assert rank_nearest(batch, 0).tolist() == list(range(1, 20))
    assert sorted(rank_nearest(batch, 7)[:2].tolist()) == [6, 8]
    assert len(rank_nearest(batch, 19)) == 19


def test_purity_is_the_share_of_neighbours_of_the_class(batch: RetrievedImages) -> None:
    # Of 4 neighbours, images 8 to 11 have 1, 2, 2 and 1 on the other side of the border.
    assert measure_purity(batch) == pytest.approx(1 - (1 + 2 + 2 + 1) / 80)


@pytest.mark.parametrize(
    ("labels", "anchors"),
    [
        ([0, 0, 1, 2, 3, 4, 5], [0, 2, 3, 4, 5]),
        ([1, 1, 0, 1, 1, 1], [2, 0, 1, 3, 4]),
        ([0] * 6, [0, 1, 2, 3, 4]),
    ],
)
def test_anchors_are_of_as_many_classes_as_there_are(labels: list[int], anchors: list[int]) -> None:
    assert choose_anchors(np.array(labels)) == anchors
    assert len(anchors) == ANCHORS


def test_frames_tell_classes_by_colour_and_by_line(batch: RetrievedImages) -> None:
    figure = draw_retrieval(batch)
    assert len(figure.axes) == ANCHORS * 9
    spines = [axes.spines["left"] for axes in figure.axes[:9]]
    looks = {(spine.get_linestyle() == "-", spine.get_edgecolor()) for spine in spines[1:]}
    assert len(looks) == 2
    heads = [figure.axes[place].get_title(loc="left") for place in (0, 1, 5)]
    assert heads == ["anchor", "nearest (positives)", "farthest (negatives)"]
    assert GREEN != VERMILION


def test_classes_beyond_the_colours_have_hollow_markers() -> None:
    points, labels = np.random.default_rng(0).normal(size=(40, 2)), np.arange(40) % 10
    figure = draw_embeddings([EmbeddedImages("m", points, labels, [str(i) for i in range(10)])])
    faces = [len(drawn.get_facecolor()) for drawn in figure.axes[0].collections]
    assert faces == [1] * 7 + [0] * 3
    assert len(figure.legends[0].get_texts()) == 10


@pytest.mark.filterwarnings("ignore")  # MLflow's and torch's own, when a model is read
def test_features_are_those_of_the_saved_model_on_test_images(made: Made) -> None:
    found = made.result.at(method="fedavg", noise="noisy")
    assert found is not None
    features, labels, classes = compute_test_features(found.records[0])
    assert features.shape == (len(labels), 8)
    assert np.isfinite(features).all()
    assert len(classes) == 10
    assert set(labels.tolist()) == set(range(10))


def test_a_run_without_a_saved_model_says_so(tmp_path: Path) -> None:
    with pytest.raises(
        NoData, match=r"has saved no model \(tracking was disabled, or it ran elsewhere\)"
    ):
        load_saved_network(Group("m", [record(tmp_path)]).first)
