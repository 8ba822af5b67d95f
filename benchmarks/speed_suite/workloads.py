"""The workloads: a rayfl configuration each, from which the arrays of every system are made once
and saved."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speed_suite.federation import FEDAVG, Federation, Settings
from speed_suite.plain import NETWORKS, TEST_BATCH, images, network_of
from speed_suite.rayfl_system import merged

Config = dict[str, Any]


def cache() -> Path:
    """Where arrays, references and the peers' environments are kept."""
    return Path(os.environ.get("RAYFL_BENCH", Path.home() / ".cache" / "rayfl" / "bench"))


@dataclass(frozen=True)
class Workload:
    """One task.

    rounds     how many each system runs, by its name; `""` is for all that are not named
    warmup     rounds that are not timed
    tolerance  by how much accuracies may differ, and the distance from the initial weights by what
    share
    systems    who runs it unless the command line says otherwise
    """

    key: str
    title: str
    network: str
    config: Config
    rounds: Mapping[str, int]
    warmup: Mapping[str, int]
    systems: tuple[str, ...]
    tolerance: tuple[float, float] = (0.02, 0.05)
    quick: Config = field(default_factory=dict)

    def rounds_of(self, system: str) -> int:
        return self.rounds.get(system, self.rounds[""])

    def warmup_of(self, system: str) -> int:
        return min(self.warmup.get(system, self.warmup[""]), self.rounds_of(system) - 1)


EVERYBODY = ("bare1", "bare2", "naive", "flower", "pfl", "rayfl")
MNIST: Config = {
    "data": "mnist",
    "clients": 100,
    "partition": "iid",
    "model": "mnist_cnn_wide",
    "training": {
        "clients_per_round": 10,
        "epochs": 5,
        "batch_size": 64,
        "lr": 0.1,
        "momentum": 0.0,
    },
}
CIFAR: Config = {
    "data": "cifar10",
    "clients": 100,
    "partition": {"name": "dirichlet", "alpha": 0.5, "min_size": 64},
    "split": {"test_samples": {"total": 4096}},
    "model": {"name": "cnn4", "widths": [64, 128, 256, 256]},
    # A last batch of one or two images would throw batch norm far off, in some systems' shuffles
    # and not in others'.
    "training": {
        "clients_per_round": 10,
        "epochs": 1,
        "batch_size": 64,
        "drop_last": True,
        "lr": 0.01,
        "momentum": 0.0,
    },
}


def tiny(clients: int, cohort: int) -> Config:
    """Clients of 20 samples of 64 grey values: one step of one batch each, so that shuffling
    changes nothing."""
    return {
        "data": {
            "name": "blobs",
            "samples": 20 * clients,
            "test_samples": 2000,
            "side": 8,
            "spread": 0.5,
        },
        "clients": clients,
        "partition": "iid",
        "model": {"name": "mlp", "hidden": [64]},
        "training": {
            "clients_per_round": cohort,
            "epochs": 1,
            "batch_size": 20,
            "lr": 0.5,
            "momentum": 0.0,
        },
    }


RESIDUAL: Config = {
    "data": {
        "name": "blobs",
        "samples": 320,
        "test_samples": 512,
        "side": 32,
        "channels": 3,
        "spread": 0.4,
    },
    "clients": 40,
    "partition": "iid",
    "model": {"name": "resnet18", "stem": "imagenet", "track_running_stats": False},
    "training": {"clients_per_round": 8, "epochs": 1, "batch_size": 8, "lr": 0.01, "momentum": 0.0},
}
METHODS: Config = merged(
    MNIST,
    {
        "noise": {"name": "symmetric", "rate": 0.4},
        "split": {"public": {"total": 600}, "test_samples": {"total": 4096}},
        "training": {"epochs": 1},
    },
)

ON_W3: Mapping[str, tuple[str, Config]] = {
    "fedprox": ("FedProx", {"method": {"name": "fedprox", "mu": 0.05}}),
    "scaffold": ("SCAFFOLD", {"method": {"name": "scaffold", "option": "II"}}),
    "gce": (
        "FedAvg, loss gce",
        {"method": {"name": "fedavg", "loss": {"name": "gce", "gamma": 0.7}}},
    ),
    "fedds": (
        "FedDS",
        {
            "method": {
                "name": "fedds",
                "weighting": "speed_suite.watched:TimedDawidSkeneWeighting",
            },
            # Clients keep their 20 samples each.
            "data": {"samples": 20 * 1000 + 200},
            "split": {"public": {"total": 200}},
        },
    ),
}
"""The methods that run on W3 beside federated averaging, each against a plain loop that runs it
too."""


def on_w3(method: str) -> Workload:
    """W3 with another method."""
    title, changes = ON_W3[method]
    return Workload(
        f"w3-{method}",
        title,
        "tiny_mlp",
        merged(tiny(1000, 100), changes),
        {"": 400, "rayfl-stacked": 1200} if method != "fedds" else {"": 200},
        {"": 50},
        ("bare2", "rayfl-stacked"),
    )


