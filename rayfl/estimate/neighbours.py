"""Which clients' models to trust for judging another client's samples: k-reliable neighbours.

S. Kim, W. Shin, S. Jang, H. Song and S.-Y. Yun, "FedRN: exploiting k-reliable neighbors towards
robust federated learning", CIKM 2022. `eligible[j]` says that client j has taken part, so that it
has an accuracy, an output and a model; clients that have not are nobody's neighbour and do not
count in any minimum or maximum."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Bools, Floats, Ints
from rayfl.errors import DataError, broken
from rayfl.estimate.probabilities import softmax

On = Literal["softmax", "logits"]

UNKNOWN_EXPERTISE = 0.5


def scale_expertise(accuracies: ArrayLike, eligible: ArrayLike | None = None) -> Floats:
    """Exp(j) = (Acc(j) - min Acc) / (max Acc - min Acc) over the eligible clients (eq. 4).

    0.5 for the others, and for all where the accuracies are equal.

    Parameters
    ----------
    accuracies
        Acc of every client, (clients,).
    eligible
        Whether each has taken part; by default all have.

    Examples
    --------
    >>> scale_expertise([0.55, 0.90, 0.40, 0.70, 0.65]).round(6).tolist()
    [0.3, 1.0, 0.0, 0.6, 0.5]
    """
    values = np.asarray(accuracies, dtype=np.float64)
    known = _check_eligible(eligible, len(values))
    row = np.where(known, values, np.nan)
    return np.asarray(_scale_rows(row[None], UNKNOWN_EXPERTISE)[0])


def compare_by_cosine(outputs: ArrayLike) -> Floats:
    """cos(q_i, q_j) of all pairs of rows; 0 where a row is all zeros.

    Parameters
    ----------
    outputs
        One row q a client, (clients, d).

    Examples
    --------
    >>> compare_by_cosine([[1, 0], [1, 1]]).round(6).tolist()
    [[1.0, 0.707107], [0.707107, 1.0]]
    """
    rows = np.asarray(outputs, dtype=np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(
        rows,
        length,
        out=np.zeros_like(rows),
        where=length > 0,
    )
    # Rounding may leave [-1, 1] by an ulp.
    return np.asarray(np.clip(unit @ unit.T, -1.0, 1.0))


def scale_similarity(
    logits: ArrayLike, on: On = "softmax", eligible: ArrayLike | None = None
) -> Floats:
    """Sim(c, j): the cosines of the clients' outputs on one common input, min-max scaled along each
    row (eq. 5).

    Minimum and maximum run over the eligible clients, c itself among them; a row without spread is
    all 1. Sim(c, c) = 1; whoever is not eligible has similarity 0 to and from everybody else.

    Parameters
    ----------
    logits
        Every client's answer to the common input, (clients, classes).
    on
        Whether the answers are compared as probabilities or as they are.
    eligible
        Whether each client has taken part; by default all have.

    Examples
    --------
    >>> answers = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1]]
    >>> scale_similarity(answers, on="logits")[0].round(4).tolist()
    [1.0, 0.0, 0.9718]
    """
    rows = np.asarray(logits, dtype=np.float64)
    known = _check_eligible(eligible, len(rows))
    # What a client that never took part has for an output may be anything, even nan.
    outputs = np.where(known[:, None], rows, 0.0)
    if on == "softmax":
        outputs = softmax(outputs)
    both = known[:, None] & known
    cosines = np.where(both, compare_by_cosine(outputs), np.nan)
    scaled = np.where(both, _scale_rows(cosines, 1.0), 0.0)
    np.fill_diagonal(scaled, 1.0)
    return scaled


def score_reliability(expert: ArrayLike, similar: ArrayLike, alpha: float = 0.6) -> Floats:
    """R(c, j) = alpha Exp(j) + (1 - alpha) Sim(c, j), for all targets c (rows) and clients j
    (columns) (eq. 3).

    Parameters
    ----------
    expert
        Exp of every client, (clients,).
    similar
        Sim of all pairs, (clients, clients).
    alpha
        What expertise counts, in [0, 1]. Paper: 0.6.

    Examples
    --------
    >>> score_reliability([0.3, 1.0], [[1.0, 0.0], [0.0, 1.0]], alpha=0.6).round(6).tolist()
    [[0.58, 0.6], [0.18, 1.0]]
    """
    if not 0 <= alpha <= 1:
        raise DataError(broken("alpha lies in [0, 1]", alpha))
    expert = np.asarray(expert, dtype=np.float64)
    similar = np.asarray(similar, dtype=np.float64)
    return alpha * expert + (1 - alpha) * similar


def choose_neighbours(
    scores: ArrayLike,
    target: int,
    k: int,
    eligible: ArrayLike | None = None,
) -> Ints:
    """The k eligible clients other than `target` with the largest R(target, j); ties go to the
    smallest id. Fewer than k when fewer are eligible.

    Parameters
    ----------
    scores
        The target's row of R, (clients,).
    target
        Whose neighbours they are.
    k
        How many are wanted.
    eligible
        Whether each client has taken part; by default all have.

    Examples
    --------
    >>> choose_neighbours([0.58, 0.60, 0.39, 0.76, 0.36], target=0, k=2).tolist()
    [3, 1]
    """
    row = np.asarray(scores, dtype=np.float64)
    pool = _list_candidates(target, len(row), eligible)
    # A stable sort of the ascending pool is the tie rule.
    order = np.argsort(-row[pool], kind="stable")
    return pool[order][: max(k, 0)]


def draw_neighbours(
    target: int,
    clients: int,
    k: int,
    rng: np.random.Generator,
    eligible: ArrayLike | None = None,
) -> Ints:
    """k distinct eligible clients other than `target`, each as likely (FedRN's k-random ablation).

    Parameters
    ----------
    target
        Whose neighbours they are.
    clients
        How many clients there are.
    k
        How many are wanted.
    rng
        What they are drawn from.
    eligible
        Whether each client has taken part; by default all have.

    Examples
    --------
    >>> sorted(draw_neighbours(1, 4, 3, np.random.default_rng(0)).tolist())
    [0, 2, 3]
    """
    pool = _list_candidates(target, clients, eligible)
    size = min(k, len(pool))
    return np.asarray(rng.choice(pool, size=size, replace=False), dtype=np.int64)


def average_posteriors(posteriors: ArrayLike, trust: ArrayLike) -> Floats:
    """P(i) = sum_n R_n g_n(i) / sum_n R_n over the models' clean posteriors (eq. 7).

    A model with a posterior that is not finite is left out; if all that remain have no trust, they
    count equally.

    Parameters
    ----------
    posteriors
        g, (models, samples).
    trust
        R, (models,).

    Examples
    --------
    >>> average_posteriors([[0.9, 0.4], [0.8, 0.7]], [3.0, 1.0]).round(6).tolist()
    [0.875, 0.475]
    """
    rows = np.asarray(posteriors, dtype=np.float64)
    scores = np.asarray(trust, dtype=np.float64)
    if rows.ndim != 2 or scores.shape != (len(rows),):
        rule = "one trust a model, one row of posteriors a model"
        raise DataError(broken(rule, f"{scores.shape} and {rows.shape}"))
    usable = np.isfinite(rows).all(axis=1) & np.isfinite(scores)
    if not usable.any():
        rule = "at least one model has finite posteriors"
        raise DataError(broken(rule, f"none of {len(rows)}"))
    return np.asarray(share_trust(scores[usable]) @ rows[usable])


def share_trust(trust: ArrayLike) -> Floats:
    """R_n / sum R; equal shares when all are zero.

    >>> share_trust([0.58, 0.757399]).round(6).tolist()
    [0.433678, 0.566322]
    """
    values = np.asarray(trust, dtype=np.float64)
    total = values.sum()
    if total > 0:
        return np.asarray(values / total)
    return np.full(len(values), 1.0 / max(len(values), 1))


def _scale_rows(rows: Floats, degenerate: float) -> Floats:
    """Each row scaled to [0, 1] by its finite entries; `degenerate` where they do not differ or are
    none."""
    known = np.isfinite(rows)
    low = _reduce_known(
        np.minimum,
        rows,
        known,
        np.inf,
    )
    high = _reduce_known(
        np.maximum,
        rows,
        known,
        -np.inf,
    )
    spread = high > low
    start = np.where(spread, low, 0.0)
    span = np.where(spread, high - start, 1.0)
    return np.where(known & spread, (rows - start) / span, degenerate)


def _reduce_known(
    extreme: np.ufunc,
    rows: Floats,
    known: Bools,
    none: float,
) -> Floats:
    """The smallest or largest known entry of each row."""
    entries = np.where(known, rows, none)
    return np.asarray(
        extreme.reduce(
            entries,
            axis=1,
            keepdims=True,
            initial=none,
        )
    )


def _list_candidates(target: int, clients: int, eligible: ArrayLike | None) -> Ints:
    """Ids of the eligible clients other than the target, ascending."""
    known = _check_eligible(eligible, clients)
    others = np.arange(clients) != target
    return np.flatnonzero(known & others).astype(np.int64)


def _check_eligible(eligible: ArrayLike | None, clients: int) -> Bools:
    """Everybody by default; otherwise one flag a client."""
    if eligible is None:
        return np.ones(clients, dtype=bool)
    flags = np.asarray(eligible, dtype=bool)
    if flags.shape != (clients,):
        raise DataError(broken(f"one eligibility flag a client ({clients})", flags.shape))
    return flags
