"""What rounds cost, counted by hand from the papers' algorithms: sample passes forward and back, at
clients and at the server, and bytes down and up, exactly.

FedRN's Table 8 and the costs of FedCorr, FedNoRo, FedLN-AKD, RHFL, IFCA-PFL, FOCUS, Client
Selection, ClipFL and DivideMix's epochs are held beside the other tests of these methods, FedCR's
bytes in test_fedcr_rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rayfl.fleet.base import BaseFleet
from rayfl.run.engine import Outcome
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedcr_toy import SMALL, TOY as SERVER_NOISE
from tests.algorithms.semi_toys import SERVED, STRONG

NUMBER = 4
"""Bytes."""
FEATURES, CLASSES, HIDDEN = 64, 4, 16
TRUNK = NUMBER * (FEATURES * HIDDEN + HIDDEN)
MODEL = TRUNK + NUMBER * (HIDDEN * CLASSES + CLASSES)
EPOCHS = SERVER_EPOCHS = 2


@dataclass(frozen=True)
class Costs:
    """Of one round."""

    forward: int
    backward: int
    server_forward: int = 0
    server_backward: int = 0
    down: int = 0
    up: int = 0


@dataclass(frozen=True)
class Facts:
    """What a round's costs are counted in.

    n        images of the clients that take part
    whole    of them, those in whole batches
    k        clients that take part
    served   images that the server learns from, or scores with
    metrics  what the method logged
    """

    n: int
    whole: int
    k: int
    served: int
    metrics: Mapping[str, float]

    @property
    def labels(self) -> int:
        """Passes of the server over its labels."""
        return SERVER_EPOCHS * self.served


Count = Callable[[Facts], Costs]


@dataclass(frozen=True)
class Case:
    """A method's costs in one round.

    name    of the method
    method  its settings
    count   what the paper's algorithm costs
    config  what else the toy federation needs
    t       the round
    held    the set at the server
    """

    name: str
    method: Mapping[str, Any]
    count: Count
    config: Mapping[str, Any] = field(default_factory=dict)
    t: int = 0
    held: str = "labelled"

    def __str__(self) -> str:
        return self.name


def fedavg(facts: Facts) -> Costs:
    """Every image once an epoch; the model to and from each client."""
    passes = EPOCHS * facts.n
    return Costs(passes, passes, down=facts.k * MODEL, up=facts.k * MODEL)


def two_views(facts: Facts) -> Costs:
    """The weak and the strong view of every image in one pass; FedAvg's traffic."""
    passes = 2 * EPOCHS * facts.n
    sent = facts.k * MODEL
    return Costs(passes, passes, facts.labels, facts.labels, sent, sent)


def semifl(facts: Facts) -> Costs:
    """The global model judges every image once; of the sure ones, all here, the strong view and the
    mixture go through. Everybody gets the new model once more, for the statistics that it has."""
    passes = 2 * EPOCHS * facts.n
    sent = facts.k * MODEL
    return Costs(facts.n + passes, passes, facts.labels, facts.labels, 2 * sent, sent)


def fl2(facts: Facts) -> Costs:
    """Of the images above their thresholds: the gradient at W, the one at W*, and the step's."""
    chosen = round(facts.metrics["pseudo/chosen"] * facts.n)
    passes = 3 * EPOCHS * chosen
    sent = facts.k * MODEL
    # tau of each client.
    up = sent + NUMBER * facts.k
    return Costs(facts.n + passes, passes, facts.labels, facts.labels, 2 * sent, up)


def fedcon(facts: Facts) -> Costs:
    """Two views through the online network and two through its target, at both; the trunk alone
    travels."""
    views = 2 * EPOCHS * facts.n
    sent = facts.k * TRUNK
    return Costs(2 * views, views, 4 * facts.labels, 2 * facts.labels, sent, sent)


def rscfed(facts: Facts) -> Costs:
    """Student and teacher; only the student's way goes back."""
    passes = EPOCHS * facts.n
    sent = facts.k * MODEL
    return Costs(2 * passes, passes, facts.labels, facts.labels, sent, sent)


def fedmatch(facts: Facts) -> Costs:
    """Weak and strong view; sigma and psi down, what has changed of psi's matrices up; the server
    looks at one image by every client's model."""
    passes = 2 * EPOCHS * facts.n
    down = facts.k * 2 * MODEL
    matrices = NUMBER * (FEATURES * HIDDEN + HIDDEN * CLASSES)
    up = round(facts.k * facts.metrics["sparse/sent"] * matrices)
    return Costs(passes, passes, facts.labels + facts.k, facts.labels, down, up)


def fedmatch_with_helpers(facts: Facts) -> Costs:
    """And two helpers' psi for each client, whose answers are asked about the weak view."""
    alone = fedmatch(facts)
    asked = 2 * EPOCHS * facts.n
    more = {"forward": alone.forward + asked, "down": alone.down + facts.k * 2 * MODEL}
    return Costs(**{**vars(alone), **more})


