"""What an audit does at a client: slopes of heads, counts, opinions. Images, features and what is
found of single samples stay there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from rayfl.arrays import Floats, Ints
from rayfl.audit.heads import HeadDescent, Singles, answer_all, answer_unseen, measure_slope
from rayfl.audit.opinions import (
    ask_neighbours,
    compare_best,
    compare_with_threshold,
    find_confident,
    fit_annotators,
    measure_fit,
    split_losses,
    take_given,
)
from rayfl.audit.shares import estimate_share, weigh_rates
from rayfl.audit.transitions import (
    count_transitions,
    find_pattern,
    infer_classes,
    settle_transition,
)
from rayfl.estimate.lid import mean_lid
from rayfl.protocol import Client, Out

EVERYTHING = -1
"""A fold that no head is kept from."""
SETTLING = 8
"""Times that a client counts its own mistakes anew."""
MOST_FOR_LID = 1000
"""Samples whose distances to each other are measured."""


class KeptSamples(NamedTuple):
    """What a client keeps between the visits of an audit."""

    points: Singles
    folds: Ints
    given: Ints


def take_held(client: Client) -> KeptSamples:
    """The samples' places, folds and labels."""
    return KeptSamples(np.array(client.state["points"]), client.state["folds"], client.y)


def shape_heads(heads: Singles, held: KeptSamples, classes: int) -> Singles:
    """Heads as they travelled, flat, as (heads, width, classes)."""
    return np.array(heads).reshape(-1, held.points.shape[1], classes)


def send_slope(client: Client, *, heads: Singles, transition: Floats, sharpness: float) -> Out:
    """The slope of the client's mean loss for every head."""
    held = take_held(client)
    shaped = shape_heads(heads, held, client.classes)
    slope = measure_slope(held.points, shaped, held.given, held.folds, transition, sharpness)
    return Out(update=slope.ravel())


def answer_held(
    client: Client, held: KeptSamples, heads: Singles, sharpness: float = 1.0
) -> Floats:
    """What unseen heads say of the client's samples."""
    return answer_unseen(
        held.points, shape_heads(heads, held, client.classes), held.folds, sharpness
    )


def compare_labels(client: Client, *, heads: Singles) -> Out:
    """How often heads that never saw a sample think otherwise, and what confidence is usual."""
    held = take_held(client)
    answers = answer_held(client, held, heads)
    sums = np.bincount(
        held.given, weights=take_given(answers, held.given), minlength=client.classes
    )
    return Out(
        {
            "disagreement": float((answers.argmax(axis=1) != held.given).mean()),
            "confidence": sums.tolist(),
        }
    )


def count_labels(
    client: Client, *, heads: Singles, transition: Floats | None, sharpness: float
) -> Out:
    """How often each class was written as each label: by the likeliest class of every sample where
    nothing is known of the client's mistakes, else in expectation."""
    held = take_held(client)
    answers = answer_held(client, held, heads, sharpness)
    if transition is None:
        likely = np.eye(client.classes)[answers.argmax(axis=1)]
    else:
        likely = infer_classes(answers, transition, held.given)
    return Out({"counts": count_transitions(likely, held.given).astype(np.float32)})


def count_settled(
    client: Client,
    *,
    heads: Singles,
    transition: Floats,
    pattern: Floats,
    strength: float,
    sharpness: float,
) -> Out:
    """How often each class was written as each label, by mistakes that the client has counted anew
    until they stay; and how unsure heads are."""
    held = take_held(client)
    answers = answer_held(client, held, heads, sharpness)
    settled = settle_transition(answers, held.given, transition, pattern, strength, SETTLING)
    likely = infer_classes(answers, settled, held.given)
    counts = count_transitions(likely, held.given).astype(np.float32)
    return Out({"counts": counts, "doubt": float(1.0 - answers.max(axis=1).mean())})


def weigh_sharpness(
    client: Client,
    *,
    heads: Singles,
    pattern: Floats,
    most: float,
    grid: Sequence[float],
) -> Out:
    """How likely the client's labels are if heads were so much surer than they say, each time with
    the rate of wrong labels that suits them best."""
    held = take_held(client)
    found = []
    for sharpness in grid:
        answers = answer_held(client, held, heads, sharpness)
        found.append(float(weigh_rates(answers, pattern, held.given, most).max()))
    return Out({"likelihood": found})


