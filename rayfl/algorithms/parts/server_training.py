"""Training at the server on its own labelled images: what methods with labels there share."""

from __future__ import annotations

from typing import Any

import numpy as np

from rayfl.errors import ConfigError, broken
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.base import CROSS_ENTROPY, SampleLoss
from rayfl.protocol import Client, Fleet, Out, Report, Shard, Vector


def train_on_labels(
    server: Client,
    *,
    w: Vector,
    memory: Vector | None,
    data: Shard,
    epochs: int,
    loss: SampleLoss = CROSS_ENTROPY,
    clip: float | None = None,
) -> Fitting[Out]:
    """Mini-batch descent on the server's labels; leaves `w`, and `optimiser` to go on from.

    Parameters
    ----------
    server
        Who trains.
    w
        Where it begins.
    memory
        The optimiser's memory of an earlier round.
    data
        The labelled set.
    epochs
        Passes over it.
    loss
        Of the labels.
    clip
        Largest norm of a gradient.
    """
    trained = yield Fit(
        w,
        loss=loss,
        client=server.on(data),
        settings=for_epochs(epochs),
        clip=clip,
        memory=memory,
        remember=True,
    )
    update = {"w": trained.weights, "optimiser": trained.memory}
    return Out({"steps": trained.steps}, update=update)


def for_epochs(epochs: int) -> dict[str, Any]:
    """Local settings for so many passes over the server's images.

    Parameters
    ----------
    epochs
        Passes; they take the place of the run's epochs or steps.
    """
    return {"epochs": epochs, "steps": None}


def refuse_idle_server(report: Report) -> None:
    """A server that finds no whole batch in its set would pass for one that learns nothing from it.

    Parameters
    ----------
    report
        Of the server's phase, with its `steps`.
    """
    if not report["steps"]:
        rule = (
            "the server's labelled set fills at least one batch (a whole one with "
            "training.drop_last)"
        )
        remedy = "Enlarge split.labelled, or reduce training.batch_size."
        raise ConfigError(broken(rule, "a set without one", remedy))


def refuse_unfit_labels(fleet: Fleet) -> None:
    """A labelled set that the server could never learn all classes from, or fill a batch with.

    Parameters
    ----------
    fleet
        Before the first round.
    """
    steps = fleet.training
    size = fleet.size("labelled")
    if steps.drop_last and size < steps.batch_size:
        rule = f"the server's labelled set fills a batch of {steps.batch_size}"
        remedy = "Enlarge split.labelled, or reduce training.batch_size."
        raise ConfigError(broken(rule, f"{size} images", remedy))
    counts = fleet.serve(count_labels, data=fleet.data("labelled")).report["counts"]
    missing = np.flatnonzero(counts == 0).tolist()
    if missing:
        rule = "the server has a labelled image of every class"
        remedy = "Raise split.labelled: what nobody labels, nobody can learn."
        raise ConfigError(broken(rule, f"none of class {', '.join(map(str, missing))}", remedy))


def count_labels(server: Client, *, data: Shard) -> Out:
    """How many of the set's labels each class has.

    Parameters
    ----------
    server
        Who counts.
    data
        The labelled set.
    """
    return Out({"counts": np.bincount(server.on(data).y, minlength=server.classes)})
