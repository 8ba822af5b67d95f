"""Flower's simulation of the same federation: a ClientApp, a ServerApp, FedAvg, one processor a
client.

In Flower's favour: the network and the data stay in each worker from visit to visit, and nothing is
evaluated before the end. Flower draws the nodes of a round itself; which client's data a node
trains on comes with its message, so that the cohorts are the saved ones."""

# The peer lives in another environment than the one that is checked.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"

import numpy as np
import ray
import torch
from flwr.app import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
)
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from speed_suite.federation import Clock, Federation, answer, arguments
from speed_suite.plain import clock_of, images, labels, load, network_of, tested, train, versions

NODE = {
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    "init_args": {"num_cpus": 2, "logging_level": "error"},
}


# -- at the client ---------------------------------------------------------------------------------


@cache
def desk(folder: str) -> tuple[Federation, torch.nn.Module]:
    """What a worker keeps."""
    torch.set_num_threads(1)
    federation = Federation.load(Path(folder))
    return federation, network_of(federation)


def visit(message: Message, _: Context) -> Message:
    """Train one client from the weights of the message."""
    told = message.content["config"]
    federation, net = desk(str(told["folder"]))
    client = int(told["client"])
    # Two rounds with batches of chance end as much as two points apart.
    torch.manual_seed(int(told["round"]) * federation.clients + client)
    load(net, [torch.tensor(array.numpy()) for array in message.content["arrays"].values()])
    rows = federation.rows(client)
    train(
        net,
        images(federation.x[rows]),
        labels(federation.y[rows]),
        federation.settings,
    )
    metrics = MetricRecord({"num-examples": federation.size(client)})
    return Message(RecordDict({"arrays": arrays_of(net), "metrics": metrics}), reply_to=message)


def arrays_of(net: torch.nn.Module) -> ArrayRecord:
    return ArrayRecord(
        {name: Array(value.detach().numpy()) for name, value in net.named_parameters()}
    )


# -- at the server ---------------------------------------------------------------------------------


class Recorded(FedAvg):  # type: ignore[misc]
    """Flower's FedAvg with the saved cohorts, timed."""

    def __init__(self, federation: Federation, told: Namespace, clock: Clock) -> None:
        share = federation.cohorts.shape[1] / federation.clients
        super().__init__(
            fraction_train=share, fraction_evaluate=0.0, min_train_nodes=federation.cohorts.shape[1]
        )
        self.federation = federation
        self.told = told
        self.clock = clock

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round == 1:
            self.clock.begin()
        messages = list(super().configure_train(server_round, arrays, config, grid))
        cohort = self.federation.cohorts[server_round - 1].tolist()
        return [
            self.addressed(message, arrays, server_round, client)
            for message, client in zip(messages, cohort, strict=True)
        ]

    def addressed(
        self, message: Message, arrays: ArrayRecord, server_round: int, client: int
    ) -> Message:
        told = {"client": client, "round": server_round, "folder": str(self.told.folder)}
        config = ConfigRecord(told)
        content = RecordDict({"arrays": arrays, "config": config})
        return Message(
            content=content,
            message_type=MessageType.TRAIN,
            dst_node_id=message.metadata.dst_node_id,
        )

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        replies = list(replies)
        failed = [reply.error.reason for reply in replies if reply.has_error()]
        if failed:
            raise RuntimeError(f"round {server_round}: {len(failed)} clients failed: {failed[0]}")
        aggregated = super().aggregate_train(server_round, replies)
        self.clock.tick()
        return aggregated


def main() -> None:
    told = arguments()
    federation = Federation.load(told.folder)
    clock = clock_of(told)
    server = ServerApp()
    client = ClientApp()
    client.train()(visit)

    @server.main()  # type: ignore[untyped-decorator]
    def serve(grid: Grid, _: Context) -> None:
        net = network_of(federation)
        strategy = Recorded(federation, told, clock)
        result = strategy.start(
            grid=grid, initial_arrays=arrays_of(net), num_rounds=told.rounds, timeout=3600
        )
        load(net, [torch.from_numpy(np.array(array.numpy())) for array in result.arrays.values()])
        # The ServerApp starts beside Ray, so its first round waits for the workers: that wait is no
        # part of a round.
        clock.begun = clock.ends[0] - clock.facts()["seconds"]
        answer(**clock.facts(), **tested(federation, net), versions=versions(released("flwr"), ray))

    run_simulation(server, client, num_supernodes=federation.clients, backend_config=NODE)


def released(package: str) -> Any:
    """A stand-in with the version of a package that has none itself."""
    return Namespace(__name__=package, __version__=version(package))


if __name__ == "__main__":
    # Workers import by name what they run; out of `__main__` they cannot.
    from speed_suite.peers import flower

    flower.main()
