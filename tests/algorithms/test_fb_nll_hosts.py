"""FB-NLL with other methods within its clusters: the joins of its Tables IX to XI."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.algorithms.fb_nll import Clustered, FbNll, FbNllMinus
from rayfl.algorithms.fedprox import FedProx
from rayfl.algorithms.rhfl import RHFL
from rayfl.algorithms.scaffold import Scaffold
from rayfl.config.schema import load_config
from rayfl.errors import ConfigError
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.losses.gce import GeneralisedCrossEntropy
from rayfl.models.encoders.pixels import Pixels
from rayfl.protocol import Algorithm, ClientId
from rayfl.run.features import share_features
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.toys import toy_fleet

CONFIGS = Path(__file__).parents[2] / "configs"
TASKS: dict[str, Any] = {"partition": {"name": "tasks", "tasks": [[0, 1], [2, 3]]}}
CLEAN: dict[str, Any] = {"split": {"validation": {"per_class": 10}}}
OWN_PARTITION = {"odd federation": "a partition of its own"}
MINUS: dict[str, Any] = {"name": "fb_nll_minus", "clustering_encoder": "pixels"}
FULL: dict[str, Any] = {
    "name": "fb_nll",
    "clustering_encoder": "pixels",
    "correction_encoder": "pixels",
}
EQUAL_PROX = {"name": "fedprox", "weighting": "equal"}
ON_CLEAN = {"name": "rhfl", "public": "validation"}
LONG: dict[str, Any] = {"training": {"rounds": 16, "clients_per_round": 6}}
BRIEF: dict[str, Any] = {"training": {"rounds": 3}}

ROWS = [
    Row(
        "fb_nll_fedprox",
        {**FULL, "host": EQUAL_PROX},
        config={**TASKS, **CLEAN},
        untried=OWN_PARTITION,
        neutral={**FULL, "host": {**EQUAL_PROX, "mu": 0.0}},
        same_as=FULL,
        refused=[
            ({"host": "fedproxy"}, "unknown method 'fedproxy'"),
            ({"correct_after": -1}, "correct_after"),
        ],
    ),
    # Without tasks, so that it also meets the odd federation; a host with a state of its clients.
    Row("fb_nll_minus_scaffold", {**MINUS, "host": "scaffold"}),
    Row(
        "rhfl_fb_nll",
        {**FULL, "host": ON_CLEAN},
        config={**TASKS, **CLEAN, **LONG},
        brief=BRIEF,
        untried=OWN_PARTITION,
        # RHFL is slow to start.
        floor=0.7,
    ),
    Row(
        "rhfl_fb_nll_after",
        {**FULL, "host": ON_CLEAN, "correct_after": 2, "models": 3},
        config={**CLEAN, **LONG},
        brief=BRIEF,
        # Clusters of a few clients that have nothing in common.
        floor=0.5,
    ),
]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[InlineFleet]:
    """A federation whose places have the features that FB-NLL asks for."""
    row = Row("toy", FULL, config={**TASKS, **CLEAN})
    config = toy_config(row, tmp_path, training={"clients_per_round": 6})
    made = toy_fleet(config)
    share_features(config.method, made, "toy", made.shape, tmp_path, lambda _: None)
    made.round = -1
    yield made
    made.close()


def play(method: FbNllMinus, fleet: InlineFleet, rounds: int = 3, **known: Any) -> list[Clustered]:
    """The state before the first round, with what is known of it, and after each."""
    fleet.round = -1
    states = [replace(method.init(fleet, fleet.initial()), **known)]
    if known:
        first = method.within(states[0].clusters).init(fleet, fleet.initial())
        states[0] = replace(states[0], states=first)
    for fleet.round in range(rounds):
        states.append(method.round(states[-1], fleet, fleet.round))
    return states


def models_of(method: Algorithm, state: Any, fleet: InlineFleet) -> dict[ClientId, list[float]]:
    return {k: fleet.get(method.model(state, fleet, k)).tolist() for k in fleet.clients}


@pytest.mark.parametrize("host", [FedProx(), Scaffold(), RHFL(public="validation")])
def test_one_cluster_is_the_host_alone(host: Algorithm, fleet: InlineFleet) -> None:
    """To the bit, once clusters are known: to find them takes visits, and a second visit of a round
    draws other numbers than a first."""
    method = FbNllMinus(models=1, clustering_encoder=Pixels(), host=host)
    clustered = play(method, fleet, clusters=dict.fromkeys(fleet.clients, 0))[-1]
    found = models_of(method, clustered, fleet)
    fleet.table.clear()
    fleet.round = -1
    state = host.init(fleet, fleet.initial())
    for fleet.round in range(3):
        state = host.round(state, fleet, fleet.round)
    assert found == models_of(host, state, fleet)


@pytest.mark.parametrize("host", [FedProx(), RHFL(public="validation")])
@pytest.mark.parametrize("after", [1, 2])
def test_a_correction_that_changes_nothing_leaves_the_host_as_it_was(
    host: Algorithm, after: int, fleet: InlineFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit by bit: it comes at a round's end, where no visit of the host's comes after it."""
    same: dict[str, Any] = {"clustering_encoder": Pixels(), "host": host}
    plain = play(FbNllMinus(**same), fleet)[-1]
    expected = models_of(FbNllMinus(**same), plain, fleet)
    fleet.table.clear()

    def change_nothing(given: Any, *more: Any, **named: Any) -> Any:
        raise AssertionError("every class is recognised as itself")

    monkeypatch.setattr("rayfl.algorithms.fb_nll.find_nearest_class", change_nothing)
    monkeypatch.setattr("rayfl.algorithms.fb_nll.relabel_class", Unchanged(fleet))
    method = FbNll(**same, correction_encoder=Pixels(), correct_after=after)
    corrected = play(method, fleet)[-1]
    assert corrected.corrected
    assert all("y" in fleet.table[k] for k in fleet.clients)
    assert models_of(method, corrected, fleet) == expected


