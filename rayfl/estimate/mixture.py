"""Two Gaussians on per-sample losses: the samples of the component with the smaller mean are likely
clean.

E. Arazo et al., "Unsupervised label noise modeling and loss correction", ICML 2019; J. Li, R.
Socher and S. C. H. Hoi, "DivideMix", ICLR 2020; used on clients by S. Kim et al., "FedRN:
exploiting k-reliable neighbors towards robust federated learning", CIKM 2022, and by J. Xu et al.,
"FedCorr", CVPR 2022. Nothing here is random: EM starts from 2-means, and 2-means from the smallest
and the largest loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Bools, Floats, Ints
from rayfl.component import Count, NonNegative, Positive, component
from rayfl.errors import DataError, broken

CLOSE = 1e-3
"""Means closer than this, on losses scaled to [0, 1], do not count as two components."""
LOG_2PI = float(np.log(2.0 * np.pi))
TINY = 10.0 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class LossSplit:
    """A fitted mixture; component 0 has the smaller mean.

    Attributes
    ----------
    clean
        `clean[i]` is the posterior of component 0 for loss i.
    weights, means, variances
        Of the two components, (2,).
    n_iter
        Steps that EM took; 0 where there was nothing to fit.
    converged
        Whether the log-likelihood had come to rest.
    separated
        False where the losses hold no two groups: fewer than two of them, all equal (then
        everything is clean), or means that are practically equal.
    """

    clean: Floats
    weights: Floats
    means: Floats
    variances: Floats
    n_iter: int
    converged: bool
    separated: bool


@component
class LossMixture:
    """Two-component Gaussian mixture in one dimension, fitted by expectation maximisation.

    With losses l_i (scaled to [0, 1] by their minimum and maximum if `normalise`)::

        E:  g_0(i) = pi_0 N(l_i; mu_0, s_0) / sum_c pi_c N(l_i; mu_c, s_c)
        M:  pi_c = mean_i g_c(i);  mu_c = sum_i g_c(i) l_i / sum_i g_c(i);
            s_c = sum_i g_c(i) (l_i - mu_c)^2 / sum_i g_c(i) + reg_covar

    The first step is an M-step on the groups of 2-means; EM stops when the mean log-likelihood
    changes by less than `tol`; a last E-step gives the posteriors. These are the steps of
    scikit-learn's `GaussianMixture`, without its random start. The defaults are FedRN's; their
    loose tolerance is a part of that method.

    >>> split = LossMixture().fit([0.02, 0.05, 0.10, 0.07, 0.04, 1.8, 2.0, 2.2])
    >>> (split.clean > 0.5).tolist(), split.means.round(4).tolist()
    ([True, True, True, True, True, False, False, False], [0.0165, 0.9083])
    """

    reg_covar: Positive = 5e-4
    """Added to every variance."""
    tol: NonNegative = 1e-2
    """EM stops when the mean log-likelihood changes by less. scikit-learn: 1e-3."""
    max_iter: Count = 100
    """Most steps of EM."""
    normalise: bool = True
    """Whether losses are scaled to [0, 1] first."""

    def fit(self, losses: ArrayLike) -> LossSplit:
        """The mixture of one client's losses.

        Parameters
        ----------
        losses
            One a sample, (n,), finite.
        """
        return self.fit_many([losses])[0]

    def fit_many(self, clients: Sequence[ArrayLike]) -> list[LossSplit]:
        """The mixtures of many clients at once, each the same, bit for bit, as `fit` alone.

        Parameters
        ----------
        clients
            The losses of each.

        Examples
        --------
        >>> one, two = LossMixture().fit_many([[0.1, 0.2, 2.0], [0.3, 0.3]])
        >>> one.clean.round(3).tolist(), two.clean.tolist(), two.separated
        ([1.0, 1.0, 0.0], [1.0, 1.0], False)
        """
        losses = [_check_losses(client, place) for place, client in enumerate(clients)]
        splits = [_call_clean(values) for values in losses]
        # Equal losses would scale to 0/0, and one loss has no spread.
        fitting = [i for i, values in enumerate(losses) if _has_spread(values)]
        if fitting:
            found = self._maximise_likelihood([losses[i] for i in fitting])
            for i, split in zip(fitting, found, strict=True):
                splits[i] = split
        return splits

    def _maximise_likelihood(self, losses: list[Floats]) -> list[LossSplit]:
        """EM on every client until each has converged; a converged client leaves the batch."""
        groups = ClientSegments.of(np.array([values.size for values in losses], dtype=np.int64))
        raw = np.concatenate(losses)
        low = np.minimum.reduceat(raw, groups.starts)
        high = np.maximum.reduceat(raw, groups.starts)
        values = groups.scaled(raw, low, high) if self.normalise else raw
        state, n_iter, converged = self._iterate(values, groups)
        # EM may swap the components on the way; their meaning is fixed here, once.
        state = state.smaller_mean_first()
        clean, _ = infer_clean(values, state, groups)
        # Raw scores are judged on the scale that they would have had.
        span = np.ones(len(losses)) if self.normalise else high - low
        separated = state.means[:, 1] - state.means[:, 0] >= CLOSE * span
        posteriors = np.split(clean, groups.starts[1:])
        return [
            LossSplit(
                posteriors[i].copy(),
                *state.of(i),
                n_iter=int(n_iter[i]),
                converged=bool(converged[i]),
                separated=bool(separated[i]),
            )
            for i in range(len(losses))
        ]

    def _iterate(self, values: Floats, groups: ClientSegments) -> tuple[Gaussians, Ints, Bools]:
        """The components of every client, its steps, and whether it converged."""
        clients = groups.lengths.size
        start = split_by_means(values, groups)
        state = _estimate_gaussians(
            values,
            start,
            groups,
            self.reg_covar,
        )
        previous = np.full(clients, -np.inf)
        n_iter = np.zeros(clients, dtype=np.int64)
        converged = np.zeros(clients, dtype=bool)
        # Most clients need a handful of steps: the slow ones should not pay for the rest.
        while (active := ~converged & (n_iter < self.max_iter)).any():
            part, members = groups.select(active)
            lower, bound = infer_clean(values[members], state.select(active), part)
            moved = _estimate_gaussians(
                values[members],
                lower,
                part,
                self.reg_covar,
            )
            state = state.replaced(active, moved)
            converged[active] = np.abs(bound - previous[active]) < self.tol
            previous[active] = bound
            n_iter[active] += 1
        return state, n_iter, converged


class ClientSegments(NamedTuple):
    """Clients laid end to end in one flat array.

    A sum over a client reads its own segment only, so its bits depend neither on the neighbours nor
    on any padding."""

    starts: Ints
    lengths: Ints

    @classmethod
    def of(cls, lengths: Ints) -> ClientSegments:
        """Clients of these lengths."""
        return cls(np.cumsum(lengths) - lengths, lengths)

    def sum(self, values: Floats) -> Floats:
        """The sum over each client's samples."""
        return np.asarray(np.add.reduceat(values, self.starts))

    def mean(self, values: Floats) -> Floats:
        """The mean over each client's samples."""
        return self.sum(values) / self.lengths

    def spread(self, per_client: Floats) -> Floats:
        """One value a client, repeated for each of its samples."""
        return np.repeat(per_client, self.lengths)

    def scaled(self, values: Floats, low: Floats, high: Floats) -> Floats:
        """Each client's values, from low to high, as 0 to 1."""
        return (values - self.spread(low)) / self.spread(high - low)

    def select(self, active: Bools) -> tuple[ClientSegments, Bools | slice]:
        """The layout of the active clients alone, and which samples are theirs."""
        if active.all():
            return self, slice(None)
        members = np.repeat(active, self.lengths)
        return ClientSegments.of(self.lengths[active]), members


