"""How right returned models look on images of the server's own, whose labels it knows.

Models are asked where they lie: the coordinator gets two numbers of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

from rayfl.learn.judge import judge
from rayfl.protocol import Client, ClientId, DataRef, Out, Replies, Shard, Vector


class ModelScore(NamedTuple):
    """Of one model on the server's images; both nan where an answer is not finite."""

    accuracy: float
    loss: float
    """The mean cross-entropy of a sample."""


def score(server: Client, *, w: Vector, held: Shard, **others: Vector) -> Out:
    """Accuracy and mean loss of an update, in evaluation mode and with its own statistics.

    Parameters
    ----------
    server
        Where it is examined.
    w
        The update.
    held
        The server's images and labels.
    others
        What else its client left.
    """
    judged = judge(server.on(held), w)
    # Weights can be finite and answers not: such a model has no accuracy, rather than that of its
    # first nan.
    if not np.isfinite(judged.logits).all():
        return Out({"accuracy": math.nan, "loss": math.nan})
    return Out({"accuracy": judged.accuracy, "loss": float(judged.losses.mean())})


def score_updates(got: Replies, held: DataRef) -> dict[ClientId, ModelScore]:
    """The score of every update of a map, by client.

    Parameters
    ----------
    got
        The replies of the map.
    held
        The server's set, which the method's `needs` name with its labels.
    """
    reports = got.examine(score, held=held)
    return {k: ModelScore(report["accuracy"], report["loss"]) for k, report in reports.items()}


def rank_by_accuracy(accuracies: Mapping[ClientId, float]) -> list[ClientId]:
    """Clients from the best to the worst; of equals the lower id is better, nan is the worst.

    Parameters
    ----------
    accuracies
        By client.

    Examples
    --------
    >>> rank_by_accuracy({0: 0.62, 1: 0.35, 2: 0.62, 3: float("nan")})
    [0, 2, 1, 3]
    """

    def find_rank(client: ClientId) -> tuple[float, ClientId]:
        accuracy = accuracies[client]
        return (math.inf if math.isnan(accuracy) else -accuracy), client

    return sorted(accuracies, key=find_rank)


def count_share(share: float, total: int) -> int:
    """ceil(share * total), whatever the last bit of the product says.

    Parameters
    ----------
    share
        Between 0 and 1.
    total
        Of how many.

    Examples
    --------
    >>> count_share(0.55, 100), count_share(0.5, 5), count_share(0.0, 5)
    (55, 3, 0)
    """
    return math.ceil(share * total - 1e-9)


def fill_unknown(
    values: Mapping[ClientId, float], clients: Iterable[ClientId]
) -> dict[ClientId, float]:
    """The values of these clients; those without one get the mean of the others, 0 without any.

    Parameters
    ----------
    values
        By client.
    clients
        Of whom a value is wanted.

    Examples
    --------
    >>> fill_unknown({0: 0.25, 2: 0.75}, range(3))
    {0: 0.25, 1: 0.5, 2: 0.75}
    """
    typical = float(np.mean(list(values.values()))) if values else 0.0
    return {client: values.get(client, typical) for client in clients}
