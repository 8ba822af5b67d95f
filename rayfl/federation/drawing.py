"""The steps of drawing a scenario: what a dataset knows of the truth, who gets which sample, which
label is given; each holds a component, perhaps a user's own, to its word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from numpy.random import Generator

from rayfl.errors import ConfigError, DataError, broken
from rayfl.federation.arrays import Floats, Ints
from rayfl.federation.dataset import Dataset
from rayfl.federation.interfaces import Assignment, Noise, Pool, Truth
from rayfl.federation.names import open_register
from rayfl.federation.scenario_checks import refuse_foreign_tasks, refuse_outside
from rayfl.federation.split import Role

if TYPE_CHECKING:
    from rayfl.federation.plan import FederationPlan
    from rayfl.federation.scenario_checks import TaskList


def find_truth(plan: FederationPlan, dataset: Dataset) -> Ints | None:
    """The true labels of a training set: its labels, those beside them, or None."""
    told = dataset.train.truth
    if plan.own_labels == "given":
        return told
    if told is not None:
        rule = "labels: true takes the labels of the data for the truth"
        found = "data that name another"
        raise ConfigError(broken(rule, found, "Leave out labels, or truth of the data"))
    return dataset.train.y


def deal_pool(
    plan: FederationPlan,
    dataset: Dataset,
    rows: Ints,
    rng: Generator,
) -> Assignment:
    """Let the partition deal out the pool, and hold it to its word."""
    if plan.clients > len(rows):
        rule = f"clients is at most the {len(rows)} samples to deal out"
        remedy = "Use fewer clients, or smaller server sets and larger caps under 'split'."
        raise ConfigError(broken(rule, plan.clients, remedy))
    classes = len(dataset.classes)
    groups = None if dataset.train.groups is None else dataset.train.groups[rows]
    pool = Pool(
        labels=dataset.train.y[rows],
        classes=classes,
        clients=plan.clients,
        groups=groups,
        sites=dataset.sites,
        rows=rows,
        register=open_register(dataset),
    )
    dealt = plan.partition.assign(pool, rng)
    refuse_outside("a partition's owner", dealt.owner, len(rows), Role.UNUSED, plan.clients)
    if dealt.tasks is not None:
        refuse_foreign_tasks("a partition's task", dealt.tasks, classes)
    return dealt


def view_truth(
    dataset: Dataset,
    rows: Ints,
    owner: Ints,
    clients: int,
    tasks: TaskList | None = None,
) -> Truth:
    """What a noise model sees of these rows; their pixels only if it asks."""
    return Truth(
        labels=dataset.train.y[rows],
        owner=owner,
        position=rows,
        clients=clients,
        classes=len(dataset.classes),
        images=lambda: dataset.train.x[rows],
        tasks=tasks,
    )


def corrupt_labels(
    given: Ints,
    noise: Noise,
    view: Truth,
    rng: Generator,
) -> Floats:
    """Write a noise model's labels into `given` at the rows that it saw; answers the nominal
    rates."""
    corrupted = noise.corrupt(view, rng)
    refuse_outside("a noise's given label", corrupted.given, len(view.labels), 0, view.classes)
    if corrupted.nominal.shape != (view.clients,):
        rule = f"a noise's nominal rate is one a client, shape ({view.clients},)"
        remedy = "Give nan where there is no such rate."
        raise DataError(broken(rule, corrupted.nominal.shape, remedy))
    given[view.position] = corrupted.given
    return corrupted.nominal
