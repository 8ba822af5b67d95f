"""Label noise towards a class outside the client's task (FB-NLL, Sec. II)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.random import Generator

from rayfl.component import component
from rayfl.errors import ConfigError, broken
from rayfl.federation.arrays import Bools, Floats, Ints
from rayfl.federation.interfaces import Corruption, Truth
from rayfl.federation.noise.rates import Constant, Rate
from rayfl.federation.noise.selection import draw_class, draw_quota, mark_first, round_down
from rayfl.federation.partition.dealing import shuffle_by_key


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

    def corrupt(self, truth: Truth, rng: Generator) -> Corruption:
        inside = _make_task_table(truth)
        nominal = self.alpha.per_client(truth.clients, rng)
        clients = np.arange(truth.clients)
        targets = draw_class(~inside, clients, rng)
        if self.mode == "independent":
            quota = _count_quotas(truth, nominal)
            marks = draw_quota(truth.owner, quota, rng)
        else:
            marks = _mark_class_by_class(truth, inside, nominal, rng)
        picked = np.flatnonzero(marks)
        owner = truth.owner[picked]
        given = truth.labels.copy()
        given[picked] = draw_class(~inside, owner, rng) if self.redraw else targets[owner]
        return Corruption(given, nominal)


def _make_task_table(truth: Truth) -> Bools:
    """A table (clients, classes) of who is to learn what."""
    if truth.tasks is None:
        rule = "noise 'task' needs a partition with tasks"
        raise ConfigError(broken(rule, "one without", "Use partition: tasks"))
    inside = np.zeros((truth.clients, truth.classes), np.bool_)
    for client, task in enumerate(truth.tasks):
        inside[client, list(task)] = True
    full = np.flatnonzero(inside.all(axis=1))
    if len(full):
        rule = "noise 'task' needs a class outside each task"
        raise ConfigError(broken(rule, f"all classes for client {full[0]}"))
    return inside


def _mark_class_by_class(
    truth: Truth,
    inside: Bools,
    rates: Floats,
    rng: Generator,
) -> Bools:
    """Marks that exhaust a random class of the task before they touch the next."""
    # In [0, 1) inside the task and in [1, 2) outside: a random order with all of the task first.
    liking = rng.random(inside.shape) + ~inside
    order = np.argsort(liking, axis=1)
    # The inverse of a permutation, by client: the turn of each class.
    turns = np.argsort(order, axis=1)
    owner, labels = truth.owner, truth.labels
    turn = turns[owner, labels]
    own = owner[inside[owner, labels]]
    # A large alpha ends with the task's samples instead of reaching into other tasks'.
    available = np.bincount(own, minlength=truth.clients)
    wanted = _count_quotas(truth, rates)
    quota = np.minimum(wanted, available)
    by_turn = shuffle_by_key(owner * truth.classes + turn, rng)
    return mark_first(owner, by_turn, quota)


def _count_quotas(truth: Truth, rates: Floats) -> Ints:
    sizes = np.bincount(truth.owner, minlength=truth.clients)
    return round_down(rates, sizes)
