"""What every scenario must hold: lengths that fit, owners, labels and tasks that exist, rates that
are shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints
from rayfl.federation.bounds import check_bounds
from rayfl.federation.split import Role

if TYPE_CHECKING:
    from rayfl.federation.scenario import Scenario

TaskList = tuple[tuple[int, ...], ...]


def check_lengths(scenario: Scenario) -> None:
    """Every per-sample array covers the training set, every per-client one the clients."""
    samples = len(scenario.owner)
    for name in ("given", "true"):
        labels = getattr(scenario, name)
        if labels is not None and len(labels) != samples:
            raise DataError(broken(f"scenario: one {name} label a sample ({samples})", len(labels)))
    per_client = (("task", scenario.tasks), ("name", scenario.client_names))
    for what, values in per_client:
        if values is not None and len(values) != scenario.clients:
            rule = f"scenario: one {what} a client ({scenario.clients})"
            raise DataError(broken(rule, len(values)))
    if scenario.names is not None and len(scenario.names.names) != samples:
        rule = f"scenario: one name a sample ({samples})"
        raise DataError(broken(rule, len(scenario.names.names)))


def check_values(scenario: Scenario) -> None:
    """Owners are roles or clients, labels and tasks are classes, rates are shares."""
    classes = len(scenario.classes)
    check_bounds("scenario: owner lies", scenario.owner, min(Role), scenario.clients, "sample")
    check_bounds("scenario: given lies", scenario.given, 0, classes, "sample")
    if scenario.true is not None:
        check_bounds("scenario: true lies", scenario.true, 0, classes, "sample")
    if scenario.tasks is not None:
        refuse_foreign_tasks("scenario: a task", scenario.tasks, classes)
    rates = scenario.nominal
    # What is computed from a matrix of probabilities may miss 0 and 1 by a rounding.
    outside = np.flatnonzero((rates < -1e-9) | (rates > 1 + 1e-9))
    if len(outside):
        client = int(outside[0])
        rule = "scenario: nominal lies in [0, 1]"
        raise DataError(broken(rule, f"{rates[client]} at client {client}"))


def refuse_foreign_tasks(
    what: str,
    tasks: TaskList,
    classes: int,
) -> None:
    """Refuse a task with a class that does not exist; a negative one would count from the end."""
    for client, task in enumerate(tasks):
        for c in task:
            if not 0 <= c < classes:
                rule = f"{what} names classes in [0, {classes})"
                raise DataError(broken(rule, f"{c} for client {client}"))


def refuse_outside(
    what: str,
    values: Ints,
    length: int,
    low: int,
    high: int,
) -> None:
    """Hold a component, perhaps a user's own, to one value per sample within [low, high)."""
    if values.shape != (length,) or values.dtype.kind not in "iu":
        rule = f"{what} is one whole number a sample, shape ({length},)"
        raise DataError(broken(rule, f"{values.dtype} of shape {values.shape}"))
    if length and not (low <= values.min() and values.max() < high):
        rule = f"{what} lies in [{low}, {high})"
        raise DataError(broken(rule, f"{values.min()} to {values.max()}"))
