from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from rayfl.errors import DataError
from rayfl.estimate import DawidSkene, weigh_by_reliability
from rayfl.estimate.dawid_skene import (
    Maximisation,
    encode_votes,
    estimate_confusions,
    find_dominant,
    infer_truth,
    measure_realignment,
)

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def votes_of(rows: str) -> Ints:
    return np.array([[int(digit) for digit in row] for row in rows.split()], dtype=np.int64)


THREE = votes_of("000 001 001 111 110 100")
FOUR = votes_of("0001 0022 1110 1101 2220 2021 2212 0100 1112")


def naive_em(votes: Ints, classes: int, iterations: int) -> tuple[Floats, Floats]:
    """The model's equations as loops and products: posterior and reliability after some
    iterations."""
    items, annotators = votes.shape
    posterior = np.array([[(row == c).mean() + 1e-10 for c in range(classes)] for row in votes])
    posterior /= posterior.sum(axis=1, keepdims=True)
    for step in range(iterations + 1):
        confusion = np.array(
            [
                [
                    [
                        posterior[votes[:, j] == k, c].sum() / posterior[:, c].sum()
                        for k in range(classes)
                    ]
                    for c in range(classes)
                ]
                for j in range(annotators)
            ]
        )
        prior = posterior.mean(axis=0)
        if step < iterations:
            for i in range(items):
                for c in range(classes):
                    posterior[i, c] = prior[c] * np.prod(
                        [confusion[j, c, votes[i, j]] for j in range(annotators)]
                    )
                posterior[i] /= posterior[i].sum()
    return posterior, np.array([confusion[j].trace() / classes for j in range(annotators)])


def test_first_m_step_from_soft_votes() -> None:
    model = DawidSkene(iterations=0).fit(THREE)
    assert model.posterior_[:, 0] == pytest.approx([1, 2 / 3, 2 / 3, 0, 1 / 3, 2 / 3], abs=1e-9)
    assert model.reliability_ == pytest.approx([0.725, 0.7625, 0.6125], abs=5e-7)
    assert model.prior_ == pytest.approx([0.555556, 0.444444], abs=5e-7)
    printed = [
        [[0.7, 0.3], [0.25, 0.75]],
        [[0.9, 0.1], [0.375, 0.625]],
        [[0.6, 0.4], [0.375, 0.625]],
    ]
    np.testing.assert_allclose(model.confusion_, printed, atol=5e-7)
    assert (model.n_iter_, model.converged_, model.deltas_.size) == (0, False, 0)


@pytest.mark.parametrize(
    ("iterations", "use_prior", "expected"),
    [
        (1, True, (0.806047, 0.834904, 0.494334)),
        (2, True, (0.888938, 0.879882, 0.430054)),
        (3, True, (0.927265, 0.886689, 0.406815)),
        (5, True, (0.958773, 0.865762, 0.376925)),
        (1, False, (0.802500, 0.822589, 0.491836)),
        (2, False, (0.890785, 0.856715, 0.416749)),
        (3, False, (0.942983, 0.858995, 0.380470)),
        (5, False, (0.983681, 0.843321, 0.348602)),
    ],
)
def test_reliability_after_exactly_k_iterations(
    iterations: int, use_prior: bool, expected: tuple[float, float, float]
) -> None:
    model = DawidSkene(iterations=iterations, tol=0, use_prior=use_prior).fit(THREE)
    assert model.reliability_ == pytest.approx(expected, abs=6e-7)
    assert model.n_iter_ == iterations


def test_first_e_step_and_likelihoods() -> None:
    one, two = (DawidSkene(iterations=k, tol=0).fit(THREE) for k in (1, 2))
    assert one.posterior_[:, 0] == pytest.approx(
        [0.930748, 0.843162, 0.843162, 0.048706, 0.113475, 0.657534], abs=6e-7
    )
    assert two.log_likelihoods_ == pytest.approx([-11.486287, -10.754359], abs=6e-7)
    assert one.log_likelihood_ == two.log_likelihoods_[1]


@pytest.mark.parametrize(("use_prior", "stops_at"), [(True, 21), (False, 19)])
def test_stops_when_posteriors_settle(use_prior: bool, stops_at: int) -> None:
    model = DawidSkene(use_prior=use_prior).fit(THREE)
    assert (model.n_iter_, model.converged_) == (stops_at, True)
    assert model.deltas_[-1] < 1e-5 <= model.deltas_[-2]