WORKLOADS: dict[str, Workload] = {
    workload.key: workload
    for workload in (
        Workload(
            "w1",
            "MNIST, two 5x5 convolutions; 100 clients of 600, 10 a round, 5 epochs, batch 64",
            "mnist_cnn",
            MNIST,
            {"": 2},
            {"": 0, "flower": 1, "pfl": 1},
            ("bare1", "bare2", "flower", "pfl", "rayfl", "rayfl-bf16"),
            quick={"training": {"epochs": 1}},
        ),
        Workload(
            "w2",
            "CIFAR-10, four 3x3 convolutions, batch norm; 100 clients (Dirichlet 0.5), 10 a round, "
            "1 epoch, batch 64",
            "cifar_cnn",
            CIFAR,
            {"": 2},
            {"": 0, "flower": 1, "pfl": 1},
            ("bare2", "pfl", "rayfl", "rayfl-bf16"),
            tolerance=(0.06, 0.10),
            quick={"split": {"client_samples": {"total": 20000}}},
        ),
        Workload(
            "w3",
            "1,000 clients of 20, 100 a round, MLP 64-64-10, one step of 20",
            "tiny_mlp",
            tiny(1000, 100),
            {"": 400, "rayfl-stacked": 1200, "naive": 60, "flower": 12},
            {"": 50, "naive": 10, "flower": 2},
            (*EVERYBODY, "rayfl-stacked"),
        ),
        *map(on_w3, ON_W3),
        Workload(
            "w4",
            "10,000 clients of 20, 200 a round, MLP 64-64-10, one step of 20",
            "tiny_mlp",
            tiny(10000, 200),
            {"": 200, "rayfl-stacked": 600, "naive": 40, "flower": 6},
            {"": 30, "naive": 10, "flower": 1},
            (*EVERYBODY, "rayfl-stacked"),
        ),
        Workload(
            "w5",
            "ResNet-18 (11 M parameters, 45 MB), 40 clients of 8 small images, 8 a round, "
            "one step of 8",
            "resnet18",
            RESIDUAL,
            # Ray's store hands out fresh memory for a dozen rounds before it has some to use again.
            {"": 28, "flower": 10},
            {"": 14, "flower": 2},
            ("bare2", "naive", "flower", "pfl", "rayfl", "rayfl-channels-first", "rayfl-reached"),
            # A step of a whole shard is the same everywhere, but rounding grows through 18 layers
            # of batch norm.
            tolerance=(0.10, 0.05),
        ),
        Workload(
            "w6",
            "W1 with 40 % wrong labels and 1 epoch: what FedDS (600 public images) and FedRN "
            "(k = 2) cost over FedAvg",
            "mnist_cnn",
            METHODS,
            {"": 7},
            {"": 2},
            ("fedavg", "fedds", "fedrn"),
            quick={"split": {"client_samples": {"total": 20000}}},
        ),
    )
}


def quickened(workload: Workload) -> Workload:
    """A smaller variant for a first look: less work a client, fewer rounds; less is learnt, and
    less evenly."""
    rounds = {
        name: max(2, count // (1 if count < 30 else 2)) for name, count in workload.rounds.items()
    }
    warmup = {name: (count + 1) // 2 for name, count in workload.warmup.items()}
    title = (
        f"{workload.title} (quick: {json.dumps(workload.quick)})"
        if workload.quick
        else f"{workload.title} (quick)"
    )
    config = merged(workload.config, workload.quick)
    wider = (3 * workload.tolerance[0], 2 * workload.tolerance[1])
    return replace(
        workload, title=title, config=config, rounds=rounds, warmup=warmup, tolerance=wider
    )


# -- arrays ----------------------------------------------------------------------------------------


def prepared(workload: Workload, root: Path | None = None) -> Path:
    """The folder of a workload's arrays, made on first use."""
    from rayfl.config.schema import validate_config

    config = validate_config({**workload.config, "fleet": "inline"})
    rounds = max(workload.rounds.values())
    folder = (root or cache()) / "workloads" / f"{workload.key}-{config.digest[:12]}-{rounds}"
    if (folder / "settings.json").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(workload.config))
    federation = federation_of(workload, config, rounds)
    refuse_other_network(workload, config, federation)
    federation.save(folder)
    return folder


def federation_of(workload: Workload, config: Any, rounds: int) -> Federation:
    """What rayfl will see, as plain arrays: its scenario, its cohorts, its initial weights."""
    from rayfl.federation.scenario import open_federation
    from rayfl.fleet.inline import InlineFleet
    from rayfl.run.assembly import build_holdings, build_spec

    dataset, scenario = open_federation(config, config.seeds_for("data"))
    holdings = build_holdings(config, dataset, scenario)
    spec = build_spec(config, dataset, scenario, "cpu")
    fleet = InlineFleet(spec, holdings)
    first = holdings.offsets[0]
    last = holdings.offsets[-1]
    rows = holdings.order[first:last]
    network = spec.make_learner().build()
    training = config.training
    test = holdings.sets["test"]
    assert test.y is not None
    return Federation(
        x=holdings.x[rows],
        y=holdings.y[rows],
        offsets=holdings.offsets - first,
        test_x=test.x,
        test_y=test.y,
        cohorts=np.array([fleet.sample(t) for t in range(rounds)], dtype=np.int64),
        initial=[parameter.detach().contiguous().numpy() for parameter in network.parameters()],
        settings=Settings(
            workload.network,
            len(scenario.classes),
            training.lr,
            training.momentum,
            training.epochs,
            training.batch_size,
            training.drop_last,
            workload.config.get("method", FEDAVG),
        ),
        public_x=holdings.sets["public"].x if "public" in holdings.sets else None,
    )


@torch.no_grad()
def refuse_other_network(workload: Workload, config: Any, federation: Federation) -> None:
    """The plain network must compute the same function as rayfl's."""
    assert workload.network in NETWORKS
    height, width, channels = federation.test_x.shape[1:]
    theirs = config.model.build((height, width, channels), federation.settings.classes)
    for parameter, array in zip(theirs.parameters(), federation.initial, strict=True):
        parameter.copy_(torch.from_numpy(array))
    x = images(federation.test_x[:TEST_BATCH])
    torch.testing.assert_close(
        network_of(federation).eval()(x),
        theirs.eval()(x),
        rtol=1e-4,
        atol=1e-4,
    )
