"""Label noise towards a class outside the client's task (FB-NLL, Sec. II)."""

from __future__ import annotations

from typing import Literal

import numpy as np

from rayfl.component import component
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Bools, Floats, Ints
from rayfl.federation.noise.rates import Constant, Rate
from rayfl.federation.noise.selection import draw_class, draw_quota, mark_first, round_down
from rayfl.federation.partition.dealing import shuffle_by_key
from rayfl.federation.views import Corruption, Truth


@component
class TaskNoise:
    """floor(alpha n) samples of each client get one class that is outside its task, drawn once a
    client.

    `independent` takes them from all of its samples, so that one of another task which already
    bears that class stays right. `dependent` uses up the task's classes one after the other, in
    random order; samples of other tasks are never taken. `redraw` draws the wrong class anew for
    each sample."""

    mode: Literal["independent", "dependent"] = "independent"
    alpha: Rate = Constant(value=0.25)
    redraw: bool = False

    def corrupt(self, truth: Truth, rng: np.random.Generator) -> Corruption:
        inside = _make_task_table(truth)
        nominal = self.alpha.per_client(truth.clients, rng)
        targets = draw_class(~inside, np.arange(truth.clients), rng)
        take = _mark_from_all if self.mode == "independent" else _mark_class_by_class
        picked = np.flatnonzero(take(truth, inside, nominal, rng))
        given = truth.labels.copy()
        owner = truth.owner[picked]
        given[picked] = draw_class(~inside, owner, rng) if self.redraw else targets[owner]
        return Corruption(given, nominal)


def _make_task_table(truth: Truth) -> Bools:
    """A table (clients, classes) of who is to learn what."""
    if truth.tasks is None:
        raise ConfigError(
            broken(
                "noise 'task' needs a partition with tasks", "one without", "Use partition: tasks"
            )
        )
    inside = np.zeros((truth.clients, truth.classes), np.bool_)
    for client, task in enumerate(truth.tasks):
        inside[client, list(task)] = True
    full = np.flatnonzero(inside.all(axis=1))
    if len(full):
        raise ConfigError(
            broken(
                "noise 'task' needs a class outside each task", f"all classes for client {full[0]}"
            )
        )
    return inside


def _mark_from_all(truth: Truth, inside: Bools, rates: Floats, rng: np.random.Generator) -> Bools:  # noqa: ARG001
    return draw_quota(truth.owner, _count_quotas(truth, rates), rng)


def _mark_class_by_class(
    truth: Truth, inside: Bools, rates: Floats, rng: np.random.Generator
) -> Bools:
    """Marks that exhaust a random class of the task before they touch the next."""
    # in [0, 1) inside the task and in [1, 2) outside: a random order with all of the task first
    liking = rng.random(inside.shape) + ~inside
    turn = np.argsort(np.argsort(liking, axis=1), axis=1)[truth.owner, truth.labels]
    own = truth.owner[inside[truth.owner, truth.labels]]
    # a large alpha ends with the task's samples instead of reaching into other tasks'
    quota = np.minimum(_count_quotas(truth, rates), np.bincount(own, minlength=truth.clients))
    return mark_first(truth.owner, shuffle_by_key(truth.owner * truth.classes + turn, rng), quota)


def _count_quotas(truth: Truth, rates: Floats) -> Ints:
    return round_down(rates, np.bincount(truth.owner, minlength=truth.clients))