class Gaussians(NamedTuple):
    """Two components a client: weights, means and variances, each (clients, 2)."""

    weights: Floats
    means: Floats
    variances: Floats

    def select(self, active: Bools) -> Gaussians:
        """Those of the active clients."""
        return Gaussians(*(part[active] for part in self))

    def of(self, client: int) -> tuple[Floats, Floats, Floats]:
        """Copies of one client's."""
        weights, means, variances = (part[client].copy() for part in self)
        return weights, means, variances

    def replaced(self, active: Bools, new: Gaussians) -> Gaussians:
        """These, with the active clients' overwritten."""
        for part, values in zip(self, new, strict=True):
            part[active] = values
        return self

    def smaller_mean_first(self) -> Gaussians:
        """The same, each client's components in the order of their means."""
        order = np.argsort(self.means, axis=1, kind="stable")
        return Gaussians(*(np.take_along_axis(part, order, axis=1) for part in self))


def infer_clean(values: Floats, state: Gaussians, groups: ClientSegments) -> tuple[Floats, Floats]:
    """The E-step: posterior of component 0 for every sample, and each client's mean
    log-likelihood.

    >>> state = Gaussians(np.array([[0.6, 0.4]]), np.array([[0.1, 0.7]]), np.array([[0.01, 0.04]]))
    >>> one = ClientSegments.of(np.array([3]))
    >>> infer_clean(np.array([0.1, 0.3, 0.4]), state, one)[0].round(6).tolist()
    [0.996311, 0.75, 0.093097]
    """
    lower = _log_density(
        values,
        state,
        0,
        groups,
    )
    upper = _log_density(
        values,
        state,
        1,
        groups,
    )
    gap = upper - lower
    # exp of the negative distance never overflows; the same term serves the posterior and the
    # log-likelihood.
    ratio = np.exp(-np.abs(gap))
    posterior = np.where(gap > 0, ratio, 1.0) / (1.0 + ratio)
    log_likelihood = np.maximum(lower, upper) + np.log1p(ratio)
    return posterior, groups.mean(log_likelihood)


