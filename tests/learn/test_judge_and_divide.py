"""What a model makes of a client's samples: judged, divided, relabelled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from rayfl.errors import DataError, RayflError
from rayfl.estimate import LossMixture
from rayfl.learn.augment.base import Unchanged
from rayfl.learn.augment.crop import CropFlip
from rayfl.learn.divide import divide, keep_some
from rayfl.learn.judge import judge
from rayfl.learn.relabel import relabel, relabel_confident
from tests.learn.kit import build_normed, first_weights, make_client, make_learner

# -- judge -----------------------------------------------------------------------------------------


def test_a_model_is_asked_about_every_sample() -> None:
    client = make_client(37)
    w = first_weights(client.learner)
    found = judge(client, w)
    net = client.learner.resident(w).net.eval()
    with torch.no_grad():
        logits = net(client.learner.normalise(client.learner.pixels(client.x)))
    np.testing.assert_allclose(found.logits, logits.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.probabilities, logits.softmax(1).numpy(), rtol=1e-5)
    losses = F.cross_entropy(logits, torch.from_numpy(client.y), reduction="none")
    np.testing.assert_allclose(found.losses, losses.numpy(), rtol=1e-5, atol=1e-6)
    assert np.array_equal(found.predicted, logits.argmax(1).numpy())
    assert np.array_equal(found.confidence, found.probabilities.max(axis=1))
    assert found.accuracy == pytest.approx((found.predicted == client.y).mean())
    assert found.probabilities.dtype == found.losses.dtype == np.float64


def test_asking_is_counted_and_draws_nothing() -> None:
    client = make_client(37)
    before = client.rng.bit_generator.state
    client.learner.passes.take()
    judge(client, first_weights(client.learner))
    assert client.learner.passes.take() == (37, 0)
    assert client.rng.bit_generator.state == before


def test_relabelled_clients_are_judged_by_what_they_believe() -> None:
    client = make_client(20)
    w = first_weights(client.learner)
    believed = judge(client, w).predicted
    client.state = {"y": believed}
    assert judge(client, w).accuracy == 1


def test_without_labels_there_are_guesses_but_no_losses() -> None:
    client = make_client(20, labels=False)
    found = judge(client, first_weights(client.learner))
    assert found.predicted.shape == found.confidence.shape == (20,)
    assert np.isnan(found.accuracy)
    with pytest.raises(RayflError, match="losses of samples need labels; got samples whose"):
        _ = found.losses


def test_a_model_that_overflows_is_judged_without_a_warning() -> None:
    client = make_client(20)
    w = np.full_like(first_weights(client.learner), np.inf)
    found = judge(client, w)
    assert not np.isfinite(found.losses).any()
    assert not np.isfinite(found.probabilities).any()


def test_a_view_is_drawn_from_the_clients_stream() -> None:
    w = first_weights(make_learner())
    crop = CropFlip(padding=1)
    plain, one, again = (judge(make_client(37), w, view).logits for view in (None, crop, crop))
    other = judge(make_client(37, seed=1), w, crop).logits
    assert np.array_equal(one, again)
    assert not np.array_equal(one, plain)
    assert not np.array_equal(one, other)
    unchanged = judge(make_client(37), w, Unchanged()).logits
    assert np.array_equal(unchanged, plain)


def test_a_second_network_leaves_the_first_alone() -> None:
    client = make_client(20, make_learner(build_normed))
    first, second = (first_weights(client.learner, i) for i in (0, 1))
    resident = client.learner.resident(first)
    judge(client, second, name="second")
    assert np.array_equal(resident.dump(), first)


def test_nobody_has_nothing_to_judge() -> None:
    client = make_client(5).on(np.zeros((0, 4, 4, 1), np.uint8))
    for view in (None, Unchanged()):
        found = judge(client, first_weights(client.learner), view)
        assert len(found.predicted) == len(found.confidence) == 0


# -- divide ----------------------------------------------------------------------------------------


def test_small_losses_are_clean() -> None:
    losses = [0.02, 0.05, 0.10, 0.07, 0.04, 1.8, 2.0, 2.2]
    found = divide(losses)
    assert np.array_equal(found.clean, LossMixture().fit(losses).clean)
    assert found.kept.tolist() == [True] * 5 + [False] * 3
    assert (found.separated, found.inverted, found.usable) == (True, 0, True)


def test_the_threshold_is_on_the_probability() -> None:
    losses = np.random.default_rng(0).gamma(2, 0.5, 60)
    found = divide(losses, threshold=0.9)
    assert np.array_equal(found.kept, found.clean > 0.9)
    assert found.kept.sum() < divide(losses).kept.sum()


def test_the_mixture_can_be_another() -> None:
    strict = LossMixture(tol=1e-6, reg_covar=1e-6)
    losses = np.random.default_rng(0).gamma(2, 0.5, 60)
    assert np.array_equal(divide(losses, strict).clean, strict.fit(losses).clean)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_losses_that_are_not_finite_have_no_opinion(wrong: float) -> None:
    found = divide([0.1, wrong, 2.0])
    assert np.isnan(found.clean).all()
    assert found.kept.all()
    assert (found.usable, found.separated) == (False, True)


@pytest.mark.parametrize("losses", [[0.3, 0.3, 0.3], [0.7], []])
def test_equal_losses_are_all_kept(losses: list[float]) -> None:
    found = divide(losses)
    assert found.kept.all()
    assert len(found.kept) == len(losses)
    assert not found.separated


def test_a_mask_that_would_keep_nothing_keeps_everything() -> None:
    assert divide([0.1, 0.2, 2.0, 2.1], threshold=1.0).kept.all()
    assert keep_some(np.array([False, False])).tolist() == [True, True]
    assert keep_some(np.array([False, True])).tolist() == [False, True]


def test_tiny_losses_beside_a_narrow_component_are_counted() -> None:
    rng = np.random.default_rng(0)
    losses = np.concatenate([[0.0, 0.01], rng.normal(1.0, 0.02, 100), np.linspace(0.3, 3.0, 30)])
    narrow = divide(losses, LossMixture(reg_covar=1e-6, tol=1e-6))
    assert not narrow.kept[:2].any()
    assert narrow.inverted == (losses < losses[narrow.kept].min()).sum() >= 2
    assert divide(losses).inverted == 0


# -- relabel ---------------------------------------------------------------------------------------


def test_new_labels_become_an_entry_of_the_state() -> None:
    client = make_client(6)
    new = (client.y + 1) % 3
    state = relabel(client, new.astype(np.int32))
    assert list(state) == ["y"]
    assert state["y"].dtype == np.int64
    client.state = state
    assert np.array_equal(client.y, new)


@pytest.mark.parametrize("among", [[1, 4], np.array([False, True, False, False, True, False])])
def test_only_some_may_change(among: Any) -> None:
    client = make_client(6)
    new = relabel(client, (client.y + 1) % 3, among)["y"]
    assert np.flatnonzero(new != client.y).tolist() == [1, 4]


@pytest.mark.parametrize("among", [[], np.zeros(6, bool)])
def test_nobody_may_change(among: Any) -> None:
    client = make_client(6)
    assert np.array_equal(relabel(client, (client.y + 1) % 3, among)["y"], client.y)


def test_confident_answers_replace_labels() -> None:
    client = make_client(3)
    p = [[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.1, 0.8, 0.1]]
    changed = relabel_confident(client, p, 0.5)["y"]
    assert changed.tolist() == [client.y[0], 2, 1]
    assert relabel_confident(client, p, 0.5, among=[2])["y"].tolist() == [*client.y[:2], 1]


@pytest.mark.parametrize(
    ("labels", "rule"),
    [
        (np.zeros(5, int), r"integers, one for each of 6 samples; got int64 \(5,\) \(client 0\)"),
        (np.zeros(6), r"integers, one for each of 6 samples; got float64 \(6,\)"),
        (np.zeros((6, 3), int), r"one for each of 6 samples; got int64 \(6, 3\)"),
        (np.full(6, 3), r"new labels lie in \[0, 3\); got 3 \(client 0\)"),
        (np.full(6, -1), r"new labels lie in \[0, 3\); got -1"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels: NDArray[Any], rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        relabel(make_client(6), labels)


@pytest.mark.parametrize("among", [[6], [-1], np.zeros(5, bool), [0.5]])
def test_places_that_there_are_not_are_refused(among: Any) -> None:
    with pytest.raises(DataError, match="a mask of 6 flags, or positions below 6; got"):
        relabel(make_client(6), np.zeros(6, int), among)


def test_probabilities_of_others_are_refused() -> None:
    with pytest.raises(DataError, match=r"one row for each of 6 samples; got \(2, 3\)"):
        relabel_confident(make_client(6), np.ones((2, 3)), 0.5)