LATENT = 8
ANCHOR_HEAD = NUMBER * (HIDDEN * HIDDEN + HIDDEN + HIDDEN * LATENT + LATENT)


def fedanchor(facts: Facts) -> Costs:
    """SemiFL's clients; the server's latents take one pass more. Down: the network with its anchor
    head, and a mean latent of each class; up: without the head."""
    passes = 2 * EPOCHS * facts.n
    down = facts.k * (MODEL + ANCHOR_HEAD + NUMBER * CLASSES * LATENT)
    looked = facts.served + facts.labels
    return Costs(facts.n + passes, passes, looked, facts.labels, down, facts.k * MODEL)


NORMS = NUMBER * 4 * HIDDEN
"""gamma, beta, mean and variance of each channel, and no count of batches."""
CONVOLUTION = NUMBER * (9 * HIDDEN + HIDDEN)
NORMED_HEAD = NUMBER * (HIDDEN * 4 * 4 * CLASSES + CLASSES)
NORMED = {"model": {"name": "cnn4", "widths": [HIDDEN], "track_running_stats": True}}


def semifl_normed(facts: Facts) -> Costs:
    """With BatchNorm everybody passes its images once more, and sends statistics."""
    plain = semifl(facts)
    model = CONVOLUTION + NORMS + NORMED_HEAD
    return Costs(
        plain.forward + facts.n,
        plain.backward,
        plain.server_forward + facts.served,
        plain.server_backward,
        2 * facts.k * model,
        facts.k * (model + NORMS // 2),
    )


VALIDATION = 40
ANSWERS = NUMBER * CLASSES * VALIDATION
CLUSTER = 3
"""Clients of each of two tasks."""


def clipfl_joined(facts: Facts) -> Costs:
    """FedAvg, and every returned model on the server's clean images."""
    plain = fedavg(facts)
    return Costs(**{**vars(plain), "server_forward": facts.k * facts.served})


def rhfl_joined(facts: Facts) -> Costs:
    """Up: the answers to every public image and Lbar. Down: those of the cluster's others, and
    which images are asked about, twice but for the first batch. Each client looks once at its own
    images and at every public one, and trains on both."""
    back = facts.k * facts.served + EPOCHS * facts.n
    asked = facts.k * facts.served + facts.n
    rows = NUMBER * 2 * facts.served
    down = facts.k * ((CLUSTER - 1) * ANSWERS + rows)
    return Costs(back + asked, back, down=down, up=facts.k * (ANSWERS + NUMBER))


FIXMATCH = {"name": "fixmatch", "strong": STRONG, "threshold": 0.0}
UDA = {"name": "uda", "strong": STRONG, "threshold": 0.0}
PROX = {"name": "fedprox", "mu": 0.01}
AVERAGED = {"name": "semi_supervised", "server_epochs": SERVER_EPOCHS}


def named(name: str, **more: Any) -> dict[str, Any]:
    """A method of the server's labels, whose clients believe every guess."""
    return {"name": name, "server_epochs": SERVER_EPOCHS, **more}


TASKS = {
    "partition": {"name": "tasks", "tasks": [[0, 1], [2, 3]]},
    "split": {"validation": {"per_class": VALIDATION // CLASSES}},
    "training": {"clients_per_round": 6},
}
CLIPFL = {"name": "clipfl_personal", "warmup": 9}
RHFL = {"name": "rhfl", "public": "validation"}
FEDCORR = {"name": "fedcorr", "iterations": 9, "visits": 1}


def joined(host: Mapping[str, Any]) -> dict[str, Any]:
    """FB-NLL, whose labels are corrected before the first round, with another method within."""
    encoders = {"clustering_encoder": "pixels", "correction_encoder": "pixels"}
    return {"name": "fb_nll", "host": host, **encoders}


SURE = {"threshold": 0.0, "strong": STRONG}
CASES = [
    Case("symce", {"name": "fedavg", "loss": "symce"}, fedavg),
    Case("logitclip", {"name": "fedavg", "loss": "logitclip"}, fedavg),
    Case("fedavg_fixmatch", {**AVERAGED, "local": FIXMATCH}, two_views, SERVED),
    Case("fedprox_fixmatch", {**AVERAGED, "local": FIXMATCH, "host": PROX}, two_views, SERVED),
    Case("fedavg_uda", {**AVERAGED, "local": UDA}, two_views, SERVED),
    Case("fedprox_uda", {**AVERAGED, "local": UDA, "host": PROX}, two_views, SERVED),
    Case("ssfl", named("ssfl", local=FIXMATCH), two_views, SERVED),
    Case("semifl", named("semifl", **SURE), semifl, SERVED),
    Case("fl2", named("fl2", **SURE), fl2, SERVED),
    Case("fedcon", named("fedcon"), fedcon, SERVED),
    Case("rscfed", named("rscfed"), rscfed, SERVED),
    Case("fedmatch", named("fedmatch", confidence=0.0, strong=STRONG), fedmatch, SERVED),
    Case(
        "fedmatch_with_helpers",
        named("fedmatch", confidence=0.0, strong=STRONG, interval=2, lambda_l2=0.001),
        fedmatch_with_helpers,
        {**SERVED, "training": {**SERVED["training"], "clients_per_round": 6}},
        t=1,
    ),
    Case("fedanchor", named("fedanchor", latent=LATENT, **SURE), fedanchor, SERVED),
    Case("semifl_normed", named("semifl", **SURE), semifl_normed, {**SERVED, **NORMED}),
    Case("clipfl+fb_nll", joined(CLIPFL), clipfl_joined, TASKS, t=1, held="validation"),
    Case("rhfl+fb_nll", joined(RHFL), rhfl_joined, TASKS, t=1, held="validation"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_round_costs_what_its_algorithm_says(case: Case, tmp_path: Path) -> None:
    row = Row(case.name, case.method, case.config)
    outcome, fleet = run_toy(shortened(toy_config(row, tmp_path), case.t + 1))
    assert read_costs(outcome, case.t) == case.count(read_facts(case, outcome, fleet))


def read_costs(outcome: Outcome, t: int) -> Costs:
    """What the run counted."""
    metrics = outcome.history[t]["metrics"]
    names = ("forward", "backward", "server_forward", "server_backward")
    passes = [int(metrics[f"cost/{name}"]) for name in names]
    sent = [round(1e6 * metrics[f"cost/{way}_mb"]) for way in ("down", "up")]
    return Costs(*passes, *sent)


def read_facts(case: Case, outcome: Outcome, fleet: BaseFleet) -> Facts:
    """The clients of a round, and what the server has."""
    cohort = fleet.sample(case.t)
    served = fleet.sets.get(case.held, 0)
    metrics = outcome.history[case.t]["metrics"]
    sizes = [fleet.size(client) for client in cohort]
    batch = fleet.training.batch_size
    whole = sum(size - size % batch for size in sizes)
    return Facts(sum(sizes), whole, len(cohort), served, metrics)


def test_fedcorr_within_clusters_visits_one_client_of_each(tmp_path: Path) -> None:
    """Epochs and one pass for the outputs; a model down, a model and a dimension up."""
    row = Row("fedcorr+fb_nll", joined(FEDCORR), TASKS)
    outcome, _ = run_toy(shortened(toy_config(row, tmp_path), 2))
    found = read_costs(outcome, 1)
    assert outcome.history[1]["metrics"]["clients/participants"] == 2
    assert found.backward > 0
    assert EPOCHS * found.forward == (EPOCHS + 1) * found.backward
    assert (found.server_forward, found.server_backward) == (0, 0)
    assert (found.down, found.up) == (2 * MODEL, 2 * (MODEL + NUMBER))


ONE_SIDED = {"regulariser": "byol", "symmetric": False}
FEDCR = {**SMALL, "pretraining": 0, "server_epochs": SERVER_EPOCHS}


@pytest.mark.parametrize(
    ("more", "server", "client"),
    [
        # Two views through theta and one through xi at the server, whose classifier sees the batch;
        # at a client a view, its target, and sigma's answer, of which the view alone goes back.
        ({}, (3, 2), (3, 1)),
        ({"supervised": "ce"}, (3, 2), (3, 1)),
        ({"ema": 0.0}, (3, 2), (3, 1)),
        ({"whole_model": True}, (3, 2), (3, 1)),
        ({"name": "fedcr_fedema"}, (3, 2), (3, 1)),
        ({"client_classifier": "none"}, (3, 2), (2, 1)),
        (ONE_SIDED, (3, 2), (2, 1)),
        # Both directions: two views through each of the networks.
        ({"regulariser": "byol"}, (5, 3), (4, 2)),
    ],
    ids=str,
)
def test_passes_of_fedcrs_rounds(
    more: dict[str, Any], server: tuple[int, int], client: tuple[int, int], tmp_path: Path
) -> None:
    row = Row("fedcr", {"name": "fedcr", **FEDCR, **more}, SERVER_NOISE)
    outcome, fleet = run_toy(shortened(toy_config(row, tmp_path), 1))
    facts = read_facts(Case("fedcr", row.method, fedavg), outcome, fleet)
    found = read_costs(outcome, 0)
    own, labels = EPOCHS * facts.whole, facts.labels
    assert facts.served % 16 == 0
    assert (found.forward, found.backward) == (client[0] * own, client[1] * own)
    served = (found.server_forward, found.server_backward)
    assert served == (server[0] * labels, server[1] * labels)
