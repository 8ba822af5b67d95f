"""Mixtures in several dimensions, against scikit-learn from the same start."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError

from rayfl.errors import DataError
from rayfl.estimate import GaussianMixture, LossMixture, MixtureFit, k_means

Floats = NDArray[np.float64]
Kind = Literal["full", "diag"]


def clouds(n: int = 90, dimension: int = 3, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    skew = rng.normal(size=(dimension, dimension))
    far = rng.normal(size=(n // 3, dimension)) @ skew + 2.0
    return np.concatenate([rng.normal(size=(n - n // 3, dimension)), far])


def scikit(points: Floats, components: int, kind: Kind, seed: int) -> tuple[Floats, ...]:
    """Weights, means, covariances and likelihood of scikit-learn's EM from our start."""
    from sklearn.mixture import GaussianMixture as Theirs

    groups = k_means(points, components, np.random.default_rng(seed), restarts=1)
    start = GaussianMixture(components=components, covariance=kind)
    state = start._maximise(points, np.eye(components)[groups])
    precisions = 1 / state.covariances if kind == "diag" else np.linalg.inv(state.covariances)
    theirs = Theirs(
        components,
        covariance_type=kind,
        weights_init=state.weights,
        means_init=state.means,
        precisions_init=precisions,
    ).fit(points)
    order = np.argsort(theirs.means_.sum(axis=1))
    found = (theirs.weights_, theirs.means_, theirs.covariances_)
    likelihood = np.array(theirs.score(points))
    return *(part[order] for part in found), likelihood, theirs.predict_proba(points)[:, order]


@pytest.mark.parametrize("kind", ["full", "diag"])
@pytest.mark.parametrize(("components", "seed"), [(2, 0), (2, 5), (3, 1)])
def test_the_fit_is_scikit_learns(kind: Kind, components: int, seed: int) -> None:
    points = clouds()
    mixture = GaussianMixture(components=components, covariance=kind)
    fit = mixture.fit(points, np.random.default_rng(seed))
    weights, means, covariances, likelihood, shares = scikit(points, components, kind, seed)
    np.testing.assert_allclose(fit.weights, weights, rtol=1e-8)
    np.testing.assert_allclose(fit.means, means, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(fit.covariances, covariances, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(fit.responsibilities, shares, atol=1e-8)
    assert fit.log_likelihood == pytest.approx(float(likelihood), rel=1e-9)
    assert fit.converged


def test_in_one_dimension_it_is_the_mixture_of_losses() -> None:
    losses = [0.10, 0.20, 0.15, 0.90, 1.00]
    fit = GaussianMixture().fit(np.array(losses)[:, None], np.random.default_rng(0))
    split = LossMixture(reg_covar=1e-6, tol=1e-3, normalise=False).fit(losses)
    np.testing.assert_allclose(fit.means[:, 0], split.means, rtol=1e-6)
    np.testing.assert_allclose(fit.covariances[:, 0, 0], split.variances, rtol=1e-4)
    np.testing.assert_allclose(fit.responsibilities[:, 0], split.clean, atol=1e-6)
    assert fit.means[:, 0] == pytest.approx([0.15, 0.95], abs=1e-6)
    assert fit.weights == pytest.approx([0.6, 0.4], abs=1e-6)
    assert fit.labels.tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(9))
def test_components_are_numbered_by_their_sum(seed: int) -> None:
    points = np.concatenate([np.full((5, 2), 3.0), np.full((5, 2), 1.0)])
    points += np.random.default_rng(0).normal(scale=0.1, size=points.shape)
    fit = GaussianMixture().fit(points, np.random.default_rng(seed))
    assert fit.labels.tolist() == [1] * 5 + [0] * 5


def test_more_dimensions_than_points() -> None:
    rng = np.random.default_rng(0)
    points = np.concatenate([rng.uniform(0, 0.3, (12, 40)), rng.uniform(0.6, 1, (8, 40))])
    fit = GaussianMixture().fit(points, rng)
    assert fit.labels.tolist() == [0] * 12 + [1] * 8
    assert np.isfinite(fit.log_likelihood)


def test_equal_generators_give_equal_fits() -> None:
    points = clouds()
    one, other = (GaussianMixture().fit(points, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(one.responsibilities, other.responsibilities)
    assert one.log_likelihood == other.log_likelihood


def test_the_likeliest_of_several_fits_counts() -> None:
    points = clouds(60, 2, seed=3)
    rng = np.random.default_rng(0)
    alone: list[MixtureFit] = [GaussianMixture(components=4).fit(points, rng) for _ in range(6)]
    best = GaussianMixture(components=4, fits=6).fit(points, np.random.default_rng(0))
    likelihoods = [fit.log_likelihood for fit in alone]
    assert len(set(np.round(likelihoods, 6))) > 1
    assert best.log_likelihood == max(likelihoods)


def test_equal_points_stay_finite() -> None:
    fit = GaussianMixture().fit(np.ones((6, 3)), np.random.default_rng(0))
    assert np.isfinite(fit.responsibilities).all()
    assert np.isfinite(fit.log_likelihood)


def test_a_single_component_holds_everything() -> None:
    points = clouds()
    fit = GaussianMixture(components=1).fit(points, np.random.default_rng(0))
    np.testing.assert_allclose(fit.means[0], points.mean(axis=0))
    np.testing.assert_allclose(fit.covariances[0], np.cov(points.T, bias=True) + 1e-6 * np.eye(3))


@pytest.mark.parametrize("points", [[[1.0, 2.0]], [1.0, 2.0], [[1.0], [np.nan]]])
def test_points_that_make_no_mixture_are_refused(points: list[float]) -> None:
    with pytest.raises(DataError, match=r"takes at least 2 finite points \(n, d\); got shape"):
        GaussianMixture().fit(points, np.random.default_rng(0))


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="reg_covar"):
        GaussianMixture(reg_covar=0)
