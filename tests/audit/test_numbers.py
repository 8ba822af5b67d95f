"""The arithmetic of an audit: slopes, transitions, shares."""

from __future__ import annotations

import numpy as np
import pytest

from rayfl.arrays import Floats, Ints
from rayfl.audit.calibration import fade, find_floor, widen_edges, widen_spread
from rayfl.audit.duplicates import find_duplicates, print_images
from rayfl.audit.features import deal_folds
from rayfl.audit.heads import HeadDescent, Singles, answer_all, answer_unseen, measure_slope
from rayfl.audit.opinions import ask_neighbours, compare_best, find_confident
from rayfl.audit.plan import AuditPlan
from rayfl.audit.selection import choose_best, choose_trusted, cover_classes
from rayfl.audit.shares import Share, estimate_share, weigh_rates
from rayfl.audit.transitions import (
    count_transitions,
    find_pattern,
    infer_classes,
    measure_rate,
    settle_transition,
    shrink_transition,
)
from rayfl.audit.verdict import judge_share, measure_trust

CLASSES = 3


def draw_points(samples: int = 60, width: int = 4) -> Singles:
    rng = np.random.default_rng(1)
    return rng.normal(size=(samples, width)).astype(np.float32)


def measure_loss(points: Singles, head: Floats, given: Ints, transition: Floats) -> float:
    logits = points.astype(np.float64) @ head
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return float(-np.log((p * transition[:, given].T).sum(axis=1)).mean())


def test_a_slope_is_that_of_the_likelihood_that_knows_the_mistakes() -> None:
    points = draw_points()
    rng = np.random.default_rng(2)
    given = rng.integers(0, CLASSES, len(points))
    transition = np.array([[0.8, 0.15, 0.05], [0.1, 0.7, 0.2], [0.3, 0.1, 0.6]])
    head = rng.normal(size=(4, CLASSES))
    nobody = np.full(len(points), -1)
    heads = head[None].astype(np.float32)
    slope = measure_slope(points, heads, given, nobody, transition, 1.0)[0]
    for place in ((0, 0), (3, 2), (1, 1)):
        nudge = np.zeros_like(head)
        nudge[place] = 1e-4
        up, down = (
            measure_loss(points, head + sign * nudge, given, transition) for sign in (1, -1)
        )
        assert slope[place] == pytest.approx((up - down) / 2e-4, abs=1e-3)


def test_a_head_never_learns_from_the_fold_that_it_judges() -> None:
    points = draw_points()
    given = np.random.default_rng(3).integers(0, CLASSES, len(points))
    folds = np.arange(len(points)) % 2
    start = np.zeros((2, 4, CLASSES), np.float32)
    other = np.where(folds == 0, (given + 1) % CLASSES, given)
    slopes = [
        measure_slope(points, start, labels, folds, np.eye(CLASSES), 1.0)
        for labels in (given, other)
    ]
    assert np.array_equal(slopes[0][0], slopes[1][0])
    assert not np.array_equal(slopes[0][1], slopes[1][1])


def test_means_of_clients_slopes_are_the_slope_of_all() -> None:
    points = draw_points()
    given = np.random.default_rng(4).integers(0, CLASSES, len(points))
    folds = np.arange(len(points)) % 2
    heads = np.random.default_rng(5).normal(size=(2, 4, CLASSES)).astype(np.float32)
    parts = [slice(0, 20), slice(20, 60)]
    slopes = [
        measure_slope(points[part], heads, given[part], folds[part], np.eye(CLASSES), 1.0)
        for part in parts
    ]
    joined = (20 * slopes[0] + 40 * slopes[1]) / 60
    whole = measure_slope(points, heads, given, folds, np.eye(CLASSES), 1.0)
    assert joined == pytest.approx(whole, abs=1e-6)


def test_descent_separates_what_can_be_separated() -> None:
    points = draw_points(200)
    points /= np.sqrt((points**2).mean(axis=0).max())
    given = (points[:, 0] > 0).astype(np.int64)
    descent = HeadDescent(np.zeros((1, 4, 2), np.float32), decay=1e-3)
    nobody = np.full(len(points), -1)
    for _ in range(60):
        descent.step(measure_slope(points, descent.ahead, given, nobody, np.eye(2), 1.0))
    assert (answer_all(points, descent.heads)[:, 0].argmax(axis=1) == given).mean() > 0.95


