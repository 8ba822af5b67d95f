"""Training at the server on its own labelled images: what methods with labels there share."""

from __future__ import annotations

from typing import Any

from rayfl.errors import ConfigError, broken
from rayfl.protocol import Report


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
