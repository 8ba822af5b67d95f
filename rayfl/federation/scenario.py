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
from numpy.random import Generator
from numpy.typing import NDArray

from rayfl.errors import ConfigError, DataError, broken
from rayfl.federation.arrays import Bools, Floats, Ints
from rayfl.federation.bounds import check_bounds
from rayfl.federation.dataset import Dataset
from rayfl.federation.datasets import find_data_root
from rayfl.federation.drawing import corrupt_labels, deal_pool, find_truth, view_truth
from rayfl.federation.hostile import Attack, draw_attack
from rayfl.federation.label_table import LabelTable, replace_labels
from rayfl.federation.names import SampleNames, name_dataset, open_register
from rayfl.federation.public_images import PublicImages, draw_public_images
from rayfl.federation.scenario_checks import (
    TaskList,
    check_lengths,
    check_values,
)
from rayfl.federation.scenario_store import (
    make_header,
    make_tables,
    read_fields,
    read_header,
    write_artefact,
)
from rayfl.federation.split import Role, cap_rows, split_training_set

if TYPE_CHECKING:
    from typing_extensions import Self

    from rayfl.federation.plan import FederationPlan

STREAMS = (
    "split",
    "partition",
    "noise",
    "labelled_noise",
    "public_noise",
    "test",
    "public_data",
    "hostile",
)
"""The kinds of decision that have random numbers of their own. Append only: the place is part of
the seed."""


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
    true     what the labels should be, or None where nobody knows; metrics based on truth are then
             absent
    nominal  the noise rate that each client was meant to have, nan where its noise has no such
             notion
    tasks    per client the classes it is meant to learn, where the partition has a notion of it
    test     rows of the dataset's test set, or None for all of it
    public   images of another dataset that are the server's public set, or None
    attack   who is hostile, and which rows they poisoned; None where nobody is
    plan     the settings it was built from, for the record; not part of the hash
    names    what the samples are called and where they are from, or None; not part of the hash
    client_names  what the clients are called, where the partition knows; not part of the hash
    replaced  the labels that those of a table took the place of, or None; not part of the hash
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
    public: PublicImages | None = None
    attack: Attack | None = None
    plan: Mapping[str, Any] = field(default_factory=dict)
    names: SampleNames | None = None
    client_names: tuple[str, ...] | None = None
    replaced: Ints | None = None

    def __post_init__(self) -> None:
        check_lengths(self)
        check_values(self)
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

    def name_client(self, client: int) -> str:
        """What a `client` is called; its number where it has no name."""
        return str(client) if self.client_names is None else self.client_names[client]

    def name_samples(self, rows: Ints) -> list[str]:
        """What the samples in these `rows` are called; their rows where they have no names."""
        named: list[Any] = (rows if self.names is None else self.names.names[rows]).tolist()
        return list(map(str, named))

    def name_sites(self, rows: Ints) -> list[str] | None:
        """Where the samples in these `rows` are from; None where nobody knows."""
        if self.names is None or self.names.site is None:
            return None
        return [self.names.sites[site] for site in self.names.site[rows].tolist()]

    def without_names(self) -> Scenario:
        """The same for places that train, which need neither names of samples nor earlier
        labels."""
        if self.names is None and self.replaced is None:
            return self
        return dataclasses.replace(self, names=None, replaced=None)

    @cached_property
    def by_owner(self) -> tuple[Ints, Ints]:
        """Rows sorted by owner and then by number, and where each owner's rows start (lowest role
        first)."""
        order = np.argsort(self.owner, kind="stable")
        owners = np.arange(min(Role), self.clients + 1)
        starts = np.searchsorted(self.owner[order], owners)
        # Slices of it are handed out as shards.
        order.flags.writeable = False
        return order, starts

    def indices(self, owner: int) -> Ints:
        """The sorted rows of `owner`, a client or a `Role`."""
        if not min(Role) <= owner < self.clients:
            rule = f"clients are numbered 0 to {self.clients - 1}, roles {min(Role)} to -1"
            raise DataError(broken(rule, owner))
        order, starts = self.by_owner
        place = owner - min(Role)
        return order[starts[place] : starts[place + 1]]

    def shard(self, client: int) -> Ints:
        """The sorted rows that a `client` owns."""
        if client < 0:
            rule = f"a shard belongs to a client, 0 to {self.clients - 1}"
            raise DataError(broken(rule, client))
        return self.indices(client)

    def sizes(self) -> Ints:
        """How many samples each client owns."""
        everything = np.ones(len(self.owner), dtype=np.bool_)
        return self.count_by_client(everything)

    def count_by_client(self, mask: Bools) -> Ints:
        """How many samples under `mask` each client owns."""
        held = mask & (self.owner >= 0)
        return np.bincount(self.owner[held], minlength=self.clients)

    def class_counts(self, labels: Ints) -> Ints:
        """Clients x classes: how many of each class, by these `labels`, a client holds."""
        classes = len(self.classes)
        held = self.owner >= 0
        # int32 owners times the number of classes could overflow.
        cells = self.owner[held].astype(np.int64) * classes + labels[held]
        counts = np.bincount(cells, minlength=self.clients * classes)
        return counts.reshape(self.clients, -1)

    @property
    def correct(self) -> Bools | None:
        """Which given labels are right; None without true labels."""
        return None if self.true is None else self.given == self.true

    @property
    def realised(self) -> Floats | None:
        """The share of wrong labels on each client, nan for an empty one; None without true
        labels."""
        if self.correct is None:
            return None
        sizes = self.sizes()
        wrong = self.count_by_client(~self.correct)
        return np.where(sizes > 0, wrong / np.maximum(sizes, 1), np.nan)

    @property
    def changed(self) -> Floats | None:
        """The share of each client's labels that a table changed, nan for an empty one; None where
        no table took the place of labels."""
        if self.replaced is None:
            return None
        sizes = self.sizes()
        others = self.count_by_client(self.given != self.replaced)
        return np.where(sizes > 0, others / np.maximum(sizes, 1), np.nan)

    def noise_rate(self, role: Role | None = None) -> float | None:
        """The share of wrong labels over all clients, or in the server's set that has this `role`;
        None if unknown or empty."""
        rows = self.owner >= 0 if role is None else self.owner == role
        if self.correct is None or not rows.any():
            return None
        return float(1 - self.correct[rows].mean())

    def correct_only(self) -> Scenario:
        """The same clients without their wrongly labelled samples: what an oracle would train
        on."""
        if self.correct is None:
            rule = "leaving out wrong labels needs true labels"
            raise DataError(broken(rule, "a scenario with labels: given"))
        wrong = (self.owner >= 0) & ~self.correct
        owner = np.where(wrong, Role.UNUSED, self.owner).astype(np.int32)
        return dataclasses.replace(self, owner=owner)

    def truly_labelled(self) -> Scenario:
        """The same samples with true labels everywhere: the reference without noise."""
        if self.true is None:
            rule = "a scenario without noise needs true labels"
            raise DataError(broken(rule, "a scenario with labels: given"))
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
            # Nothing at all where there is none: hashes of stored scenarios stay.
            *([] if self.public is None else [self.public.sha256]),
            *([] if self.attack is None else [self.attack.name, self.attack.clients.tolist()]),
        ]
        digest = hashlib.sha256(json.dumps(facts).encode())
        arrays = (
            (self.owner, "<i4"),
            (self.given, "<i8"),
            (self.true, "<i8"),
            (self.test, "<i8"),
            (None if self.public is None else self.public.rows, "<i8"),
            (None if self.attack is None else self.attack.rows, "<i8"),
        )
        for array, dtype in arrays:
            if array is not None:
                digest.update(f"{len(array)};".encode())
                digest.update(array.astype(dtype).tobytes())
        # Rates are rounded because the last bit of a computed float is the one thing that may
        # differ by platform. All nans become the same nan.
        rounded = np.round(self.nominal, 9)
        rates = np.where(np.isnan(self.nominal), np.nan, rounded)
        digest.update(rates.astype("<f8").tobytes())
        return digest.hexdigest()

    def check_against(self, dataset: Dataset) -> None:
        """Refuse a `dataset` other than the one that the scenario was built on, naming what
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
                spec = json.dumps(dict(self.dataset.spec))
                remedy = f"Load the one it was built on: data: {spec}"
                raise DataError(broken(rule, f"{found[what]} in '{dataset.name}'", remedy))
        if self.test is not None:
            # Only here: a scenario alone does not know how many test images there are.
            rule = "scenario: a test row lies"
            check_bounds(rule, self.test, 0, len(dataset.test), "place")

    def save(self, directory: Path) -> None:
        """Write the artefact into `directory`: `scenario.json`, `samples.parquet`,
        `clients.parquet` and, if capped, `test.parquet`."""
        write_artefact(directory, make_header(self), make_tables(self))

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the artefact in `directory` and verify that it is whole and unchanged."""
        header = read_header(directory)
        try:
            dataset = DatasetReference(**header["dataset"])
            found = cls(dataset=dataset, **read_fields(directory, header))
        except (KeyError, TypeError, ValueError) as error:
            rule = f"the scenario in {directory} must be complete"
            fault = f"{type(error).__name__}: {error}"
            raise DataError(broken(rule, fault, "Build it again.")) from error
        if found.sha256 != header.get("sha256"):
            rule = f"the content of the scenario in {directory} must hash to {header.get('sha256')}"
            remedy = "Its files were changed or mixed up; build it again."
            raise DataError(broken(rule, found.sha256, remedy))
        return found


