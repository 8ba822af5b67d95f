"""How evidence becomes findings: the joining rule, and whom it accuses.

The joined score of a sample is the chance that its label is right by heads that never saw it and by
its client's own way to go wrong (column `heads` of its opinions). The other estimators are weaker
and see the same features, so that a mean of all would be more certain than they are and no better:
they are shown beside it, and where most of them say otherwise the sample is marked as disputed.

- A sample is flagged where another class is likelier than the given one.
- A client is accused where the lower end of its interval is above `ACCUSED_ABOVE`, and called clean
  where the upper end is below it.
- Where single estimators of a client's share differ from the joined one by more than `APART`, its
  notes say which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from rayfl.arrays import Bools, Floats
from rayfl.audit.course import Evidence
from rayfl.audit.findings import (
    CLEAN,
    OPINIONS,
    UNSURE,
    WRONG,
    ClassPair,
    ClientFinding,
    Findings,
    SampleFindings,
    Twins,
)
from rayfl.audit.notes import list_client_notes, list_federation_notes
from rayfl.audit.shares import Share
from rayfl.audit.transitions import measure_rate
from rayfl.estimate.label_quality import measure_correlation
from rayfl.federation.scenario import Scenario
from rayfl.protocol import ClientId

ACCUSED_ABOVE = 0.10
"""Share of wrong labels that a client is accused of from on."""
DOUBTED_BELOW = 0.5
"""An opinion below this speaks against a label."""
MOST_PAIRS = 12
LEAST_PAIR = 0.0005
"""Pairs of classes below it would be shown as nothing."""
MOST_WORST = 3
LEAST_OF_CLASS = 5.0
"""Samples that a class has at a client before its share of wrong labels is told."""
SIGNS = {"lid": 1, "expertise": -1, "reliability": -1}
"""Estimators that are no shares: whether they rise or fall with wrong labels."""


def weigh_evidence(
    evidence: Evidence, scenario: Scenario, names: Mapping[ClientId, str]
) -> Findings:
    """The findings of an audit.

    Parameters
    ----------
    evidence
        What clients sent.
    scenario
        Who holds which rows; its truth is not read.
    names
        What clients are called."""
    samples = judge_samples(evidence, scenario)
    found = [judge_client(client, names[client], evidence, scenario) for client in evidence.clients]
    agreements = measure_agreements(found)
    twins = list(pair_twins(evidence, scenario))
    return Findings(
        classes=scenario.classes,
        clients=found,
        samples=samples,
        share=join_shares(found),
        rates=list_rates(evidence, scenario.classes),
        ambiguous=list_ambiguous(evidence, scenario.classes),
        twins=twins,
        agreements=agreements,
        sent=evidence.sent,
        notes=list_federation_notes(found, evidence, scenario.classes, twins),
        seconds=evidence.seconds,
    )


# -- samples ---------------------------------------------------------------------------------------


def judge_samples(evidence: Evidence, scenario: Scenario) -> SampleFindings:
    """Score, flag and suggestion of every sample."""
    rows = np.concatenate([scenario.shard(client) for client in evidence.clients])
    clients = np.concatenate(
        [np.full(len(scenario.shard(client)), client) for client in evidence.clients]
    )
    likely = np.concatenate([evidence.likely[client] for client in evidence.clients])
    opinions = np.concatenate([evidence.opinions[client] for client in evidence.clients])
    given = scenario.given[rows]
    suggested = np.asarray(likely.argmax(axis=1), dtype=np.int64)
    flagged = np.asarray(suggested != given)
    return SampleFindings(
        rows=rows,
        clients=clients,
        given=given,
        suggested=suggested,
        score=opinions[:, 0].astype(np.float64),
        flagged=flagged,
        disputed=find_disputed(opinions, flagged),
        opinions=opinions,
    )


def find_disputed(opinions: Floats, flagged: Bools) -> Bools:
    """Samples about which more than half of the other estimators say otherwise."""
    against = (opinions[:, 1:] < DOUBTED_BELOW).mean(axis=1)
    return np.asarray(np.where(flagged, against < 0.5, against > 0.5))


# -- clients ---------------------------------------------------------------------------------------


def judge_client(
    client: ClientId, name: str, evidence: Evidence, scenario: Scenario
) -> ClientFinding:
    """Share, trust, verdict and notes of one client."""
    report = evidence.concluded[client]
    share = Share(*report["share"])
    counts = np.asarray(report["counts"], np.float64)
    single = list_single(client, evidence)
    return ClientFinding(
        client=client,
        name=name,
        samples=len(scenario.shard(client)),
        share=share,
        trust=measure_trust(share, len(scenario.classes)),
        verdict=judge_share(share),
        transition=np.asarray(report["transition"], np.float64),
        worst=find_worst_classes(counts, scenario.classes),
        evidence=single,
        notes=list_client_notes(client, evidence, scenario.classes, share, single),
    )


def list_single(client: ClientId, evidence: Evidence) -> dict[str, float]:
    """What every estimator says of a client: shares of wrong labels, and figures of other kinds."""
    report = evidence.concluded[client]
    means = report["means"]
    return {
        "disagreement": evidence.disagreement[client],
        "losses": 1.0 - means["losses"],
        "confident": measure_rate(np.asarray(report["confident"], np.float64)),
        "neighbours": 1.0 - means["neighbours"],
        "subspaces": 1.0 - means["subspaces"],
        "votes": measure_rate(np.asarray(evidence.votes[client], np.float64)),
        "lid": float(report["lid"]),
        "expertise": evidence.expertise[client],
        "reliability": evidence.reliability.get(client, float("nan")),
    }


def measure_trust(share: Share, classes: int) -> Share:
    """How far labels are from drawn ones: 1 - share / (1 - 1 / classes), at least 0."""
    drawn = 1.0 - 1.0 / max(classes, 2)
    value, worst, best = (max(0.0, 1.0 - part / drawn) for part in (share[0], share[2], share[1]))
    return Share(value, worst, best)


def judge_share(share: Share) -> str:
    """The verdict that an interval allows."""
    if share.low > ACCUSED_ABOVE:
        return WRONG
    return CLEAN if share.high < ACCUSED_ABOVE else UNSURE


def find_worst_classes(counts: Floats, classes: Sequence[str]) -> list[tuple[str, float]]:
    """The labels of a client that are wrong most often, by the label that was written."""
    written = counts.sum(axis=0)
    wrong = 1.0 - np.diagonal(counts) / np.maximum(written, 1e-9)
    known = np.flatnonzero(written >= LEAST_OF_CLASS)
    order = known[np.argsort(-wrong[known], kind="stable")][:MOST_WORST]
    return [(classes[label], float(wrong[label])) for label in order.tolist()]


def join_shares(found: Sequence[ClientFinding]) -> Share:
    """The federation's share; intervals of clients are taken as independent."""
    sizes = np.array([client.samples for client in found], dtype=np.float64)
    weights = sizes / sizes.sum()
    values = np.array([client.share.value for client in found])
    halves = np.array([(client.share.high - client.share.low) / 2 for client in found])
    middle = float(weights @ values)
    half = float(np.sqrt((weights**2 * halves**2).sum()))
    return Share(middle, max(middle - half, 0.0), min(middle + half, 1.0))


