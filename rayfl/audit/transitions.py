"""How a client's labels go wrong: its transition matrix, from soft guesses of the truth.

The model is that of A. P. Dawid and A. M. Skene (Applied Statistics 28, 1979), with a client as the
annotator and a head's probabilities as the prior of every sample:

    q_i(c) ~ p_i(c) T[c, g_i];   T[c, g] ~ sum_i q_i(c) [g_i = g] + s ((1 - r) [c = g] + r B[c, g])

r is the client's own rate and B the way in which labels go wrong in the whole federation: a client
with a handful of samples of a class learns from the others what its mistakes look like, not how
many it makes."""

from __future__ import annotations

import numpy as np

from rayfl.arrays import Floats, Ints

Edges = tuple[float, float]

TINY = 1e-12


def infer_classes(answers: Floats, transition: Floats, given: Ints) -> Floats:
    """q, what is likely true of each sample, given what was written: (samples, classes)."""
    joint = answers * transition[:, given].T
    return np.asarray(joint / np.maximum(joint.sum(axis=1, keepdims=True), TINY))


def count_transitions(likely: Floats, given: Ints) -> Floats:
    """How often each class was written as each label, (classes, classes), in expectation."""
    classes = likely.shape[1]
    return np.asarray(likely.T @ np.eye(classes)[given])


def measure_rate(counts: Floats) -> float:
    """The share of wrong labels in such counts."""
    total = float(counts.sum())
    return 1.0 - float(np.trace(counts)) / total if total > 0 else 0.0


def find_pattern(counts: Floats, smooth: float = 1.0) -> Floats:
    """B: as what a class is written when it is written wrongly; rows of the federation's counts
    without their diagonal."""
    classes = len(counts)
    others = 1.0 - np.eye(classes)
    wrong = counts * others + smooth * others / max(classes - 1, 1)
    return np.asarray(wrong / np.maximum(wrong.sum(axis=1, keepdims=True), TINY))


def shrink_transition(counts: Floats, pattern: Floats, strength: float) -> Floats:
    """T of one client, drawn towards its own rate and the federation's pattern."""
    rate = measure_rate(counts)
    prior = (1.0 - rate) * np.eye(len(counts)) + rate * pattern
    raised = counts + strength * prior
    return np.asarray(raised / np.maximum(raised.sum(axis=1, keepdims=True), TINY))


def settle_transition(
    answers: Floats,
    given: Ints,
    transition: Floats,
    pattern: Floats,
    strength: float,
    rounds: int,
) -> Floats:
    """T where counting by it changes it no more, or after so many rounds."""
    for _ in range(rounds):
        counts = count_transitions(infer_classes(answers, transition, given), given)
        transition = shrink_transition(counts, pattern, strength)
    return transition