def open_federation(plan: FederationPlan, seed: int) -> tuple[Dataset, Scenario]:
    """The dataset of a plan with its scenario: the saved one that it names, or a new one.

    Parameters
    ----------
    plan
        A `FederationPlan`, or the whole configuration of a run, which is one.
    seed
        Drives every draw of a new scenario; a saved one has been drawn.
    """
    root = plan.data_root or find_data_root()
    dataset = plan.data.load(root)
    if plan.scenario is None:
        return dataset, build_scenario(plan, dataset, seed)
    scenario = Scenario.load(plan.scenario)
    scenario.check_against(dataset)
    if scenario.names is None:
        scenario = dataclasses.replace(scenario, names=name_dataset(dataset))
    if isinstance(plan.labels, LabelTable):
        scenario = replace_labels(scenario, plan.labels, open_register(dataset))
    if scenario.clients != plan.clients:
        raise ConfigError(broken(f"clients is {scenario.clients} in {plan.scenario}", plan.clients))
    return dataset, scenario


def build_scenario(
    plan: FederationPlan,
    dataset: Dataset,
    seed: int,
    public: Dataset | None = None,
) -> Scenario:
    """Draw the federation that a plan describes: split, deal out, corrupt labels.

    Parameters
    ----------
    plan
        What to draw.
    dataset
        The dataset that the plan names, loaded.
    seed
        Equal seeds draw equal federations, on every machine.
    public
        The dataset that `public_data` names; None loads it, where the plan names one.
    """
    labels = dataset.train.y
    classes = dataset.classes
    truth = find_truth(plan, dataset)
    foreign = draw_public_images(plan, public, open_stream(seed, "public_data"))
    # The clients' dataset gives nothing for a set that comes from another one.
    split = plan.split if foreign is None else dataclasses.replace(plan.split, public=None)
    sites = dataset.train.groups if dataset.sites else None
    register = open_register(dataset)
    rng = open_stream(seed, "split")
    parts = split_training_set(labels, classes, split, rng, sites, register)
    dealt = deal_pool(plan, dataset, parts.pool, open_stream(seed, "partition"))
    owner = np.full(len(labels), Role.UNUSED, dtype=np.int32)
    owner[parts.pool] = dealt.owner
    for role, rows in parts.server().items():
        owner[rows] = role
    given = labels.copy()
    held = np.flatnonzero(owner >= 0)
    holders = owner[held].astype(np.int64)
    view = view_truth(dataset, held, holders, plan.clients, dealt.tasks)
    nominal = corrupt_labels(given, plan.noise, view, open_stream(seed, "noise"))
    server_noises = (
        ("labelled_noise", plan.labelled_noise, parts.labelled),
        ("public_noise", plan.public_noise, parts.public),
    )
    for name, noise, rows in server_noises:
        if len(rows):
            # To a noise model the server is a federation of one client.
            view = view_truth(dataset, rows, np.zeros_like(rows), 1)
            corrupt_labels(given, noise, view, open_stream(seed, name))
    if plan.own_labels == "given" and truth is not None:
        # What people wrote has no rate that it was meant to have.
        nominal = np.full(plan.clients, np.nan)
    recorded = plan.recorded()
    drawn = Scenario(
        dataset=DatasetReference(dataset.name, recorded["data"], dataset.sha256),
        classes=classes,
        seed=seed,
        owner=owner,
        given=given,
        true=truth,
        nominal=nominal,
        tasks=dealt.tasks,
        test=_cap_test(plan, dataset, seed),
        public=foreign,
        attack=_poison(plan, given, owner, len(classes), seed),
        plan=recorded,
        names=name_dataset(dataset),
        client_names=dealt.names,
    )
    if isinstance(plan.labels, LabelTable):
        return replace_labels(drawn, plan.labels, register)
    return drawn


def _poison(
    plan: FederationPlan, given: Ints, owner: NDArray[np.int32], classes: int, seed: int
) -> Attack | None:
    """Who is hostile; what they do to their own labels is written into `given`."""
    kind = "" if plan.hostile is None else plan.recorded()["hostile"]["name"]
    rng = open_stream(seed, "hostile")
    owners = owner.astype(np.int64)
    return draw_attack(plan.hostile, kind, given, owners, plan.clients, classes, rng)


def _cap_test(
    plan: FederationPlan,
    dataset: Dataset,
    seed: int,
) -> Ints | None:
    """The test rows that the plan leaves; None if it leaves all."""
    cap = plan.split.test_samples
    if cap is None:
        return None
    rng = open_stream(seed, "test")
    return cap_rows(dataset.test.y, dataset.classes, cap, rng, "split.test_samples")


def open_stream(seed: int, name: str) -> Generator:
    """The random numbers for one kind of decision, independent of those for every other kind.

    Parameters
    ----------
    seed
        The seed of the run.
    name
        One of `STREAMS`.
    """
    if seed < 0:
        raise ConfigError(broken("a seed is 0 or more", seed))
    key = (STREAMS.index(name),)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
