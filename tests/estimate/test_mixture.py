from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from rayfl.errors import DataError
from rayfl.estimate import LossMixture, LossSplit, mixture
from rayfl.estimate.mixture import ClientSegments, Gaussians, infer_clean, split_by_means

Floats = NDArray[np.float64]

EIGHT = [0.02, 0.05, 0.10, 0.07, 0.04, 1.8, 2.0, 2.2]
TEN = [0.1, 0.2, 0.3, 0.5, 0.9, 1.0, 1.4, 1.6, 2.2, 2.5]


def ragged(clients: int, seed: int = 0, largest: int = 400) -> list[Floats]:
    """Losses of clients of unequal size, some clean and some not."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, largest, clients)
    return [
        np.concatenate([rng.gamma(1, 0.2, n), rng.gamma(6, 0.4, rng.integers(0, n + 1))])
        for n in sizes
    ]


def same_bits(one: LossSplit, other: LossSplit) -> bool:
    arrays = all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("clean", "weights", "means", "variances")
    )
    return arrays and (one.n_iter, one.converged, one.separated) == (
        other.n_iter,
        other.converged,
        other.separated,
    )


def test_two_clear_groups() -> None:
    split = LossMixture().fit(EIGHT)
    assert split.weights == pytest.approx([0.625, 0.375], abs=6e-7)
    assert split.means == pytest.approx([0.016514, 0.908257], abs=6e-7)
    assert split.variances == pytest.approx([0.000657, 0.006111], abs=6e-7)
    assert split.clean == pytest.approx([1, 1, 1, 1, 1, 0, 0, 0], abs=6e-7)
    assert split.separated
    assert split.converged


def test_loose_tolerance_is_part_of_the_method() -> None:
    split = LossMixture().fit(TEN)
    assert split.weights == pytest.approx([0.583846, 0.416154], abs=6e-7)
    assert split.means == pytest.approx([0.167121, 0.736732], abs=6e-7)
    assert split.variances == pytest.approx([0.023398, 0.044311], abs=6e-7)
    printed = [
        0.997945,
        0.996899,
        0.995157,
        0.986937,
        0.870315,
        0.770462,
        0.128918,
        0.024569,
        0.000054,
        0.000002,
    ]
    assert split.clean == pytest.approx(printed, abs=6e-7)
    assert (split.clean > 0.5).sum() == 6


def test_fully_converged_is_another_answer() -> None:
    split = LossMixture(tol=1e-12, max_iter=1000).fit(TEN)
    assert split.means == pytest.approx([0.065594, 0.582211], abs=6e-7)
    assert split.clean[:5] == pytest.approx(
        [0.926707, 0.937567, 0.920914, 0.660820, 0.000327], abs=6e-7
    )
    assert (split.clean > 0.5).sum() == 4
    assert split.n_iter == 71


def test_unscaled_scores_of_clients() -> None:
    split = LossMixture(normalise=False, reg_covar=1e-6, tol=1e-3).fit(
        [0.10, 0.20, 0.15, 0.90, 1.00]
    )
    assert split.means == pytest.approx([0.15, 0.95], abs=6e-7)
    assert split.variances == pytest.approx([0.001668, 0.002501], abs=6e-7)
    assert split.weights == pytest.approx([0.6, 0.4], abs=6e-7)
    assert (split.clean < 0.5).tolist() == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("variances", "points", "expected"),
    [
        ((0.01, 0.04), (0.1, 0.3, 0.4, 0.7), (0.996311, 0.750000, 0.093097, 0.000000)),
        ((0.001, 0.2), (0.0, 0.1, 0.2), (0.327310, 0.981195, 0.210756)),
    ],
    ids=["monotone", "narrow clean component"],
)
def test_posterior_of_fixed_parameters(
    variances: tuple[float, float], points: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    state = Gaussians(np.array([[0.6, 0.4]]), np.array([[0.1, 0.7]]), np.array([variances]))
    clean, _ = infer_clean(np.array(points), state, ClientSegments.of(np.array([len(points)])))
    assert clean == pytest.approx(expected, abs=6e-7)


@pytest.mark.parametrize("losses", [EIGHT, TEN], ids=["eight", "ten"])
def test_agrees_with_scikit_learn_as_it_comes(losses: list[float]) -> None:
    from sklearn.mixture import GaussianMixture

    scaled = ((np.array(losses) - min(losses)) / (max(losses) - min(losses)))[:, None]
    theirs = GaussianMixture(2, reg_covar=5e-4, tol=1e-2, max_iter=100, random_state=0).fit(scaled)
    posterior = theirs.predict_proba(scaled)[:, theirs.means_.argmin()]
    np.testing.assert_allclose(LossMixture().fit(losses).clean, posterior, atol=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("tol", [1e-2, 1e-5])
def test_agrees_with_scikit_learn_from_the_same_start(seed: int, tol: float) -> None:
    from sklearn.mixture import GaussianMixture

    losses = ragged(1, seed, largest=300)[0]
    scaled = (losses - losses.min()) / (losses.max() - losses.min())
    lower = split_by_means(scaled, ClientSegments.of(np.array([scaled.size]))) == 1
    parts = (scaled[lower], scaled[~lower])
    theirs = GaussianMixture(
        2, reg_covar=5e-4, tol=tol, max_iter=300,
        weights_init=[part.size / scaled.size for part in parts],
        means_init=[[part.mean()] for part in parts],
        precisions_init=[[[1 / (part.var() + 5e-4)]] for part in parts],
    ).fit(scaled[:, None])  # fmt: skip
    ours = LossMixture(tol=tol, max_iter=300).fit(losses)
    posterior = theirs.predict_proba(scaled[:, None])[:, theirs.means_.argmin()]
    np.testing.assert_allclose(ours.clean, posterior, atol=1e-7)
    assert ours.n_iter == theirs.n_iter_


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("tol", [1e-2, 1e-6])
def test_a_batch_equals_its_members_bit_for_bit(normalise: bool, tol: float) -> None:
    clients = [*ragged(40), np.array([0.3]), np.array([0.7, 0.7]), np.array([])]
    mixture = LossMixture(normalise=normalise, tol=tol)
    together = mixture.fit_many(clients)
    assert all(
        same_bits(split, mixture.fit(losses))
        for split, losses in zip(together, clients, strict=True)
    )
    backwards = mixture.fit_many(clients[::-1])[::-1]
    assert all(same_bits(one, other) for one, other in zip(together, backwards, strict=True))


@pytest.mark.parametrize("losses", [[], [0.4], [0.7, 0.7, 0.7]], ids=["none", "one", "equal"])
def test_nothing_to_separate_is_all_clean(losses: list[float]) -> None:
    split = LossMixture().fit(losses)
    assert split.clean.tolist() == [1.0] * len(losses)
    assert (split.separated, split.n_iter) == (False, 0)


def test_means_that_coincide_are_reported() -> None:
    # A variance floor far above the spread of the losses leaves nothing to tell the components
    # apart.
    split = LossMixture(reg_covar=100.0).fit(TEN)
    assert split.means[1] - split.means[0] < 1e-3
    assert not split.separated
    assert np.isfinite(split.clean).all()


def test_two_losses_are_one_clean_one_noisy() -> None:
    assert (LossMixture().fit([2.0, 0.1]).clean > 0.5).tolist() == [False, True]


@settings(max_examples=60, deadline=None)
@given(
    losses=st.lists(st.floats(0, 100), min_size=2, max_size=40),
    scale=st.sampled_from([0.5, 4.0, 1024.0]),
    normalise=st.booleans(),
)
def test_posteriors_are_probabilities_and_ignore_the_unit(
    losses: list[float], scale: float, normalise: bool
) -> None:
    mixture = LossMixture(normalise=normalise)
    split = mixture.fit(losses)
    assert ((split.clean >= 0) & (split.clean <= 1)).all()
    assert split.means[0] <= split.means[1]
    assert split.weights.sum() == pytest.approx(1.0)
    if normalise and min(losses) < max(losses) and max(losses) > 1e-290:
        assert same_bits(mixture.fit(np.array(losses) * scale), split)


def test_two_means_finds_the_gap_and_stops() -> None:
    values = np.array([0.0, 0.1, 0.2, 0.9, 1.0, 5.0, 5.1, 9.0])
    groups = ClientSegments.of(np.array([5, 3]))
    assert split_by_means(values, groups).tolist() == [1, 1, 1, 0, 0, 1, 1, 0]


@pytest.mark.parametrize(
    ("losses", "message"),
    [
        ([0.1, np.nan], r"losses are finite; got nan \(client 0\)"),
        ([0.1, np.inf], "losses are finite; got inf"),
        ([[0.1, 0.2]], "one-dimensional"),
    ],
)
def test_refuses_what_are_not_losses(losses: list[float], message: str) -> None:
    with pytest.raises(DataError, match=message):
        LossMixture().fit(losses)


@pytest.mark.parametrize(
    "setting", [{"reg_covar": 0.0}, {"tol": -1.0}, {"max_iter": 0}, {"components": 3}]
)
def test_refuses_settings(setting: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(setting))):
        TypeAdapter(LossMixture).validate_python(setting)


def test_many_clients_share_their_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = ragged(200)
    alone = max(LossMixture().fit(losses).n_iter for losses in clients)
    calls = []

    def counted(*inputs: Any) -> tuple[Floats, Floats]:
        calls.append(len(inputs[0]))
        return infer_clean(*inputs)

    monkeypatch.setattr(mixture, "infer_clean", counted)
    LossMixture().fit_many(clients)
    # One step for all of them at a time, and a last one.
    assert len(calls) == alone + 1
    assert calls[0] == sum(map(len, clients)) >= calls[-2]
