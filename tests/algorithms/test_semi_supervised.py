"""FixMatch and UDA in averaging methods: who takes part, in which order, and what stays as it
was."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from rayfl.algorithms.semi_supervised import HOSTS, SemiSupervised, train_clipped
from rayfl.errors import ConfigError
from rayfl.learn.local_fit import Fit, Fitting, Trained
from rayfl.learn.losses.unlabelled import UnlabelledLoss
from rayfl.protocol import Client, Out
from tests.algorithms.conformance import Row, run_toy, toy_config
from tests.algorithms.semi_toys import SERVED, STRONG, run_row

FIXMATCH = {"name": "fixmatch", "strong": STRONG}
UDA = {"name": "uda", "strong": STRONG}
METHOD: dict[str, Any] = {"name": "semi_supervised", "server_epochs": 2, "local": FIXMATCH}
PROX = {"name": "fedprox", "mu": 0.01}
GCE = {"labels_loss": {"name": "gce", "gamma": 0.6}}
SGD: dict[str, Any] = {"training": {"optimizer": "sgd", "lr": 0.1}}
EAGER = {"local": {"threshold": 0.3}}
LEARNT = Trained(np.zeros(1, np.float32), steps=1, samples=1)
ALONE = {"name": "server_sl", "epochs": 2, "loss": "gce"}

ROWS = [
    Row(
        "fedavg_fixmatch",
        METHOD,
        SERVED,
        # Clients that believe nothing change nothing.
        neutral={**METHOD, **GCE, "local": {**FIXMATCH, "threshold": 1.1}},
        same_as=ALONE,
        refused=[
            ({"local": {"name": "fixmatch", "threshold": -1}}, "threshold"),
            ({"local": "ce"}, "unknown loss without labels 'ce'.*Known: fixmatch, uda"),
            ({"host": "fedrn"}, "unknown host 'fedrn'.*Known: fedavg, fedds, fedprox"),
            ({"host": {"name": "fedavg", "loss": "gce"}}, r"not the host's; got .*method\.local"),
            ({"server_epochs": 0}, "server_epochs"),
            ({"pretraining": -1}, "pretraining"),
            ({"annealing": "cubic"}, "annealing"),
        ],
    ),
    Row(
        "fedprox_fixmatch",
        {**METHOD, "host": PROX},
        SERVED,
        neutral={**METHOD, "host": {"name": "fedprox", "mu": 0.0}},
        same_as=METHOD,
    ),
    Row(
        "fedavg_uda",
        {**METHOD, "local": UDA},
        SERVED,
        neutral={**METHOD, **GCE, "local": {**UDA, "threshold": 1.0}},
        same_as=ALONE,
    ),
    Row(
        "fedprox_uda",
        {**METHOD, "host": PROX, "local": UDA, "pretraining": 2, "server_first": True},
        SERVED,
        neutral={**METHOD, "host": {"name": "fedprox", "mu": 0.0}, "local": UDA},
        same_as={**METHOD, "local": UDA},
    ),
]


@pytest.mark.parametrize("local", [FIXMATCH, UDA], ids=["fixmatch", "uda"])
@pytest.mark.parametrize("host", HOSTS.names())
def test_every_host_takes_every_loss(host: str, local: dict[str, Any], tmp_path: Path) -> None:
    """And clients teach it something: with guesses that count the model is another one."""
    more: dict[str, Any] = {"training": {"optimizer": "sgd", "lr": 0.1}}
    if host == "fedds":
        more["split"] = {"public": {"total": 40}}
    runs = [
        run_row(
            ROWS[0],
            tmp_path,
            name=str(threshold),
            method={"host": host, "local": {**local, "threshold": threshold}},
            **more,
        )
        for threshold in (0.3, 1.1)
    ]
    assert runs[0].sha256 != runs[1].sha256
    assert np.isfinite(runs[0].models[None]).all()


@pytest.mark.parametrize("host", HOSTS.names())
def test_clients_of_every_host_clip(host: str, tmp_path: Path) -> None:
    """So small a limit that nobody moves: sure clients end where clients in doubt do."""
    more = dict(SGD)
    if host == "fedds":
        more["split"] = {"public": {"total": 40}}
    runs = [
        run_row(
            ROWS[0],
            tmp_path,
            name=f"{threshold} {clip}",
            method={"host": host, "local": {"threshold": threshold}, "clip": clip},
            **more,
        ).models[None]
        for threshold, clip in ((0.0, 1e-7), (1.1, 1e-7), (0.0, None))
    ]
    assert np.abs(runs[0] - runs[1]).max() < 1e-5
    assert np.abs(runs[2] - runs[1]).max() > 1e-3


def test_a_limit_that_nothing_reaches_changes_nothing(tmp_path: Path) -> None:
    runs = [
        run_row(ROWS[0], tmp_path, name=str(clip), method={**EAGER, "clip": clip}, **SGD)
        for clip in (None, 1e6)
    ]
    assert runs[0].sha256 == runs[1].sha256
    costs = [
        {name: value for name, value in run.history[-1]["metrics"].items() if "cost/" in name}
        for run in runs
    ]
    assert costs[0] == costs[1]


def test_what_a_host_clips_more_itself_stays() -> None:
    def host(_: Any) -> Fitting[Out]:
        for clip in (None, 0.5, 2.0):
            yield Fit(np.zeros(1, np.float32), clip=clip)
        return Out({"over": True})

    running = train_clipped(cast(Client, None), clipped=host, limit=1.0)
    wishes = [next(running).clip, running.send(LEARNT).clip, running.send(LEARNT).clip]
    assert wishes == [1.0, 0.5, 1.0]
    with pytest.raises(StopIteration, match="over") as over:
        running.send(LEARNT)
    assert over.value.value == Out({"over": True})


def test_a_host_that_shows_labels_is_refused(tmp_path: Path) -> None:
    host = "rayfl.algorithms.oracle:CleanFedAvg"
    with pytest.raises(ConfigError, match=r"clients that show no labels; got CleanFedAvg"):
        run_toy(toy_config(ROWS[0], tmp_path, {**METHOD, "host": host}))


def test_a_pull_that_overshoots_is_the_hosts_to_refuse(tmp_path: Path) -> None:
    strong = {"host": {"name": "fedprox", "mu": 80.0}}
    with pytest.raises(ConfigError, match=r"mu \* training.lr of FedProx is below 1"):
        run_row(ROWS[0], tmp_path, method=strong, training={"optimizer": "sgd", "lr": 0.1})


def test_clients_rest_while_the_server_pretrains(tmp_path: Path) -> None:
    outcome = run_row(ROWS[0], tmp_path, 3, method={"pretraining": 3})
    metrics = [record["metrics"] for record in outcome.history]
    assert [found["server/pretraining"] for found in metrics] == [1, 1, 0]
    assert [found["clients/participants"] for found in metrics] == [0, 0, 4]
    # Two passes, the third, and a round's own two.
    assert [found["cost/server_backward"] for found in metrics] == [80, 40, 80]


def test_what_a_round_costs(tmp_path: Path) -> None:
    """Clients pass two views of every image, and what FedAvg sends is all that travels."""
    metrics = run_row(ROWS[0], tmp_path, 1).history[0]["metrics"]
    assert metrics["cost/backward"] <= metrics["cost/forward"]
    assert metrics["cost/server_forward"] == metrics["cost/server_backward"] == 80
    plain = run_row(Row("plain", {"name": "fedavg"}, SERVED), tmp_path, 1, name="plain").history[0][
        "metrics"
    ]
    assert metrics["cost/forward"] == 2 * plain["cost/forward"]
    for name in ("cost/up_mb", "cost/down_mb"):
        assert metrics[name] == plain[name]


def test_clients_in_doubt_pass_nothing_back(tmp_path: Path) -> None:
    outcome = run_row(ROWS[0], tmp_path, method={"local": {"threshold": 1.1}})
    assert [record["metrics"]["cost/backward"] for record in outcome.history] == [0, 0]


def test_the_server_first_is_another_order(tmp_path: Path) -> None:
    eager = {"local": {"threshold": 0.3}}
    both = [
        run_row(ROWS[0], tmp_path, name=str(first), method={"server_first": first, **eager})
        for first in (False, True)
    ]
    assert both[0].sha256 != both[1].sha256


@pytest.mark.parametrize("annealing", ["linear", "exp"])
def test_annealing_leaves_out_what_is_known(annealing: str, tmp_path: Path) -> None:
    plain = run_row(ROWS[0], tmp_path, name="none")
    other = run_row(ROWS[0], tmp_path, method={"annealing": annealing})
    assert plain.sha256 != other.sha256


def test_the_clients_loss_is_a_component() -> None:
    assert isinstance(SemiSupervised().local, UnlabelledLoss)