def _log_density(
    values: Floats,
    state: Gaussians,
    component: int,
    groups: ClientSegments,
) -> Floats:
    """log pi_c + log N(l; mu_c, s_c) for every sample."""
    weight, mean, variance = (part[:, component] for part in state)
    constant = np.log(weight) - 0.5 * (LOG_2PI + np.log(variance))
    distance = (values - groups.spread(mean)) ** 2
    return groups.spread(constant) - distance * groups.spread(0.5 / variance)


def _estimate_gaussians(
    values: Floats,
    lower: Floats,
    groups: ClientSegments,
    reg_covar: float,
) -> Gaussians:
    """The M-step: parameters from the posteriors of component 0."""
    parts = [
        _measure_moments(
            values,
            posterior,
            groups,
            reg_covar,
        )
        for posterior in (lower, 1.0 - lower)
    ]
    columns = zip(*parts, strict=True)
    mass, means, variances = (np.stack(column, axis=1) for column in columns)
    return Gaussians(mass / mass.sum(axis=1, keepdims=True), means, variances)


def _measure_moments(
    values: Floats,
    posterior: Floats,
    groups: ClientSegments,
    reg_covar: float,
) -> tuple[Floats, Floats, Floats]:
    """Mass, mean and variance of one component in every client."""
    # A component that died keeps a mass to divide by, as in scikit-learn.
    mass = groups.sum(posterior) + TINY
    mean = groups.sum(posterior * values) / mass
    squares = posterior * (values - groups.spread(mean)) ** 2
    variance = groups.sum(squares) / mass + reg_covar
    return mass, mean, variance


def split_by_means(values: Floats, groups: ClientSegments) -> Floats:
    """Membership (1.0 or 0.0) of the lower group of 2-means, started at minimum and maximum, run to
    convergence."""
    low = np.minimum.reduceat(values, groups.starts)
    high = np.maximum.reduceat(values, groups.starts)
    lower = _find_lower(
        values,
        groups,
        low,
        high,
    )
    # The bound is far above what Lloyd's steps need; it rules out an endless swing between
    # roundings.
    for _ in range(1000):
        count = groups.sum(lower.astype(np.float64))
        below = groups.sum(np.where(lower, values, 0.0))
        above = groups.sum(np.where(lower, 0.0, values))
        low = below / np.maximum(count, 1.0)
        high = above / np.maximum(groups.lengths - count, 1.0)
        moved = _find_lower(
            values,
            groups,
            low,
            high,
        )
        if np.array_equal(moved, lower):
            break
        lower = moved
    return lower.astype(np.float64)


def _find_lower(
    values: Floats,
    groups: ClientSegments,
    low: Floats,
    high: Floats,
) -> Bools:
    """Which samples are at least as near to the lower centre as to the upper one."""
    # Two differences, not a midpoint: between neighbouring floats a midpoint rounds onto one of
    # them.
    return np.asarray(values - groups.spread(low) <= groups.spread(high) - values)


def _has_spread(losses: Floats) -> bool:
    return losses.size > 1 and bool(losses.min() < losses.max())


def _call_clean(losses: Floats) -> LossSplit:
    """The answer where there is nothing to separate."""
    mean = float(losses[0]) if losses.size else 0.0
    return LossSplit(
        clean=np.ones(losses.size),
        weights=np.array([1.0, 0.0]),
        means=np.full(2, mean),
        variances=np.zeros(2),
        n_iter=0,
        converged=True,
        separated=False,
    )


def _check_losses(losses: ArrayLike, position: int) -> Floats:
    """One client's losses as float64, or a refusal."""
    values = np.asarray(losses, dtype=np.float64)
    if values.ndim != 1:
        rule = "the losses of a client are one-dimensional"
        raise DataError(broken(rule, f"{values.shape} (client {position})"))
    if not np.isfinite(values).all():
        wrong = values[~np.isfinite(values)][0]
        remedy = "Leave out the model that produced them."
        raise DataError(broken("losses are finite", f"{wrong} (client {position})", remedy))
    return values