def test_sharper_heads_are_surer_of_the_same_class() -> None:
    points = draw_points()
    heads = np.random.default_rng(5).normal(size=(2, 4, CLASSES)).astype(np.float32)
    folds = np.arange(len(points)) % 2
    usual = answer_unseen(points, heads, folds)
    sharp = answer_unseen(points, heads, folds, 3.0)
    assert np.array_equal(usual.argmax(axis=1), sharp.argmax(axis=1))
    assert (sharp.max(axis=1) > usual.max(axis=1)).all()


def test_folds_share_out_every_label_evenly() -> None:
    labels = np.repeat([0, 1, 2], [10, 5, 20])
    folds = deal_folds(labels, 5, np.random.default_rng(0))
    for label, count in ((0, 2), (1, 1), (2, 4)):
        assert np.bincount(folds[labels == label], minlength=5).tolist() == [count] * 5


# -- mistakes --------------------------------------------------------------------------------------


def draw_written(rate: float, samples: int = 4000, seed: int = 0) -> tuple[Floats, Ints, Ints]:
    """Answers of heads that are right nine times of ten and know it, labels, and the truth."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, 4, samples)
    said = np.where(rng.random(samples) < 0.9, true, rng.integers(0, 4, samples))
    answers = np.full((samples, 4), 0.025)
    answers[np.arange(samples), said] = 0.925
    wrong = rng.random(samples) < rate
    given = np.where(wrong, (true + 1) % 4, true)
    return answers, given, true


@pytest.mark.parametrize("rate", [0.0, 0.2, 0.7])
def test_a_client_s_own_mistakes_are_found(rate: float) -> None:
    answers, given, true = draw_written(rate)
    start = shrink_transition(
        count_transitions(np.eye(4)[answers.argmax(axis=1)], given), np.full((4, 4), 0.25), 1.0
    )
    pattern = find_pattern(np.eye(4))
    settled = settle_transition(answers, given, start, pattern, 1.0, 60)
    likely = infer_classes(answers, settled, given)
    found = measure_rate(count_transitions(likely, given))
    assert found == pytest.approx((given != true).mean(), abs=0.03)


def test_a_client_without_samples_of_a_class_takes_the_federation_s_pattern() -> None:
    counts = np.array([[5.0, 5.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 10.0]])
    pattern = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    shrunk = shrink_transition(counts, pattern, 10.0)
    assert shrunk[1].tolist() == pytest.approx([0.0, 0.75, 0.25])
    assert shrunk.sum(axis=1) == pytest.approx(1.0)


@pytest.mark.parametrize(("rate", "left"), [(0.02, 0.02), (0.10, 0.05), (0.15, 0.0), (0.4, 0.0)])
def test_only_what_almost_clean_clients_get_wrong_is_the_heads_own(
    rate: float, left: float
) -> None:
    counts = 1000 * ((1 - rate) * np.eye(2) + rate * np.eye(2)[::-1])
    floor = find_floor(counts, find_pattern(counts), 0.0, fade(rate, (0.05, 0.15)))
    assert 1 - floor[0, 0] == pytest.approx(left, abs=1e-6)


def count(rate: float, samples: int = 400) -> Floats:
    return samples * ((1 - rate) * np.eye(2) + rate * np.eye(2)[::-1]) / 2


def test_the_best_are_those_who_cannot_be_told_from_the_very_best() -> None:
    # A standard error of a rate of 4 % among 400 is one point.
    counts = dict(enumerate(map(count, [0.3, 0.048, 0.04, 0.06, 0.5])))
    assert choose_best(counts, 0.1, 1.0) == [2, 1]
    assert choose_best(counts, 0.5, 1.0) == [2, 1, 3]
    assert choose_best(counts, 0.1, 0.0) == [2]
    assert choose_best({7: count(0.5)}, 0.05, 1.0) == [7]


def test_unsure_heads_of_few_samples_are_forgiven_and_others_are_not() -> None:
    edges = (0.05, 0.15)
    assert widen_edges(edges, 0.1, 20.0) == edges
    assert widen_edges(edges, 0.3, 50.0) == pytest.approx((0.15, 0.45))
    assert widen_edges(edges, 0.3, 1000.0)[1] == pytest.approx(0.18)


def test_heads_of_few_samples_may_be_wrong_of_all_alike() -> None:
    assert widen_spread(0.01, 0.1, 800.0) == 0.01
    assert widen_spread(0.01, 0.25, 50.0) > 4 * widen_spread(0.01, 0.1, 800.0)
    assert widen_spread(0.01, 0.2, 25.0) == pytest.approx(2 * widen_spread(0.01, 0.2, 100.0))


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.7])
def test_the_likeliest_rate_is_the_share_of_wrong_labels(rate: float) -> None:
    pattern = np.roll(np.eye(4), 1, axis=1)
    answers, given, true = draw_written(rate)
    likelihood = weigh_rates(answers, pattern, given)
    assert likelihood.argmax() / 400 == pytest.approx((given != true).mean(), abs=0.03)
    assert len(weigh_rates(answers, pattern, given, most=0.02)) == 9


@pytest.mark.parametrize("rate", [0.0, 0.3, 0.8])
def test_nine_of_ten_intervals_hold_the_truth(rate: float) -> None:
    pattern = np.roll(np.eye(4), 1, axis=1)
    held = 0
    for seed in range(60):
        answers, given, true = draw_written(rate, 300, seed)
        share = estimate_share(answers, pattern, given, 0.0)
        held += share.low <= (given != true).mean() <= share.high
    assert held / 60 > 0.8


def test_an_interval_is_wider_where_there_are_fewer_samples() -> None:
    pattern = np.roll(np.eye(4), 1, axis=1)
    few, many = (
        estimate_share(*draw_written(0.3, samples)[:1], pattern, draw_written(0.3, samples)[1], 0.0)
        for samples in (30, 3000)
    )
    assert few.high - few.low > 3 * (many.high - many.low)


# -- verdicts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        (Share(0.02, 0.0, 0.05), "clean"),
        (Share(0.1, 0.05, 0.15), "unsure"),
        (Share(0.3, 0.2, 0.4), "wrong labels"),
    ],
)
def test_a_verdict_is_what_the_interval_allows(share: Share, verdict: str) -> None:
    assert judge_share(share) == verdict


def test_trust_is_nothing_where_labels_are_drawn() -> None:
    trust = measure_trust(Share(0.45, 0.0, 0.95), 10)
    assert trust == pytest.approx((0.5, 0.0, 1.0))


def test_whoever_agrees_best_is_trusted_and_equals_of_the_best_as_well() -> None:
    held = {client: [50, 50] for client in range(5)}
    plan = AuditPlan()
    apart = {0: 0.5, 1: 0.1, 2: 0.7, 3: 0.2, 4: 0.8}
    assert choose_trusted(apart, held, plan) == [1, 3]
    alike = {0: 0.40, 1: 0.41, 2: 0.42, 3: 0.40, 4: 0.44}
    assert choose_trusted(alike, held, plan) == [0, 1, 2, 3, 4]


def test_whoever_holds_a_class_that_the_best_lack_is_trusted_too() -> None:
    held = {0: [50, 50, 0], 1: [48, 50, 2], 2: [10, 0, 90], 3: [0, 10, 90], 4: [0, 0, 0]}
    apart = {0: 0.1, 1: 0.2, 2: 0.9, 3: 0.4, 4: 0.3}
    assert choose_trusted(apart, held, AuditPlan()) == [0, 1, 3]
    # Nobody has enough of a class that nobody holds.
    assert cover_classes([0], [0, 1], {0: [5, 0], 1: [5, 0]}, 0.4) == [0]
    counts = {
        0: np.diag([40.0, 40.0, 0.0]),
        1: np.diag([40.0, 40.0, 0.0]),
        2: np.array([[0.0, 0.0, 8.0], [0.0, 0.0, 0.0], [0.0, 0.0, 72.0]]),
    }
    assert choose_best(counts, 0.1, 0.0) == [0, 1, 2]


# -- single estimators -----------------------------------------------------------------------------


def test_neighbours_vote_without_the_sample_itself() -> None:
    points = np.array([[0.0], [0.1], [0.2], [9.0]], np.float32)
    shares = ask_neighbours(points, np.array([1, 0, 0, 1]), 2, 2)
    assert shares[0].tolist() == [1.0, 0.0]
    alone = ask_neighbours(points[:1], np.array([1]), 2, 2)
    assert compare_best(alone, np.array([1])).tolist() == [0.5]


def test_only_classes_that_reach_their_threshold_are_confident() -> None:
    answers = np.array([[0.6, 0.4], [0.5, 0.5], [0.2, 0.8]])
    assert find_confident(answers, np.array([0.55, 0.7])).tolist() == [0, -1, 1]


def test_images_that_differ_by_a_grey_level_are_twins_and_others_are_not() -> None:
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 12, (6, 16, 17, 1)).astype(np.uint8) * 20
    x = coarse.repeat(2, axis=1).repeat(2, axis=2)
    lighter = x[2:3] + np.uint8(1)
    prints = {0: print_images(x[:3]), 1: print_images(np.concatenate([lighter, x[3:]]))}
    (found,) = find_duplicates(prints)
    assert found[:4] == (0, 2, 1, 0)
