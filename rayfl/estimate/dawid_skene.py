"""The Dawid-Skene model: who is right how often, and what is true, from votes alone.

A. P. Dawid and A. M. Skene, "Maximum likelihood estimation of observer error-rates using the EM
algorithm", Applied Statistics 28(1), 1979. Used to weight clients by Dong, Zhu, Shang and Xue,
"Dawid-Skene-model-based label-noise mitigation for federated learning" (2026)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Bools, Floats, Ints
from rayfl.component import Count, Natural, NonNegative, component
from rayfl.errors import DataError, broken

if TYPE_CHECKING:
    from scipy import sparse

MISSING = -1
"""The vote of an annotator who did not see the item."""
REACHABLE = 1e-10
"""What a class that nobody voted for starts with."""


class Expectation(NamedTuple):
    """One E-step: the posterior of every item's class, and the log-likelihood of the parameters
    that made it."""

    posterior: Floats
    log_likelihood: float


class Maximisation(NamedTuple):
    """One M-step: confusion (annotators, classes, classes) and class prior (classes,)."""

    confusion: Floats
    prior: Floats


class Fitted:
    """What `DawidSkene.fit` leaves behind.

    Attributes
    ----------
    posterior_
        Q, (items, classes).
    confusion_
        m, (annotators, classes, classes); rows are true classes.
    prior_
        p, (classes,).
    reliability_
        r, (annotators,): the mean of the confusion's diagonal.
    log_likelihood_
        Of the fitted parameters.
    log_likelihoods_
        `log_likelihoods_[k]` is of the parameters that entered iteration k.
    deltas_
        `deltas_[k]` is the largest change of a posterior in iteration k.
    n_iter_, converged_
        Steps that EM took, and whether posteriors had come to rest.
    """

    posterior_: Floats
    confusion_: Floats
    prior_: Floats
    reliability_: Floats
    log_likelihood_: float
    log_likelihoods_: Floats
    deltas_: Floats
    n_iter_: int
    converged_: bool

    @property
    def dominant_share_(self) -> float:
        """Share of annotators whose confusion is diagonally dominant (m_cc > m_cl for every l other
        than c).

        The latent classes are identified when there is at least one such annotator.
        """
        return float(find_dominant(self.confusion_).mean())

    @property
    def misaligned_(self) -> bool:
        """Whether another naming of the latent classes would raise the sum of the confusions'
        traces."""
        return measure_realignment(self.confusion_) > 1e-9


@component
class DawidSkene(Fitted):
    """Expectation maximisation for the Dawid-Skene model, in log space.

    With y_ij the vote of annotator j on item i, m^(j)_{c,l} = P(y_ij = l | true class c) and p_c =
    P(c)::

        E:  log q_i(c) = log p_c + sum_j log m^(j)_{c, y_ij};    Q_i(c) = softmax_c(log q_i)
        M:  m^(j)_{c,l} = sum_i Q_i(c) 1[y_ij = l] / sum_i Q_i(c);    p_c = mean_i Q_i(c)
        log-likelihood = sum_i logsumexp_c(log q_i(c));    reliability r_j = mean_c m^(j)_{c,c}

    The fit begins with the votes as posterior and an M-step, and stops when no posterior moves by
    `tol` or more, or after `iterations`. Soft and hard starts may end in different fixed points. An
    annotator without votes has reliability 0; an item without votes has the prior as posterior.

    >>> votes = [[0, 0, 0], [0, 0, 1], [0, 0, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]
    >>> model = DawidSkene(classes=2).fit(votes)
    >>> model.reliability_.round(3).tolist(), model.n_iter_
    ([1.0, 0.833, 0.333], 21)
    >>> model.predict_proba([[1, 0, -1]]).round(3).tolist()
    [[0.0, 1.0]]
    """

    iterations: Natural = 500
    """Most steps of EM."""
    tol: NonNegative = 1e-5
    """EM stops when no posterior moves by this much."""
    init: Literal["soft", "hard"] = "soft"
    """The posterior before the first step: shares of the votes, or the majority (ties to the lowest
    class)."""
    use_prior: bool = True
    """Whether the E-step has the class prior; without, every class is as likely."""
    smooth: NonNegative = 0.0
    """Added to every count of a confusion."""
    classes: Count | None = None
    """How many classes there are; needed when the highest may have no votes."""

    def fit(self, votes: ArrayLike) -> DawidSkene:
        """Estimate from votes.

        Parameters
        ----------
        votes
            (items, annotators), each in 0..classes-1, or -1 for missing.
        """
        answers, classes = _check_votes(votes, self.classes)
        annotators = answers.shape[1]
        onehot = encode_votes(answers, classes)
        posterior = _start_posterior(
            onehot,
            annotators,
            classes,
            self.init,
        )
        parameters = estimate_confusions(
            onehot,
            posterior,
            annotators,
            self.smooth,
        )
        log_likelihoods: list[float] = []
        deltas: list[float] = []
        while len(deltas) < self.iterations and not self._at_rest(deltas):
            found, log_likelihood = self._infer(onehot, parameters)
            parameters = estimate_confusions(
                onehot,
                found,
                annotators,
                self.smooth,
            )
            log_likelihoods.append(log_likelihood)
            deltas.append(float(np.abs(found - posterior).max(initial=0.0)))
            posterior = found
        # The settings are frozen; what a fit finds is no setting and goes past the guard.
        self.__dict__.update(
            posterior_=posterior,
            confusion_=parameters.confusion,
            prior_=parameters.prior,
            reliability_=measure_reliability(parameters.confusion),
            # One more E-step, so that the figure belongs to the parameters that are stored.
            log_likelihood_=self._infer(onehot, parameters).log_likelihood,
            log_likelihoods_=np.array(log_likelihoods),
            deltas_=np.array(deltas),
            n_iter_=len(deltas),
            converged_=self._at_rest(deltas),
        )
        return self

    def predict_proba(self, votes: ArrayLike) -> Floats:
        """Posterior (items, classes) of further items, by the annotators of the fit.

        Parameters
        ----------
        votes
            (items, annotators), the annotators in the same order.
        """
        if "confusion_" not in self.__dict__:
            rule = "predict_proba needs a fitted model"
            raise DataError(broken(rule, "an unfitted DawidSkene", "Call fit first."))
        annotators, classes, _ = self.confusion_.shape
        answers, _ = _check_votes(votes, classes)
        if answers.shape[1] != annotators:
            rule = f"votes have one column an annotator ({annotators})"
            raise DataError(broken(rule, answers.shape[1]))
        parameters = Maximisation(self.confusion_, self.prior_)
        return self._infer(encode_votes(answers, classes), parameters).posterior

    def _infer(self, onehot: sparse.csr_array, parameters: Maximisation) -> Expectation:
        """The E-step, with the prior or without."""
        classes = len(parameters.prior)
        even = np.full(classes, 1.0 / classes)
        prior = parameters.prior if self.use_prior else even
        return infer_truth(onehot, parameters.confusion, prior)

    def _at_rest(self, deltas: list[float]) -> bool:
        return bool(deltas) and deltas[-1] < self.tol


def infer_truth(onehot: sparse.csr_array, confusion: Floats, prior: Floats) -> Expectation:
    """The E-step: posteriors and log-likelihood. An item that no class can explain gets a uniform
    posterior."""
    classes = len(prior)
    with np.errstate(divide="ignore"):
        log_confusion = np.log(confusion)
        log_prior = np.log(prior)
    by_vote = log_confusion.transpose(0, 2, 1).reshape(-1, classes)
    # The sparse product never multiplies a zero by log 0 = -inf, which a dense one would turn into
    # nan.
    log_joint = onehot @ by_vote + log_prior
    top = log_joint.max(axis=1, keepdims=True)
    possible = np.isfinite(top)
    # Shifting by the largest term keeps hundreds of factors from underflowing.
    shifted = log_joint - np.where(possible, top, 0.0)
    scaled = np.where(possible, np.exp(shifted), 1.0)
    total = scaled.sum(axis=1, keepdims=True)
    log_likelihood = np.where(possible, top + np.log(total), -np.inf).sum()
    return Expectation(scaled / total, float(log_likelihood))


def estimate_confusions(
    onehot: sparse.csr_array,
    posterior: Floats,
    annotators: int,
    smooth: float = 0.0,
) -> Maximisation:
    """The M-step: confusions and prior from posteriors. The row of a class without mass stays
    zero."""
    items, classes = posterior.shape
    by_vote = (onehot.T @ posterior).reshape(annotators, classes, classes)
    counts = by_vote.transpose(0, 2, 1) + smooth
    # Dividing by the row's own sum, not by the class's mass, is what makes missing votes harmless.
    totals = counts.sum(axis=2, keepdims=True)
    confusion = np.divide(
        counts,
        totals,
        out=np.zeros_like(counts),
        where=totals > 0,
    )
    prior = posterior.mean(axis=0) if items else np.full(classes, 1.0 / classes)
    return Maximisation(confusion, prior)


def measure_reliability(confusion: Floats) -> Floats:
    """r_j, the mean over classes of m^(j)_{c,c}.

    Parameters
    ----------
    confusion
        m, (annotators, classes, classes).

    Examples
    --------
    >>> measure_reliability(np.array([[[0.9, 0.1], [0.3, 0.7]]])).tolist()
    [0.8]
    """
    diagonal = np.diagonal(confusion, axis1=1, axis2=2)
    return np.asarray(diagonal.mean(axis=1), dtype=np.float64)


def weigh_by_reliability(reliabilities: ArrayLike) -> Floats:
    """Shares r_j / sum r; equal shares when the sum is zero or not finite.

    Parameters
    ----------
    reliabilities
        r, (annotators,).

    Examples
    --------
    >>> weigh_by_reliability([0.9, 0.6, 0.3]).round(6).tolist()
    [0.5, 0.333333, 0.166667]
    """
    values = np.asarray(reliabilities, dtype=np.float64)
    total = values.sum()
    if np.isfinite(total) and total > 0:
        return np.asarray(values / total)
    return np.full(values.shape, 1.0 / max(values.size, 1))


def find_dominant(confusion: Floats) -> Bools:
    """For each annotator, whether every diagonal entry is the single largest of its row.

    >>> find_dominant(np.array([[[0.9, 0.1], [0.3, 0.7]], [[0.9, 0.1], [0.5, 0.5]]])).tolist()
    [True, False]
    """
    classes = confusion.shape[1]
    own = np.eye(classes, dtype=bool)
    # Without the diagonal in the way, the largest of the rest is a plain maximum.
    others = np.where(own, -np.inf, confusion)
    diagonal = np.diagonal(confusion, axis1=1, axis2=2)
    largest = diagonal > others.max(axis=2)
    return np.asarray(largest.all(axis=1))


def measure_realignment(confusion: Floats) -> float:
    """How much the best renaming of the latent classes (Hungarian assignment) raises sum_j
    trace(m^(j)).

    >>> measure_realignment(np.array([[[0.1, 0.9], [0.8, 0.2]]])).__round__(6)
    1.4
    """
    from scipy.optimize import linear_sum_assignment

    total = confusion.sum(axis=0)
    rows, columns = linear_sum_assignment(total, maximize=True)
    best = total[rows, columns].sum()
    return float(best - total.trace())


def encode_votes(votes: Ints, classes: int) -> sparse.csr_array:
    """Sparse (items, annotators * classes) indicator of who said what; a missing vote leaves no
    entry.

    >>> encode_votes(np.array([[1, 0], [-1, 1]]), 2).toarray().tolist()
    [[0.0, 1.0, 1.0, 0.0], [0.0, 0.0, 0.0, 1.0]]
    """
    # Here, because every run reads this module and few ask it to count votes.
    from scipy import sparse

    items, annotators = votes.shape
    given = votes != MISSING
    # Each annotator owns a block of `classes` columns.
    blocks = classes * np.arange(annotators)
    columns = (votes + blocks)[given]
    starts = np.concatenate([[0], np.cumsum(given.sum(axis=1))])
    said = np.ones(columns.size)
    return sparse.csr_array((said, columns, starts), shape=(items, annotators * classes))


def _start_posterior(
    onehot: sparse.csr_array,
    annotators: int,
    classes: int,
    init: str,
) -> Floats:
    """Vote shares plus 1e-10 (soft), or the majority vote (hard); uniform for an item without
    votes."""
    votes = onehot @ np.tile(np.eye(classes), (annotators, 1))
    total = votes.sum(axis=1, keepdims=True)
    if init == "hard":
        majority = np.eye(classes)[votes.argmax(axis=1)]
        return np.asarray(np.where(total > 0, majority, 1.0 / classes))
    shares = votes / np.maximum(total, 1.0) + REACHABLE
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _check_votes(votes: ArrayLike, classes: int | None) -> tuple[Ints, int]:
    """The votes as int64 and the number of classes, or a refusal."""
    given = np.asarray(votes)
    whole = np.issubdtype(given.dtype, np.integer) or given.size == 0
    if given.ndim != 2 or given.shape[1] == 0 or not whole:
        rule = "votes are an (items, annotators) array of integers, -1 for missing"
        raise DataError(broken(rule, f"{given.dtype} {given.shape}"))
    highest = int(given.max(initial=MISSING))
    if classes is None and highest < 0:
        rule = "without any vote the number of classes is unknown"
        raise DataError(broken(rule, "no votes", "Set classes."))
    count = highest + 1 if classes is None else classes
    strange = (given >= count) | (given < MISSING)
    if strange.any():
        rule = f"a vote lies in [0, {count}) or is {MISSING}"
        raise DataError(broken(rule, given[strange][0], "Check classes."))
    return given.astype(np.int64), count