class Unchanged:
    """Phase 1 that recognises every class as itself: asked label by label, client by client."""

    def __init__(self, fleet: InlineFleet) -> None:
        given = fleet.executor.holdings
        labels = [np.unique(given.y[given.rows(k)]) for k in fleet.clients]
        self.answers = iter(np.concatenate(labels).tolist())

    def __call__(self, similar: Any, tau: float) -> int:
        return int(next(self.answers))


@pytest.mark.parametrize("after", [0, 1, 2])
def test_labels_are_corrected_once_and_when_they_are_due(after: int, fleet: InlineFleet) -> None:
    method = FbNll(
        clustering_encoder=Pixels(),
        correction_encoder=Pixels(),
        host=RHFL(public="validation"),
        correct_after=after,
    )
    fleet.round = -1
    state = method.init(fleet, fleet.initial())
    logged = []
    for fleet.round in range(3):
        state = method.round(state, fleet, fleet.round)
        logged.append("correction/changed" in fleet.take_logged())
        # RHFL never edits labels: what FB-NLL made of them stays.
        assert ("y" in fleet.table[0]) == (fleet.round + 1 >= max(after, 1))
    assert logged == [t == max(after - 1, 0) for t in range(3)]


def test_the_rounds_before_a_later_correction_are_the_same(fleet: InlineFleet) -> None:
    found = []
    for after in (2, 3):
        method = FbNll(
            clustering_encoder=Pixels(), correction_encoder=Pixels(), correct_after=after
        )
        states = play(method, fleet)
        found.append([models_of(method, state, fleet) for state in states])
        fleet.table.clear()
    assert found[0][:3] == found[1][:3]
    assert found[0][3] != found[1][3]


def test_the_first_weights_of_teachers_do_not_depend_on_the_correction(fleet: InlineFleet) -> None:
    """W of the first round is 1 / (K - 1) within each cluster of three."""
    host = RHFL(public="validation")
    same: dict[str, Any] = {"clustering_encoder": Pixels(), "host": host}
    for method in (FbNllMinus(**same), FbNll(**same, correction_encoder=Pixels())):
        play(method, fleet, rounds=1)
        assert set(fleet.take_estimates()["confidence"].values()) == {0.5}


# -- what a host asks for --------------------------------------------------------------------------


def test_a_host_asks_through_fb_nll() -> None:
    minus = FbNllMinus(host=RHFL(public="validation"))
    assert minus.needs == {"validation": "images"}
    assert FbNll(host=RHFL(public="validation")).needs == {"validation": "labels"}
    assert FbNll(host=RHFL()).needs == {"public": "images", "validation": "labels"}
    assert (minus.client_labels, minus.labels, minus.personal) == (True, "given", True)


def test_a_loss_takes_the_place_of_the_hosts() -> None:
    gce = GeneralisedCrossEntropy()
    assert FbNllMinus(host=RHFL(), loss=gce).within({}).host == RHFL(loss=gce)
    assert FbNllMinus(host=RHFL()).within({}).host == RHFL()


@pytest.mark.parametrize(
    ("method", "match"),
    [
        ({**MINUS, "host": MINUS}, "FbNllMinus, which looks for clusters itself"),
        ({**MINUS, "host": "oracle", "models": 7}, "number of clients with data"),
        ({**MINUS, "host": "rhfl"}, "needs the set 'public'"),
        ({**MINUS, "host": "fedcr", "loss": "gce"}, "FedCR, which has no such setting"),
        ({**MINUS, "host": {"name": "fedprox", "mu": 9.0}}, "below 1; got 9"),
    ],
)
def test_hosts_that_cannot_work_are_refused_before_the_first_round(
    method: dict[str, Any], match: str, tmp_path: Path
) -> None:
    sets = {"split": {"labelled": {"per_class": 10}}} if "fedcr" in str(method) else {}
    with pytest.raises(ConfigError, match=match):
        run_toy(shortened(toy_config(Row("bad", method, config={**TASKS, **sets}), tmp_path), 1))


# -- configurations --------------------------------------------------------------------------------


def test_a_host_by_default_is_not_part_of_a_runs_identity() -> None:
    known = load_config(CONFIGS / "methods" / "fb_nll.yaml")
    spelled = load_config(
        CONFIGS / "methods" / "fb_nll.yaml",
        ["method.host={name: fedavg, weighting: equal}", "method.correct_after=0"],
    )
    other = load_config(CONFIGS / "methods" / "fb_nll.yaml", ["method.host=fedavg"])
    assert spelled.digest == known.digest != other.digest


@pytest.mark.parametrize("name", ["rhfl", "rhfl_fb_nll"])
def test_configurations_share_their_federation(name: str) -> None:
    config = load_config(CONFIGS / "methods" / f"{name}.yaml")
    assert config.recorded() == load_config(CONFIGS / "methods" / "single_global.yaml").recorded()