def measure_agreements(found: Sequence[ClientFinding]) -> dict[str, float]:
    """Rank correlation of every estimator with the joined share; nan where nothing differs."""
    joined = rank_values([client.share.value for client in found])
    names = found[0].evidence if found else {}
    return {
        name: SIGNS.get(name, 1)
        * measure_correlation(joined, rank_values([client.evidence[name] for client in found]))
        for name in names
    }


def rank_values(values: Sequence[float]) -> Floats:
    """Ranks, equal ones shared; nan stays."""
    from scipy.stats import rankdata

    return np.asarray(rankdata(values, nan_policy="omit"), dtype=np.float64)


# -- the federation --------------------------------------------------------------------------------


def list_rates(evidence: Evidence, classes: Sequence[str]) -> list[ClassPair]:
    """What was most often written as what."""
    counts = np.sum([report["counts"] for report in evidence.concluded.values()], axis=0)
    rates = np.asarray(counts, np.float64) / max(float(np.sum(counts)), 1e-9)
    np.fill_diagonal(rates, 0.0)
    return list_pairs(rates, classes)


def list_ambiguous(evidence: Evidence, classes: Sequence[str]) -> list[ClassPair]:
    """Between which classes heads hesitate: sum p_a p_b of the one class's samples, as a share."""
    doubt = np.sum([report["doubt"] for report in evidence.concluded.values()], axis=0)
    total = np.asarray(doubt, np.float64)
    own = np.diagonal(total)
    shares = 2 * total / np.maximum(own[:, None] + own, 1e-9)
    return list_pairs(np.triu(shares, 1), classes)


def list_pairs(values: Floats, classes: Sequence[str]) -> list[ClassPair]:
    """The largest entries, largest first."""
    order = np.argsort(-values, axis=None, kind="stable")[:MOST_PAIRS]
    found = []
    for place in order.tolist():
        row, column = divmod(place, len(classes))
        if values[row, column] >= LEAST_PAIR:
            found.append(ClassPair(classes[row], classes[column], float(values[row, column])))
    return found


def pair_twins(evidence: Evidence, scenario: Scenario) -> Iterator[Twins]:
    """Near duplicates by the rows of the dataset."""
    shards: Mapping[ClientId, Sequence[int]] = {
        client: scenario.shard(client).tolist() for client in evidence.clients
    }
    for found in evidence.duplicates:
        row = shards[found.client][found.place]
        other = shards[found.other][found.other_place]
        same = bool(scenario.given[row] == scenario.given[other])
        yield Twins(row, found.client, other, found.other, found.bits, same)


__all__ = ["OPINIONS", "weigh_evidence"]
