"""Which clients' models to trust for judging another client's samples: k-reliable neighbours.

S. Kim, W. Shin, S. Jang, H. Song and S.-Y. Yun, "FedRN: exploiting k-reliable neighbors towards
robust federated learning", CIKM 2022. `eligible[j]` says that client j has taken part, so that it
has an accuracy, an output and a model; clients that have not are nobody's neighbour and do not
count in any minimum or maximum."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rayfl.errors import DataError, broken

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
On = Literal["softmax", "logits"]

UNKNOWN_EXPERTISE = 0.5


def expertise(accuracies: ArrayLike, eligible: ArrayLike | None = None) -> Floats:
    """Exp(j) = (Acc(j) - min Acc) / (max Acc - min Acc) over the eligible clients.

    0.5 for the others, and for all where the accuracies are equal.

    >>> expertise([0.55, 0.90, 0.40, 0.70, 0.65]).round(6).tolist()
    [0.3, 1.0, 0.0, 0.6, 0.5]
    """
    values = np.asarray(accuracies, dtype=np.float64)
    known = checked_eligible(eligible, len(values))
    return np.asarray(min_max(np.where(known, values, np.nan)[None], UNKNOWN_EXPERTISE)[0])


def cosine_similarity(outputs: ArrayLike) -> Floats:
    """cos(q_i, q_j) of all pairs of rows; 0 where a row is all zeros.

    >>> cosine_similarity([[1, 0], [1, 1]]).round(6).tolist()
    [[1.0, 0.707107], [0.707107, 1.0]]
    """
    rows = np.asarray(outputs, dtype=np.float64)
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
    return np.asarray(np.clip(unit @ unit.T, -1.0, 1.0))


def softmax(logits: ArrayLike) -> Floats:
    """Row-wise softmax.

    >>> softmax([[0.0, 0.0]]).tolist()
    [[0.5, 0.5]]
    """
    rows = np.asarray(logits, dtype=np.float64)
    powers = np.exp(rows - rows.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def similarity(logits: ArrayLike, on: On = "softmax", eligible: ArrayLike | None = None) -> Floats:
    """Sim(c, j): the cosines of the clients' outputs on one common input, min-max scaled along each
    row.

    Minimum and maximum run over the eligible clients, c itself among them; a row without spread is
    all 1. Sim(c, c) = 1; whoever is not eligible has similarity 0 to and from everybody else.
    `on="logits"` compares the rows as they are.

    >>> similarity([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1]], on="logits")[0].round(4).tolist()
    [1.0, 0.0, 0.9718]
    """
    rows = np.asarray(logits, dtype=np.float64)
    known = checked_eligible(eligible, len(rows))
    # What a client that never took part has for an output may be anything, even nan.
    outputs = np.where(known[:, None], rows, 0.0)
    cosines = cosine_similarity(softmax(outputs) if on == "softmax" else outputs)
    both = known[:, None] & known
    scaled = np.where(both, min_max(np.where(both, cosines, np.nan), 1.0), 0.0)
    np.fill_diagonal(scaled, 1.0)
    return scaled


def reliability_scores(expert: ArrayLike, similar: ArrayLike, alpha: float = 0.6) -> Floats:
    """R(c, j) = alpha Exp(j) + (1 - alpha) Sim(c, j), for all targets c (rows) and clients j
    (columns).

    >>> reliability_scores([0.3, 1.0], [[1.0, 0.0], [0.0, 1.0]], alpha=0.6).round(6).tolist()
    [[0.58, 0.6], [0.18, 1.0]]
    """
    if not 0 <= alpha <= 1:
        raise DataError(broken("alpha lies in [0, 1]", alpha))
    return alpha * np.asarray(expert, dtype=np.float64) + (1 - alpha) * np.asarray(
        similar, dtype=np.float64
    )


def reliable_neighbours(
    scores: ArrayLike, target: int, k: int, eligible: ArrayLike | None = None
) -> Ints:
    """The k eligible clients other than `target` with the largest R(target, j); ties go to the
    smallest id.

    `scores` is the target's row of R. Fewer than k when fewer are eligible.

    >>> reliable_neighbours([0.58, 0.60, 0.39, 0.76, 0.36], target=0, k=2).tolist()
    [3, 1]
    """
    row = np.asarray(scores, dtype=np.float64)
    pool = candidates(target, len(row), eligible)
    # A stable sort of the ascending pool is the tie rule.
    return pool[np.argsort(-row[pool], kind="stable")][: max(k, 0)]


def random_neighbours(
    target: int, clients: int, k: int, rng: np.random.Generator, eligible: ArrayLike | None = None
) -> Ints:
    """k distinct eligible clients other than `target`, each as likely (FedRN's k-random ablation).

    >>> sorted(random_neighbours(1, 4, 3, np.random.default_rng(0)).tolist())
    [0, 2, 3]
    """
    pool = candidates(target, clients, eligible)
    return np.asarray(rng.choice(pool, size=min(k, len(pool)), replace=False), dtype=np.int64)


def ensemble_posterior(posteriors: ArrayLike, trust: ArrayLike) -> Floats:
    """P(i) = sum_n R_n g_n(i) / sum_n R_n over the models' clean posteriors (models, samples).

    A model with a posterior that is not finite is left out; if all that remain have no trust, they
    count equally.

    >>> ensemble_posterior([[0.9, 0.4], [0.8, 0.7]], [3.0, 1.0]).round(6).tolist()
    [0.875, 0.475]
    """
    rows = np.asarray(posteriors, dtype=np.float64)
    scores = np.asarray(trust, dtype=np.float64)
    if rows.ndim != 2 or scores.shape != (len(rows),):
        raise DataError(
            broken(
                "one trust a model, one row of posteriors a model",
                f"{scores.shape} and {rows.shape}",
            )
        )
    usable = np.isfinite(rows).all(axis=1) & np.isfinite(scores)
    if not usable.any():
        raise DataError(broken("at least one model has finite posteriors", f"none of {len(rows)}"))
    return np.asarray(shares(scores[usable]) @ rows[usable])


def shares(trust: ArrayLike) -> Floats:
    """R_n / sum R; equal shares when all are zero.

    >>> shares([0.58, 0.757399]).round(6).tolist()
    [0.433678, 0.566322]
    """
    values = np.asarray(trust, dtype=np.float64)
    total = values.sum()
    return values / total if total > 0 else np.full(len(values), 1.0 / max(len(values), 1))


def min_max(rows: Floats, degenerate: float) -> Floats:
    """Each row scaled to [0, 1] by its finite entries; `degenerate` where they do not differ or are
    none."""
    known = np.isfinite(rows)
    low = np.where(known, rows, np.inf).min(axis=1, keepdims=True, initial=np.inf)
    high = np.where(known, rows, -np.inf).max(axis=1, keepdims=True, initial=-np.inf)
    spread = high > low
    span = np.where(spread, high - np.where(spread, low, 0.0), 1.0)
    return np.where(known & spread, (rows - np.where(spread, low, 0.0)) / span, degenerate)


def candidates(target: int, clients: int, eligible: ArrayLike | None) -> Ints:
    """Ids of the eligible clients other than the target, ascending."""
    known = checked_eligible(eligible, clients)
    return np.flatnonzero(known & (np.arange(clients) != target)).astype(np.int64)


def checked_eligible(eligible: ArrayLike | None, clients: int) -> Bools:
    """Everybody by default; otherwise one flag a client."""
    if eligible is None:
        return np.ones(clients, dtype=bool)
    flags = np.asarray(eligible, dtype=bool)
    if flags.shape != (clients,):
        raise DataError(broken(f"one eligibility flag a client ({clients})", flags.shape))
    return flags