def test_converged_reliability_and_weights() -> None:
    model = DawidSkene().fit(THREE)
    assert model.reliability_ == pytest.approx([0.999998, 0.833334, 0.333335], abs=6e-7)
    assert weigh_by_reliability(model.reliability_) == pytest.approx(
        [0.461537, 0.384616, 0.153847], abs=6e-7
    )


def test_hard_start_is_another_fixed_point() -> None:
    model = DawidSkene(init="hard").fit(THREE)
    assert model.reliability_.tolist() == [0.875, 1.0, 0.5]
    assert model.prior_ == pytest.approx([2 / 3, 1 / 3])
    assert (model.n_iter_, model.deltas_.tolist()) == (1, [0.0])
    soft = DawidSkene().fit(THREE).reliability_
    assert soft[0] > soft[1]
    assert model.reliability_[0] < model.reliability_[1]


def test_three_classes_four_clients() -> None:
    start, one, end = (DawidSkene(iterations=k).fit(FOUR) for k in (0, 1, 500))
    assert start.reliability_ == pytest.approx([0.695416, 0.604895, 0.586053, 0.448912], abs=6e-7)
    assert one.reliability_ == pytest.approx([0.847811, 0.730608, 0.677770, 0.361190], abs=6e-7)
    assert one.log_likelihoods_[0] == pytest.approx(-33.515599, abs=6e-7)
    assert end.reliability_ == pytest.approx([1, 0.777777, 0.666667, 0.333334], abs=1.1e-6)
    assert end.log_likelihoods_[-1] == pytest.approx(-29.322740, abs=6e-7)
    assert end.n_iter_ == 19
    assert end.posterior_.argmax(axis=1).tolist() == [0, 0, 1, 1, 2, 2, 2, 0, 1]


