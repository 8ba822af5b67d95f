"""Gaussian mixtures in several dimensions, fitted by expectation maximisation (A. P. Dempster, N.
M. Laird and D. B. Rubin, Journal of the Royal Statistical Society B 39, 1977).

With points x_i, components c of weight pi_c, mean mu_c and covariance S_c:

    E:  r_ic = pi_c N(x_i; mu_c, S_c) / sum_k pi_k N(x_i; mu_k, S_k)
    M:  pi_c = mean_i r_ic;   mu_c = sum_i r_ic x_i / sum_i r_ic;
        S_c = sum_i r_ic (x_i - mu_c) (x_i - mu_c)^T / sum_i r_ic + reg_covar I

The steps are those of scikit-learn's `GaussianMixture`; what is random is the start of k-means
alone, drawn from the generator that is given. For losses of many clients in one dimension there is
`LossMixture`, which draws nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Floats, Ints
from rayfl.component import Count, NonNegative, Positive, component
from rayfl.errors import DataError, broken
from rayfl.estimate.clustering import k_means

LOG_2PI = float(np.log(2.0 * np.pi))
LEAST_MASS = 10.0 * float(np.finfo(np.float64).eps)
"""What is left of a component that died, so that its mean can be formed."""


class Components(NamedTuple):
    """Weights (k,), means (k, d) and covariances: (k, d, d) if full, (k, d) if diagonal."""

    weights: Floats
    means: Floats
    covariances: Floats


@dataclass(frozen=True)
class MixtureFit:
    """A fitted mixture; its components are numbered by the sum of their mean, smallest first.

    Attributes
    ----------
    responsibilities
        r, (n, k): how likely each point belongs to each component.
    weights, means, covariances
        pi (k,), mu (k, d), S (k, d, d) or, where diagonal, (k, d).
    log_likelihood
        Of these parameters, as a mean over the points.
    n_iter
        Steps that EM took.
    converged
        Whether the log-likelihood had come to rest.
    """

    responsibilities: Floats
    weights: Floats
    means: Floats
    covariances: Floats
    log_likelihood: float
    n_iter: int
    converged: bool

    @property
    def labels(self) -> Ints:
        """The likeliest component of every point, (n,)."""
        return np.asarray(self.responsibilities.argmax(axis=1), dtype=np.int64)


@component
class GaussianMixture:
    """A mixture of Gaussians in d dimensions.

    >>> points = [[0.0, 0.1], [0.1, 0.0], [0.0, 0.0], [2.0, 2.1], [2.1, 2.0]]
    >>> fit = GaussianMixture().fit(points, np.random.default_rng(0))
    >>> fit.labels.tolist(), fit.means.round(3).tolist()
    ([0, 0, 0, 1, 1], [[0.033, 0.033], [2.05, 2.05]])
    """

    components: Count = 2
    """k, how many Gaussians."""
    covariance: Literal["full", "diag"] = "full"
    """Whether dimensions may vary together."""
    reg_covar: Positive = 1e-6
    """Added to the diagonal of every covariance, so that it has an inverse."""
    tol: NonNegative = 1e-3
    """EM stops when the mean log-likelihood changes by less."""
    max_iter: Count = 100
    """Most steps of EM."""
    fits: Count = 1
    """How many starts are drawn; the fit of the highest likelihood counts, of equals the first."""

    def fit(self, points: ArrayLike, rng: np.random.Generator) -> MixtureFit:
        """The mixture of these points.

        Parameters
        ----------
        points
            (n, d), finite, at least as many as components.
        rng
            What the starts of k-means are drawn from.
        """
        rows = np.asarray(points, dtype=np.float64)
        if rows.ndim != 2 or len(rows) < self.components or not np.isfinite(rows).all():
            rule = f"a mixture takes at least {self.components} finite points (n, d)"
            raise DataError(broken(rule, f"shape {rows.shape}"))
        found = [self._fit_once(rows, rng) for _ in range(self.fits)]
        return max(found, key=lambda fit: fit.log_likelihood)

    def _fit_once(self, points: Floats, rng: np.random.Generator) -> MixtureFit:
        groups = k_means(
            points,
            self.components,
            rng,
            restarts=1,
        )
        state = self._maximise(points, np.eye(self.components)[groups])
        previous = -np.inf
        n_iter = 0
        converged = False
        while not converged and n_iter < self.max_iter:
            responsibilities, bound = _infer_shares(points, state)
            state = self._maximise(points, responsibilities)
            converged = abs(bound - previous) < self.tol
            previous = bound
            n_iter += 1
        # k-means numbers its groups by chance; a component's place should have a meaning.
        order = np.argsort(state.means.sum(axis=1), kind="stable")
        state = Components(*(part[order] for part in state))
        # A last step gives what belongs to the parameters that are returned.
        responsibilities, bound = _infer_shares(points, state)
        return MixtureFit(
            responsibilities,
            *state,
            bound,
            n_iter,
            converged,
        )

    def _maximise(self, points: Floats, responsibilities: Floats) -> Components:
        """The M-step."""
        mass = responsibilities.sum(axis=0) + LEAST_MASS
        means = responsibilities.T @ points / mass[:, None]
        weights = mass / mass.sum()
        spreads = [
            self._spread(points - mean, share, total)
            for mean, share, total in zip(
                means,
                responsibilities.T,
                mass,
                strict=True,
            )
        ]
        return Components(weights, means, np.stack(spreads))

    def _spread(self, centred: Floats, share: Floats, mass: float) -> Floats:
        """One component's covariance, or its diagonal."""
        if self.covariance == "diag":
            return np.asarray(share @ centred**2 / mass + self.reg_covar)
        scatter = (share[:, None] * centred).T @ centred / mass
        return np.asarray(scatter + self.reg_covar * np.eye(len(scatter)))


def _infer_shares(points: Floats, state: Components) -> tuple[Floats, float]:
    """The E-step: responsibilities, and the mean log-likelihood."""
    logs = [
        np.log(weight) + _log_density(points - mean, covariance)
        for weight, mean, covariance in zip(*state, strict=True)
    ]
    joint = np.stack(logs, axis=1)
    top = joint.max(axis=1, keepdims=True)
    powers = np.exp(joint - top)
    total = powers.sum(axis=1, keepdims=True)
    return powers / total, float((top + np.log(total)).mean())


def _log_density(centred: Floats, covariance: Floats) -> Floats:
    """log N of points whose distances from the mean these are."""
    dimension = centred.shape[1]
    if covariance.ndim == 1:
        distance = (centred**2 / covariance).sum(axis=1)
        log_det = np.log(covariance).sum()
    else:
        # By Cholesky: with more dimensions than points a determinant itself would underflow.
        root = np.linalg.cholesky(covariance)
        distance = (np.linalg.solve(root, centred.T) ** 2).sum(axis=0)
        log_det = 2.0 * np.log(np.diagonal(root)).sum()
    return np.asarray(-0.5 * (dimension * LOG_2PI + log_det + distance))
