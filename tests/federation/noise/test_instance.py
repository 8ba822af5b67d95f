from __future__ import annotations

import numpy as np
import pytest

from rayfl.federation.interfaces import Truth
from rayfl.federation.noise.instance import draw_truncated_normal

from .truths import changed, corrupt, truth_of


def pictures(per_class: int, clients: int = 2, classes: int = 5, copies: int = 1) -> Truth:
    """Random images, each `copies` times: all samples of (client, class) show only few different
    pictures."""
    total = per_class * clients * classes
    rng = np.random.default_rng(2)
    distinct = rng.integers(0, 256, (total // copies, 4, 4, 1), dtype=np.uint8)
    return truth_of([[per_class] * classes] * clients, images=np.resize(distinct, (total, 4, 4, 1)))


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7])
def test_the_realised_rate_is_the_nominal_one_inside_the_interval(rate: float) -> None:
    truth = pictures(2000)
    result = corrupt({"name": "instance", "rate": rate}, truth)
    # the cut at 0 and 1 is three standard deviations away or more: it moves the mean by less than
    # .0005
    assert np.mean(result.given != truth.labels) == pytest.approx(
        rate, abs=5 * np.sqrt(0.25 / 20_000) + 5e-4
    )


@pytest.mark.parametrize("rate", [0.0, 0.05, 0.5, 1.0])
def test_flip_probabilities_are_a_truncated_normal(rate: float) -> None:
    from scipy.stats import truncnorm

    drawn = draw_truncated_normal(np.full(20_000, rate), 0.1, np.random.default_rng(0))
    wanted = truncnorm(-rate / 0.1, (1 - rate) / 0.1, loc=rate, scale=0.1)
    assert drawn.min() >= 0
    assert drawn.max() <= 1
    assert drawn.mean() == pytest.approx(wanted.mean(), abs=5 * wanted.std() / np.sqrt(20_000))
    assert drawn.std() == pytest.approx(wanted.std(), rel=0.05)


def test_the_picture_decides_where_a_label_goes() -> None:
    """Samples that show one picture agree on their wrong class more often than samples of one class
    do."""
    truth = pictures(1000, clients=1, copies=500)
    result = corrupt({"name": "instance", "rate": 0.6}, truth)
    wrong = result.given != truth.labels
    by_class, by_picture = [], []
    shown = np.unique(truth.images().reshape(len(wrong), -1), axis=0, return_inverse=True)[
        1
    ].ravel()
    for c in range(5):
        of_class = wrong & (truth.labels == c)
        by_class.append(agreement(result.given[of_class]))
        by_picture += [
            agreement(result.given[of_class & (shown == picture)]) for picture in np.unique(shown)
        ]
    assert np.mean(by_picture) > np.mean(by_class) + 0.1


def agreement(labels: np.ndarray[tuple[int, ...], np.dtype[np.int64]]) -> float:
    """The chance that two samples have the same label."""
    shares = np.bincount(labels) / len(labels)
    return float(np.sum(shares**2))


def test_quiet_clients_keep_their_labels_and_need_no_pictures() -> None:
    truth = pictures(200)
    assert (
        changed(truth, corrupt({"name": "instance", "rate": [0, 0.9]}, truth)) > 0
    ).tolist() == [False, True]
    blind = Truth(
        truth.labels,
        truth.owner,
        truth.position,
        2,
        5,
        images=lambda: pytest.fail("looked at the pixels"),
    )
    assert (corrupt({"name": "instance", "rate": 0}, blind).given == truth.labels).all()


def test_flipped_labels_are_other_classes_of_the_dataset() -> None:
    truth = pictures(300)
    given = corrupt({"name": "instance", "rate": 0.9, "std": 0.3}, truth).given
    assert set(given) == set(range(5))
