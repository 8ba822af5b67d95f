"""BatchNorm statistics of one model, measured anew on the images of many (static BatchNorm of
SemiFL: Diao, Ding and Tarokh, NeurIPS 2022; HeteroFL, ICLR 2021).

    mu = mean over batches of the batch means,   var = mean over batches of the unbiased variances

Every layer sees its own batch alone, so what clients measure, averaged by how many batches they
have, is one pass over all of their batches: one map, and an exact mean, which has the same bits
wherever the clients are visited. Clients send their statistics, not the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from rayfl.arrays import Ints, Vector
from rayfl.learn.resident import Resident
from rayfl.protocol import SERVER, Client, ClientId, Fleet, Out, Ref, Shard

Norm = nn.modules.batchnorm._BatchNorm


def measure_statistics(
    client: Client,
    *,
    w: Vector,
    batch_size: int,
    data: Shard | None = None,
) -> Out:
    """Cumulative statistics of one pass over a client's images, or the server's of a named set.

    Parameters
    ----------
    client
        Whose images are passed, as they are and in their order.
    w
        The model.
    batch_size
        Images in a batch; a last, shorter one counts as much as the others.
    data
        Other images.
    """
    visitor = client if data is None else client.on(data)
    learner = client.learner
    resident = learner.resident(w)
    places = find_statistics(resident)
    if not len(places) or not len(visitor):
        return Out({"batches": 0})
    learner.probe(visitor.x)
    # momentum None averages over the batches of this pass: the counters begin at 0 with the load.
    batches = 0
    with torch.no_grad(), _measuring(resident.net):
        for start in range(0, len(visitor), batch_size):
            images = visitor.x[start : start + batch_size]
            if len(images) < learner.smallest_batch:
                continue
            resident.net(learner.normalise(learner.pixels(images)))
            batches += 1
    if not batches:
        return Out({"batches": 0})
    return Out({"batches": batches}, update={"statistics": resident.dump()[places]})


def put_statistics(client: Client, *, w: Vector, statistics: Vector) -> Out:
    """The model with these statistics in the place of its own."""
    measured = w.copy()
    measured[find_statistics(client.learner.shape_of())] = statistics
    return Out(update=measured)


def remeasure_statistics(
    fleet: Fleet,
    w: Ref,
    clients: Iterable[ClientId],
    named: str | None = None,
    batch_size: int = 250,
) -> Ref:
    """The model with statistics of these clients' images, and of a named set of the server's.

    A network without running statistics stays as it is.

    Parameters
    ----------
    fleet
        The clients and the server.
    w
        The model.
    clients
        Whose images count; may be nobody's where a set is named.
    named
        A set at the server, such as `labelled`.
    batch_size
        Images in a batch. SemiFL: 250.
    """
    visited = [*clients, *([] if named is None else [SERVER])]
    each = {} if named is None else {SERVER: {"data": fleet.data(named)}}
    if not visited:
        return w
    got = fleet.map(
        measure_statistics,
        visited,
        each=each,
        w=w,
        batch_size=batch_size,
    )
    batches = {client: float(report["batches"]) for client, report in got.items()}
    # By batches, not by samples: that is what one pass over all of them would do.
    weights = {client: count for client, count in batches.items() if count}
    if not weights:
        return w
    mean = got.mean(weights, "statistics")
    return fleet.serve(put_statistics, w=w, statistics=mean)["w"]


def find_statistics(network: Resident) -> Ints:
    """Positions of BatchNorm's running statistics in the flat vector.

    Parameters
    ----------
    network
        `client.learner.shape_of()`.
    """
    running = [
        id(buffer)
        for norm in _list_norms(network.net)
        for buffer in (norm.running_mean, norm.running_var)
    ]
    spans = [home.span for home in network.homes if id(home.tensor) in running]
    pieces = [np.arange(span.start, span.stop) for span in spans]
    return np.concatenate([np.empty(0, dtype=np.int64), *pieces])


def _list_norms(net: nn.Module) -> list[Norm]:
    """The layers that keep running statistics."""
    norms = [module for module in net.modules() if isinstance(module, Norm)]
    return [norm for norm in norms if norm.running_mean is not None]


@contextmanager
def _measuring(net: nn.Module) -> Iterator[None]:
    """Statistics begin anew and average over batches; nothing else of the network is in training.

    The network serves the next client too: momenta are put back however the pass ends.
    """
    norms = _list_norms(net)
    momenta = [norm.momentum for norm in norms]
    net.train()
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None
        yield
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