def train_own_head(client: Client, *, steps: int, decay: float) -> Out:
    """A head on the client's own samples alone, and its accuracy on them (FedRN's expertise)."""
    held = take_held(client)
    nobody = np.full(len(held.given), EVERYTHING)
    start = np.zeros((1, held.points.shape[1], client.classes), np.float32)
    descent = HeadDescent(start, decay)
    for _ in range(steps):
        slope = measure_slope(
            held.points, descent.ahead, held.given, nobody, np.eye(client.classes), 1.0
        )
        descent.step(slope)
    answers = answer_all(held.points, descent.heads)[:, 0]
    expertise = float((answers.argmax(axis=1) == held.given).mean())
    return Out({"expertise": expertise}, update=descent.heads.ravel())


def hear_votes(client: Client, *, peers: Mapping[int, Singles]) -> Out:
    """What heads of other clients vote, and the given labels as one more annotator: Dawid and
    Skene's confusions, and how reliable each of the others is."""
    held = take_held(client)
    classes = client.classes
    heads = np.stack([shape_heads(head, held, classes)[0] for head in peers.values()])
    votes = answer_all(held.points, heads).argmax(axis=2)
    model = fit_annotators(np.column_stack([held.given, votes]), classes)
    confusion = model.confusion_[0] * model.posterior_.sum(axis=0)[:, None]
    others = fit_annotators(votes, classes)
    return Out(
        {
            "confusion": confusion.astype(np.float32),
            "reliability": dict(zip(peers, model.reliability_[1:].tolist(), strict=True)),
        },
        state={"votes": take_given(others.posterior_, held.given)},
    )


def send_spans(client: Client, *, folds: int, axes: int) -> Out:
    """Second moments of every given class in every fold, on the first axes."""
    held = take_held(client)
    points = held.points[:, :axes].astype(np.float64)
    sums = np.zeros((folds, client.classes, points.shape[1], points.shape[1]))
    for fold in range(folds):
        for label in np.unique(held.given):
            mine = points[(held.folds == fold) & (held.given == label)]
            sums[fold, label] = mine.T @ mine
    return Out(update=(sums / len(points)).astype(np.float32).ravel())


class Heard(NamedTuple):
    """What a client is told before it concludes."""

    transition: Floats
    pattern: Floats
    floor: Floats
    sharpness: float
    spread: float
    thresholds: Floats
    bases: Floats


def conclude(
    client: Client,
    *,
    heads: Singles,
    first: Singles,
    heard: Heard,
    rules: Any,
) -> Out:
    """What single estimators and the joined rule say of every sample, which stays here, and of the
    client, which is sent."""
    held = take_held(client)
    answers = answer_held(client, held, heads, heard.sharpness) @ heard.floor
    early = answer_held(client, held, first)
    transition = settle_transition(
        answers, held.given, heard.transition, heard.pattern, rules.strength, SETTLING
    )
    likely = infer_classes(answers, transition, held.given)
    reach = measure_fit(held.points[:, : heard.bases.shape[2]], held.folds, heard.bases)
    near = ask_neighbours(held.points[:, :-1], held.given, rules.neighbours, client.classes)
    opinions = {
        "heads": take_given(likely, held.given),
        "losses": split_losses(early, held.given),
        "confident": compare_with_threshold(early, held.given, heard.thresholds),
        "neighbours": compare_best(near, held.given),
        "subspaces": compare_best(reach, held.given),
        "votes": np.asarray(client.state["votes"]),
    }
    own = find_pattern(count_transitions(likely, held.given) + rules.strength / 10 * heard.pattern)
    share = estimate_share(answers, own, held.given, heard.spread)
    confident = find_confident(early, heard.thresholds)
    report = {
        "share": tuple(share),
        "transition": transition.astype(np.float32),
        "counts": count_transitions(likely, held.given).astype(np.float32),
        "confident": count_confident(confident, held.given, client.classes),
        "doubt": (answers.T @ answers).astype(np.float32),
        "lid": mean_lid(early[:MOST_FOR_LID], rules.neighbours),
        "means": {name: float(values.mean()) for name, values in opinions.items()},
    }
    state = {"opinions": np.stack([*opinions.values()], axis=1).astype(np.float32)}
    return Out(report, state={**state, "likely": likely.astype(np.float32)})


def count_confident(confident: Ints, given: Ints, classes: int) -> Singles:
    """The confident joint: how often each label stands where a class is confident."""
    counts = np.zeros((classes, classes), dtype=np.int64)
    known = confident >= 0
    np.add.at(counts, (confident[known], given[known]), 1)
    return np.asarray(counts, dtype=np.float32)
