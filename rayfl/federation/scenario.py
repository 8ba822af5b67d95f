"""The scenario: who owns which sample, with which given and which true label. Built once, hashed,
saved, re-used.

One seed drives every draw through streams with names of their own, so that a change of the noise
leaves the partition, and a change of the partition leaves the server's sets, exactly as they were.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.errors import ConfigError, DataError, broken
from rayfl.federation.arrays import Floats, Ints
from rayfl.federation.dataset import Dataset
from rayfl.federation.datasets import data_root
from rayfl.federation.scenario_store import (
    make_header,
    make_tables,
    read_fields,
    read_header,
    write_artefact,
)
from rayfl.federation.split import Role, cap_rows, split_training_set
from rayfl.federation.views import Assignment, Noise, Pool, Truth

if TYPE_CHECKING:
    from typing_extensions import Self

    from rayfl.federation.plan import FederationPlan

STREAMS = ("split", "partition", "noise", "labelled_noise", "public_noise", "test")
"""The kinds of decision that have random numbers of their own. Append only: the place is part of
the seed."""

TaskList = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class DatasetReference:
    """Which dataset a scenario is about: what people call it, the mapping that loads it, the hash
    of its content."""

    name: str
    spec: Mapping[str, Any]
    sha256: str


@dataclass(frozen=True, eq=False)
class Scenario:
    """A federation as data. Row i of `owner`, `given` and `true` is sample i of the dataset's
    training set.

    owner    client ids from 0 up, or a `Role`
    given    the labels that methods see; outside noisy sets they equal the dataset's
    true     what the labels should be, or None where nobody knows; metrics based on truth are then absent
    nominal  the noise rate that each client was meant to have, nan where its noise has no such
    notion
    tasks    per client the classes it is meant to learn, where the partition has a notion of it
    test     rows of the dataset's test set, or None for all of it
    plan     the settings it was built from, for the record; not part of the hash
    """

    dataset: DatasetReference
    classes: tuple[str, ...]
    seed: int
    owner: NDArray[np.int32]
    given: Ints
    true: Ints | None
    nominal: Floats
    tasks: TaskList | None = None
    test: Ints | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_lengths(self)
        _check_values(self)
        for name in ("owner", "given", "true", "nominal", "test"):
            array = getattr(self, name)
            if array is not None:
                # A view of our own: read-only here, without touching the array of whoever made it.
                locked = array.view()
                locked.flags.writeable = False
                object.__setattr__(self, name, locked)

    @property
    def clients(self) -> int:
        """How many clients there are, those without samples included."""
        return len(self.nominal)

    @cached_property
    def by_owner(self) -> tuple[Ints, Ints]:
        """Rows sorted by owner and then by number, and where each owner's rows start (lowest role
        first)."""
        order = np.argsort(self.owner, kind="stable")
        starts = np.searchsorted(self.owner[order], np.arange(min(Role), self.clients + 1))
        order.flags.writeable = False
        return order, starts

    def indices(self, owner: int) -> Ints:
        """The sorted rows of a client or of a `Role`."""
        if not min(Role) <= owner < self.clients:
            raise DataError(
                broken(
                    f"clients are numbered 0 to {self.clients - 1}, roles {min(Role)} to -1", owner
                )
            )
        order, starts = self.by_owner
        place = owner - min(Role)
        return order[starts[place] : starts[place + 1]]

    def shard(self, client: int) -> Ints:
        """The sorted rows that a client owns."""
        if client < 0:
            raise DataError(broken(f"a shard belongs to a client, 0 to {self.clients - 1}", client))
        return self.indices(client)

    def sizes(self) -> Ints:
        """How many samples each client owns."""
        return self.count_by_client(np.ones(len(self.owner), dtype=np.bool_))

    def count_by_client(self, mask: NDArray[np.bool_]) -> Ints:
        """How many samples under `mask` each client owns."""
        return np.bincount(self.owner[mask & (self.owner >= 0)], minlength=self.clients)

    def class_counts(self, labels: Ints) -> Ints:
        """Clients x classes: how many of each class, by these labels, a client holds."""
        held = self.owner >= 0
        cells = self.owner[held].astype(np.int64) * len(self.classes) + labels[held]
        return np.bincount(cells, minlength=self.clients * len(self.classes)).reshape(
            self.clients, -1
        )

    @property
    def correct(self) -> NDArray[np.bool_] | None:
        """Which given labels are right; None without true labels."""
        return None if self.true is None else self.given == self.true

    @property
    def realised(self) -> Floats | None:
        """The share of wrong labels on each client, nan for an empty one; None without true
        labels."""
        if self.correct is None:
            return None
        sizes = self.sizes()
        return np.where(
            sizes > 0, self.count_by_client(~self.correct) / np.maximum(sizes, 1), np.nan
        )

    def noise_rate(self, role: Role | None = None) -> float | None:
        """The share of wrong labels over all clients, or in one of the server's sets; None if
        unknown or empty."""
        rows = self.owner >= 0 if role is None else self.owner == role
        if self.correct is None or not rows.any():
            return None
        return float(1 - self.correct[rows].mean())

    def correct_only(self) -> Scenario:
        """The same clients without their wrongly labelled samples: what an oracle would train
        on."""
        if self.correct is None:
            raise DataError(
                broken(
                    "leaving out wrong labels needs true labels", "a scenario with labels: given"
                )
            )
        owner = np.where((self.owner >= 0) & ~self.correct, Role.UNUSED, self.owner).astype(
            np.int32
        )
        return dataclasses.replace(self, owner=owner)

    def truly_labelled(self) -> Scenario:
        """The same samples with true labels everywhere: the reference without noise."""
        if self.true is None:
            raise DataError(
                broken(
                    "a scenario without noise needs true labels", "a scenario with labels: given"
                )
            )
        return dataclasses.replace(self, given=self.true)

    @cached_property
    def sha256(self) -> str:
        """One hash of all that a run can depend on, equal on every machine; it includes the
        dataset's."""
        facts = [
            self.dataset.sha256,
            self.classes,
            self.seed,
            self.tasks,
            self.true is None,
            self.test is None,
        ]
        digest = hashlib.sha256(json.dumps(facts).encode())
        # Rates are rounded because the last bit of a computed float is the one thing that may
        # differ by platform.
        rates = np.where(np.isnan(self.nominal), np.nan, np.round(self.nominal, 9))
        for array, dtype in (
            (self.owner, "<i4"),
            (self.given, "<i8"),
            (self.true, "<i8"),
            (self.test, "<i8"),
        ):
            digest.update(
                b"" if array is None else f"{len(array)};".encode() + array.astype(dtype).tobytes()
            )
        digest.update(rates.astype("<f8").tobytes())
        return digest.hexdigest()

    def check_against(self, dataset: Dataset) -> None:
        """Refuse a dataset other than the one that the scenario was built on, naming what
        differs."""
        expected = {
            "training samples": len(self.owner),
            "classes": self.classes,
            "sha256": self.dataset.sha256,
        }
        found = {
            "training samples": len(dataset.train),
            "classes": dataset.classes,
            "sha256": dataset.sha256,
        }
        for what, value in expected.items():
            if found[what] != value:
                rule = f"the dataset of this scenario ('{self.dataset.name}') has {what} {value}"
                remedy = (
                    f"Load the one it was built on: data: {json.dumps(dict(self.dataset.spec))}"
                )
                raise DataError(broken(rule, f"{found[what]} in '{dataset.name}'", remedy))

    def save(self, directory: Path) -> None:
        """Write the artefact: `scenario.json`, `samples.parquet`, `clients.parquet` and, if capped,
        `test.parquet`."""
        write_artefact(directory, make_header(self), make_tables(self))

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read an artefact and verify that it is whole and unchanged."""
        header = read_header(directory)
        try:
            dataset = DatasetReference(**header["dataset"])
            found = cls(dataset=dataset, **read_fields(directory, header))
        except (KeyError, TypeError, ValueError) as error:
            rule = f"the scenario in {directory} must be complete"
            raise DataError(
                broken(rule, f"{type(error).__name__}: {error}", "Build it again.")
            ) from error
        if found.sha256 != header.get("sha256"):
            rule = f"the content of the scenario in {directory} must hash to {header.get('sha256')}"
            raise DataError(
                broken(rule, found.sha256, "Its files were changed or mixed up; build it again.")
            )
        return found


def _check_lengths(scenario: Scenario) -> None:
    """Every per-sample array covers the training set, every per-client one the clients."""
    samples, clients = len(scenario.owner), len(scenario.nominal)
    for name in ("given", "true"):
        labels = getattr(scenario, name)
        if labels is not None and len(labels) != samples:
            raise DataError(broken(f"scenario: one {name} label a sample ({samples})", len(labels)))
    if scenario.tasks is not None and len(scenario.tasks) != clients:
        raise DataError(broken(f"scenario: one task a client ({clients})", len(scenario.tasks)))


def _check_values(scenario: Scenario) -> None:
    """Owners are roles or clients, labels are classes."""
    ranges = {"owner": (int(min(Role)), len(scenario.nominal)), "given": (0, len(scenario.classes))}
    ranges["true"] = ranges["given"]
    for name, (low, high) in ranges.items():
        array = getattr(scenario, name)
        if array is not None and len(array) and not (low <= array.min() and array.max() < high):
            row = int(np.flatnonzero((array < low) | (array >= high))[0])
            raise DataError(
                broken(f"scenario: {name} lies in [{low}, {high})", f"{array[row]} at sample {row}")
            )


def open_federation(plan: FederationPlan, seed: int) -> tuple[Dataset, Scenario]:
    """The dataset of a plan with its scenario: the saved one that it names, or a new one."""
    dataset = plan.data.load(plan.data_root or data_root())
    if plan.scenario is None:
        return dataset, build_scenario(plan, dataset, seed)
    scenario = Scenario.load(plan.scenario)
    scenario.check_against(dataset)
    if scenario.clients != plan.clients:
        raise ConfigError(broken(f"clients is {scenario.clients} in {plan.scenario}", plan.clients))
    return dataset, scenario


def build_scenario(plan: FederationPlan, dataset: Dataset, seed: int) -> Scenario:
    """Draw the federation that a plan describes: split, deal out, corrupt labels."""
    truth, classes, recorded = dataset.train.y, dataset.classes, plan.recorded()
    parts = split_training_set(truth, classes, plan.split, open_stream(seed, "split"))
    dealt = _deal_pool(plan, dataset, parts.pool, open_stream(seed, "partition"))
    owner = np.full(len(truth), Role.UNUSED, dtype=np.int32)
    owner[parts.pool] = dealt.owner
    for role, rows in parts.server().items():
        owner[rows] = role
    given = truth.copy()
    held = np.flatnonzero(owner >= 0)
    view = _view_truth(dataset, held, owner[held].astype(np.int64), plan.clients, dealt.tasks)
    nominal = _corrupt_labels(given, plan.noise, view, open_stream(seed, "noise"))
    for name, rows in (("labelled_noise", parts.labelled), ("public_noise", parts.public)):
        if len(rows):
            _corrupt_labels(
                given,
                getattr(plan, name),
                _view_truth(dataset, rows, np.zeros_like(rows), 1),
                open_stream(seed, name),
            )
    cap = plan.split.test_samples
    tested = cap_rows(dataset.test.y, classes, cap, open_stream(seed, "test"), "split.test_samples")
    return Scenario(
        dataset=DatasetReference(dataset.name, recorded["data"], dataset.sha256),
        classes=classes,
        seed=seed,
        owner=owner,
        given=given,
        true=truth if plan.labels == "true" else None,
        nominal=nominal,
        tasks=dealt.tasks,
        test=None if cap is None else tested,
        plan=recorded,
    )


def open_stream(seed: int, name: str) -> np.random.Generator:
    """The random numbers for one kind of decision, independent of those for every other kind."""
    if seed < 0:
        raise ConfigError(broken("a seed is 0 or more", seed))
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(STREAMS.index(name),)))


def _deal_pool(
    plan: FederationPlan, dataset: Dataset, pool: Ints, rng: np.random.Generator
) -> Assignment:
    """Let the partition deal out the pool, and hold it to its word."""
    if plan.clients > len(pool):
        remedy = "Use fewer clients, or smaller server sets and larger caps under 'split'."
        raise ConfigError(
            broken(f"clients is at most the {len(pool)} samples to deal out", plan.clients, remedy)
        )
    groups = None if dataset.train.groups is None else dataset.train.groups[pool]
    dealt = plan.partition.assign(
        Pool(dataset.train.y[pool], len(dataset.classes), plan.clients, groups), rng
    )
    _refuse_outside("a partition's owner", dealt.owner, len(pool), Role.UNUSED, plan.clients)
    return dealt


def _view_truth(
    dataset: Dataset, rows: Ints, owner: Ints, clients: int, tasks: TaskList | None = None
) -> Truth:
    """What a noise model sees of these rows; their pixels only if it asks."""
    labels = dataset.train.y[rows]
    return Truth(
        labels, owner, rows, clients, len(dataset.classes), lambda: dataset.train.x[rows], tasks
    )


def _corrupt_labels(given: Ints, noise: Noise, view: Truth, rng: np.random.Generator) -> Floats:
    """Write a noise model's labels into `given` at the rows that it saw; answers the nominal
    rates."""
    corrupted = noise.corrupt(view, rng)
    _refuse_outside("a noise's given label", corrupted.given, len(view.labels), 0, view.classes)
    if corrupted.nominal.shape != (view.clients,):
        rule = f"a noise's nominal rate is one a client, shape ({view.clients},)"
        raise DataError(
            broken(rule, corrupted.nominal.shape, "Give nan where there is no such rate.")
        )
    given[view.position] = corrupted.given
    return corrupted.nominal


def _refuse_outside(what: str, values: Ints, length: int, low: int, high: int) -> None:
    """Hold a component, perhaps a user's own, to one value per sample within [low, high)."""
    if values.shape != (length,) or values.dtype.kind not in "iu":
        rule = f"{what} is one whole number a sample, shape ({length},)"
        raise DataError(broken(rule, f"{values.dtype} of shape {values.shape}"))
    if length and not (low <= values.min() and values.max() < high):
        raise DataError(
            broken(f"{what} lies in [{low}, {high})", f"{values.min()} to {values.max()}")
        )