@pytest.mark.parametrize("iterations", [1, 2, 7])
def test_equals_the_equations_written_as_loops(iterations: int) -> None:
    model = DawidSkene(iterations=iterations, tol=0).fit(FOUR)
    posterior, reliability = naive_em(FOUR, 3, iterations)
    np.testing.assert_allclose(model.posterior_, posterior, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(model.reliability_, reliability, rtol=1e-9)


@pytest.mark.parametrize("iterations", [0, 1, 3, 10])
@pytest.mark.parametrize("votes", [THREE, FOUR], ids=["three", "four"])
def test_invariances(votes: Ints, iterations: int) -> None:
    model = DawidSkene(iterations=iterations, tol=0)
    plain = model.fit(votes).reliability_
    shuffled = np.random.default_rng(1).permutation(len(votes))
    annotators = np.arange(votes.shape[1])[::-1]
    np.testing.assert_allclose(model.fit(np.vstack([votes, votes])).reliability_, plain, rtol=1e-9)
    np.testing.assert_allclose(model.fit(votes[shuffled]).reliability_, plain, rtol=1e-9)
    np.testing.assert_allclose(
        model.fit(votes[:, annotators]).reliability_, plain[annotators], rtol=1e-9
    )


def test_naming_of_latent_classes_does_not_change_the_likelihood() -> None:
    model = DawidSkene(iterations=3).fit(FOUR)
    renamed = [2, 0, 1]
    other = infer_truth(encode_votes(FOUR, 3), model.confusion_[:, renamed], model.prior_[renamed])
    assert other.log_likelihood == pytest.approx(model.log_likelihood_, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    votes=arrays(
        np.int64, st.tuples(st.integers(1, 12), st.integers(1, 5)), elements=st.integers(-1, 3)
    ),
    use_prior=st.booleans(),
    init=st.sampled_from(["soft", "hard"]),
)
def test_likelihood_never_falls_and_everything_is_a_probability(
    votes: Ints, use_prior: bool, init: Literal["soft", "hard"]
) -> None:
    model = DawidSkene(iterations=30, tol=0, classes=4, use_prior=use_prior, init=init).fit(votes)
    assert (np.diff([*model.log_likelihoods_, model.log_likelihood_]) >= -1e-9).all()
    np.testing.assert_allclose(model.posterior_.sum(axis=1), 1.0)
    assert model.prior_.sum() == pytest.approx(1.0)
    rows = model.confusion_.sum(axis=2)
    assert (np.isclose(rows, 1.0) | (rows == 0.0)).all()


def test_uniform_posterior_is_a_fixed_point() -> None:
    onehot, uniform = encode_votes(FOUR, 3), np.full((9, 3), 1 / 3)
    parameters = estimate_confusions(onehot, uniform, 4)
    np.testing.assert_allclose([m.trace() / 3 for m in parameters.confusion], 1 / 3)
    np.testing.assert_allclose(
        infer_truth(onehot, parameters.confusion, parameters.prior).posterior, uniform
    )


@pytest.mark.parametrize("constant", [0, 1])
def test_constant_predictor_is_as_good_as_chance(constant: int) -> None:
    votes = np.column_stack([THREE, np.full(6, constant)])
    assert DawidSkene().fit(votes).reliability_[-1] == pytest.approx(0.5, abs=1e-12)


@pytest.mark.parametrize(
    ("use_prior", "prior", "ghost"),
    [(True, [0.5, 0.5, 0.0], 0.0), (False, [0.444444, 0.444444, 0.111111], 0.111111)],
)
def test_class_that_nobody_predicts(use_prior: bool, prior: list[float], ghost: float) -> None:
    votes = np.repeat([[0, 0, 0], [1, 1, 1]], 4, axis=0)
    model = DawidSkene(use_prior=use_prior, classes=3).fit(votes)
    assert model.reliability_ == pytest.approx(np.full(3, 0.666667), abs=6e-7)
    assert model.prior_ == pytest.approx(prior, abs=6e-7)
    assert model.posterior_[:, 2] == pytest.approx(np.full(8, ghost), abs=6e-7)


def test_two_hundred_small_factors_do_not_underflow() -> None:
    small = np.full((200, 2, 2), 0.01)
    step = infer_truth(
        encode_votes(np.zeros((1, 200), dtype=np.int64), 2), small, np.array([0.5, 0.5])
    )
    assert 0.01**200 == 0.0
    assert step.log_likelihood == pytest.approx(-921.034037, abs=6e-7)
    assert step.posterior.tolist() == [[0.5, 0.5]]


def synthetic(rates: Sequence[float], items: int = 5000, classes: int = 10) -> tuple[Ints, Ints]:
    """Truth and the votes of clients that err at the given rates, evenly over the other classes."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, classes, items)
    columns = [
        np.where(
            rng.random(items) < rate, (truth + rng.integers(1, classes, items)) % classes, truth
        )
        for rate in rates
    ]
    return truth, np.stack(columns, axis=1)


@pytest.mark.parametrize(("use_prior", "digits"), [(False, 6e-7), (True, 1.2e-5)])
def test_recovers_accuracies_and_beats_the_majority(use_prior: bool, digits: float) -> None:
    truth, votes = synthetic([(j + 1) / 10 for j in range(10)])
    model = DawidSkene(use_prior=use_prior).fit(votes)
    actual = [np.mean([(votes[truth == c, j] == c).mean() for c in range(10)]) for j in range(10)]
    assert np.abs(model.reliability_ - actual).max() <= 0.005
    assert model.reliability_[[0, 9]] == pytest.approx([0.8965, 0.0004], abs=6e-5)
    majority = np.stack([(votes == c).sum(axis=1) for c in range(10)], axis=1).argmax(axis=1)
    assert (majority == truth).mean() == pytest.approx(0.926, abs=5e-4)
    assert (model.posterior_.argmax(axis=1) == truth).mean() == pytest.approx(0.978, abs=5e-4)
    printed = [
        0.198037,
        0.179299,
        0.156733,
        0.132925,
        0.113016,
        0.087806,
        0.068392,
        0.043635,
        0.020073,
        0.000084,
    ]
    assert weigh_by_reliability(model.reliability_) == pytest.approx(printed, abs=digits)
    assert not model.misaligned_


def test_weighted_average_of_parameters() -> None:
    thetas = np.array([(1, 2), (0, 4), (6, -3)])
    assert weigh_by_reliability([0.9, 0.6, 0.3]) @ thetas == pytest.approx(
        [1.5, 1.833333], abs=6e-7
    )


@pytest.mark.parametrize("values", [[0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]])
def test_weights_are_equal_without_a_usable_sum(values: list[float]) -> None:
    assert weigh_by_reliability(values).tolist() == [0.5, 0.5]


def test_one_annotator_is_its_own_truth() -> None:
    model = DawidSkene(classes=4).fit([[0], [2], [2], [0]])
    assert model.reliability_ == pytest.approx([0.5])
    assert model.posterior_.argmax(axis=1).tolist() == [0, 2, 2, 0]


def test_no_items_say_nothing() -> None:
    model = DawidSkene(classes=3).fit(np.empty((0, 2), dtype=np.int64))
    assert model.reliability_.tolist() == [0.0, 0.0]
    assert weigh_by_reliability(model.reliability_).tolist() == [0.5, 0.5]
    assert model.posterior_.shape == (0, 3)


def test_missing_votes_leave_no_trace() -> None:
    silent = np.column_stack([THREE, np.full(6, -1)])
    with_silent, without = DawidSkene().fit(silent), DawidSkene().fit(THREE)
    np.testing.assert_allclose(with_silent.posterior_, without.posterior_, rtol=1e-12)
    assert with_silent.reliability_[3] == 0.0
    skipped = DawidSkene().fit(np.vstack([THREE, [[-1, -1, -1]]]))
    np.testing.assert_allclose(skipped.posterior_[-1], skipped.prior_, atol=1e-4)


def test_recovers_from_a_third_of_the_votes() -> None:
    truth, votes = synthetic([0.3] * 10)
    votes[np.random.default_rng(1).random(votes.shape) > 1 / 3] = -1
    model = DawidSkene().fit(votes)
    assert model.reliability_ == pytest.approx(np.full(10, 0.7), abs=0.03)
    assert (model.posterior_.argmax(axis=1) == truth).mean() > 0.8


def test_smoothing_is_added_to_counts() -> None:
    confusion = estimate_confusions(
        encode_votes(np.array([[0], [1]]), 2), np.eye(2), 1, smooth=1.0
    ).confusion
    np.testing.assert_allclose(confusion, [[[2 / 3, 1 / 3], [1 / 3, 2 / 3]]])


def test_predict_proba_repeats_the_fit_and_takes_missing_votes() -> None:
    model = DawidSkene().fit(THREE)
    np.testing.assert_allclose(model.predict_proba(THREE), model.posterior_, atol=1e-4)
    np.testing.assert_allclose(model.predict_proba([[-1, -1, -1]])[0], model.prior_)


def test_impossible_item_is_uniform() -> None:
    certain = Maximisation(np.array([np.eye(2), np.eye(2)]), np.array([0.5, 0.5]))
    step = infer_truth(encode_votes(np.array([[0, 1]]), 2), certain.confusion, certain.prior)
    assert step.posterior.tolist() == [[0.5, 0.5]]
    assert step.log_likelihood == -np.inf


def test_diagnostics() -> None:
    good, swapped = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[0.1, 0.9], [0.7, 0.3]])
    assert find_dominant(np.array([good, swapped])).tolist() == [True, False]
    assert measure_realignment(np.array([good, good])) == 0.0
    assert measure_realignment(np.array([good, swapped, swapped])) == pytest.approx(2 * 1.2 - 1.4)
    model = DawidSkene().fit(np.column_stack([THREE[:, 0], 1 - THREE[:, 0], THREE[:, 0]]))
    assert model.dominant_share_ == pytest.approx(2 / 3)
    assert not model.misaligned_


@pytest.mark.parametrize(
    ("votes", "classes", "message"),
    [
        ([[0, 3]], 3, r"a vote lies in \[0, 3\) or is -1; got 3"),
        ([[0, -2]], None, r"or is -1; got -2"),
        ([[0.5, 1.0]], None, "array of integers, -1 for missing; got float64"),
        ([0, 1], None, r"\(items, annotators\) array"),
        ([[-1, -1]], None, "the number of classes is unknown"),
    ],
)
def test_refuses_what_are_not_votes(votes: object, classes: int | None, message: str) -> None:
    with pytest.raises(DataError, match=message):
        DawidSkene(classes=classes).fit(np.array(votes))


def test_refuses_to_predict_unfitted_or_for_others() -> None:
    with pytest.raises(DataError, match="needs a fitted model"):
        DawidSkene().predict_proba(THREE)
    with pytest.raises(DataError, match=r"one column an annotator \(3\); got 4"):
        DawidSkene(classes=3).fit(THREE).predict_proba(FOUR)


@pytest.mark.parametrize(
    "setting", [{"iterations": -1}, {"tol": -1.0}, {"init": "random"}, {"smooth": -0.1}, {"x": 1}]
)
def test_refuses_settings(setting: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(setting))):
        TypeAdapter(DawidSkene).validate_python(setting)


def test_a_fit_survives_pickling_and_is_no_setting() -> None:
    model = DawidSkene(iterations=3).fit(THREE)
    again = pickle.loads(pickle.dumps(model))
    assert again.reliability_.tolist() == model.reliability_.tolist()
    assert again == DawidSkene(iterations=3)
    assert set(TypeAdapter(DawidSkene).dump_python(model)) == {
        "iterations", "tol", "init", "use_prior", "smooth", "classes",
    }  # fmt: skip


def test_many_annotators_of_many_items() -> None:
    truth, votes = synthetic([0.5] * 100, items=10_000)
    model = DawidSkene(iterations=25, tol=0).fit(votes)
    assert model.n_iter_ == 25
    assert (model.posterior_.argmax(axis=1) == truth).mean() > 0.999
