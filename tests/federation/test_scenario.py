"""Scenarios: built as planned, equal for equal seeds, hashed over everything, and refused
where they contradict themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.component import component
from rayfl.errors import ConfigError, DataError
from rayfl.federation.arrays import Ints
from rayfl.federation.dataset import Images
from rayfl.federation.interfaces import Assignment, Pool
from rayfl.federation.plan import FederationPlan
from rayfl.federation.scenario import (
    STREAMS,
    DatasetReference,
    Scenario,
    build_scenario,
    open_federation,
    open_stream,
)
from rayfl.federation.split import Role
from tests.federation.toys import SERVER, SYMMETRIC, Peeking, Toy, build_toy


@component
class Careless:
    """A user's own partition that gives everything to one client."""

    client: int = 0

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        return Assignment(np.full(len(pool.labels), self.client))


@component
class Boundless:
    """A user's own partition whose tasks name a class that does not exist."""

    def assign(self, pool: Pool, rng: np.random.Generator) -> Assignment:
        owner = np.arange(len(pool.labels)) % pool.clients
        return Assignment(owner, ((-1,),) * pool.clients)


def test_everything_has_exactly_one_owner_and_shards_are_sorted() -> None:
    scenario = build_toy(
        split=SERVER, noise=SYMMETRIC, partition={"name": "dirichlet", "alpha": 0.5}
    )
    owners = [scenario.shard(k) for k in range(10)] + [scenario.indices(role) for role in Role]
    assert np.array_equal(np.sort(np.concatenate(owners)), np.arange(1000))
    assert all((np.diff(rows) > 0).all() for rows in owners)
    assert all((scenario.owner[rows] == k).all() for k, rows in enumerate(owners[:10]))
    assert [
        len(scenario.indices(role)) for role in (Role.PUBLIC, Role.VALIDATION, Role.LABELLED)
    ] == [100, 50, 100]
    assert scenario.sizes().tolist() == [len(rows) for rows in owners[:10]]
    assert scenario.sizes().sum() == 750


@pytest.mark.parametrize("client", [-1, 10])
def test_a_shard_of_nobody_is_refused(client: int) -> None:
    with pytest.raises(DataError, match=f"0 to 9.*got {client}"):
        build_toy().shard(client)


def test_noise_falls_on_clients_only_unless_the_server_has_its_own() -> None:
    quiet = build_toy(split=SERVER, noise=SYMMETRIC)
    assert quiet.noise_rate() == pytest.approx(0.4)
    assert [quiet.noise_rate(role) for role in (Role.PUBLIC, Role.VALIDATION, Role.LABELLED)] == [
        0,
        0,
        0,
    ]
    loud = build_toy(
        split=SERVER, labelled_noise=SYMMETRIC, public_noise={"name": "symmetric", "rate": 0.8}
    )
    assert loud.noise_rate() == 0
    assert loud.noise_rate(Role.VALIDATION) == 0
    assert loud.noise_rate(Role.LABELLED) == pytest.approx(0.4)
    assert loud.noise_rate(Role.PUBLIC) == pytest.approx(0.8)
    assert loud.noise_rate(Role.UNUSED) is None


def test_realised_rates_are_the_share_of_wrong_labels() -> None:
    scenario = build_toy(noise={"name": "symmetric", "rate": {"name": "ramp", "max": 1.0}})
    np.testing.assert_allclose(scenario.nominal, np.arange(10) / 10)
    assert scenario.realised is not None
    np.testing.assert_allclose(scenario.realised, np.arange(10) / 10)


def test_class_counts_by_hand() -> None:
    scenario = dataclasses.replace(
        build_toy(data=Toy(samples=6, classes=3), clients=2),
        owner=np.array([0, 0, 1, 1, 1, -2], np.int32),
        given=np.array([0, 2, 1, 1, 0, 2]),
    )
    assert scenario.class_counts(scenario.given).tolist() == [[1, 0, 1], [1, 2, 0]]


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        ({"noise": {"name": "symmetric", "rate": 0.9}}, ["owner"]),
        ({"labelled_noise": SYMMETRIC}, ["owner", "client labels"]),
        ({"public_noise": SYMMETRIC}, ["owner", "client labels"]),
        ({"partition": {"name": "dirichlet", "alpha": 1.0}}, ["roles"]),
        ({"split": {**SERVER, "test_samples": {"total": 20}}}, ["owner", "client labels"]),
        ({"split": {**SERVER, "labelled": {"per_class": 20}}}, ["public"]),
    ],
)
def test_each_kind_of_decision_has_its_own_stream(change: dict[str, Any], kept: list[str]) -> None:
    settings: dict[str, Any] = {"split": SERVER, "noise": SYMMETRIC}
    before, after = build_toy(**settings), build_toy(**{**settings, **change})
    views: dict[str, Callable[[Scenario], Ints]] = {
        "owner": lambda s: s.owner.astype(np.int64),
        "client labels": lambda s: s.given[s.owner >= 0],
        "roles": lambda s: np.minimum(s.owner, 0).astype(np.int64),
        "public": lambda s: s.indices(Role.PUBLIC),
    }
    for name in kept:
        np.testing.assert_array_equal(views[name](before), views[name](after))
    assert before.sha256 != after.sha256


def test_streams_differ_by_name_and_by_seed_and_repeat() -> None:
    first = [open_stream(seed, name).random() for seed in (0, 1) for name in STREAMS]
    assert len(set(first)) == 2 * len(STREAMS)
    assert first == [open_stream(seed, name).random() for seed in (0, 1) for name in STREAMS]


def test_noises_of_two_server_sets_are_not_the_same_draw() -> None:
    equal = {"public": {"per_class": 20}, "labelled": {"per_class": 20}}
    scenario = build_toy(split=equal, labelled_noise=SYMMETRIC, public_noise=SYMMETRIC)
    assert scenario.correct is not None
    public, labelled = (
        scenario.correct[scenario.indices(role)] for role in (Role.PUBLIC, Role.LABELLED)
    )
    assert public.sum() == labelled.sum() == 120
    assert (public != labelled).any()


def test_the_test_set_can_be_capped() -> None:
    scenario = build_toy(split={"test_samples": {"per_class": 3}})
    assert scenario.test is not None
    assert np.bincount(Toy().load(Path()).test.y[scenario.test]).tolist() == [3] * 10
    assert build_toy().test is None


def test_equal_seeds_give_equal_hashes_and_others_do_not() -> None:
    settings: dict[str, Any] = {"split": SERVER, "noise": SYMMETRIC}
    assert build_toy(seed=3, **settings).sha256 == build_toy(seed=3, **settings).sha256
    assert build_toy(seed=3, **settings).sha256 != build_toy(seed=4, **settings).sha256


def test_the_hash_is_the_same_on_every_machine() -> None:
    scenario = Scenario(
        dataset=DatasetReference("toy", {}, "00"),
        classes=("cat", "dog"),
        seed=7,
        owner=np.array([0, 1, 1, -2], np.int32),
        given=np.array([0, 1, 0, 1]),
        true=np.array([0, 1, 1, 1]),
        nominal=np.array([0.1 + 0.2, np.nan]),
    )
    assert scenario.sha256 == "42ccfe5b8f2769755533c3c5310ecb996bc19998039132626effcbb1c323fdbd"
    same_rates = dataclasses.replace(
        scenario, nominal=np.array([0.3, -np.nan]), owner=scenario.owner.astype(np.int64)
    )
    assert same_rates.sha256 == scenario.sha256


@pytest.mark.parametrize(
    "name", ["owner", "given", "true", "nominal", "test", "seed", "classes", "tasks", "dataset"]
)
def test_any_change_changes_the_hash(name: str) -> None:
    scenario = build_toy(split={"test_samples": {"total": 20}}, noise=SYMMETRIC)
    value = getattr(scenario, name)
    changed: dict[str, Any] = {
        "seed": 9,
        "classes": ("other", *scenario.classes[1:]),
        "tasks": ((0,),) * 10,
        "nominal": scenario.nominal / 2,
        "dataset": dataclasses.replace(scenario.dataset, sha256="0"),
    }
    if name not in changed:
        changed[name] = value.copy()
        changed[name][0] = value[0] + (-1 if value[0] > 0 else 1)
    assert dataclasses.replace(scenario, **{name: changed[name]}).sha256 != scenario.sha256


@pytest.mark.parametrize("true", [True, False])
def test_unknown_truth_and_missing_parts_hash_apart(true: bool) -> None:
    scenario = build_toy(labels="true" if true else "given")
    assert scenario.sha256 != build_toy(labels="given" if true else "true").sha256


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Toy(samples=900), r"\('toy'\) has training samples 1000; got 900"),
        (Toy(classes=5), "has classes .*c9"),
        (dataclasses.replace(Toy(), samples=1000), ""),
    ],
)
def test_another_dataset_is_refused_by_what_differs(data: Toy, message: str) -> None:
    scenario, dataset = build_toy(), data.load(Path())
    if not message:
        scenario.check_against(dataset)
        return
    with pytest.raises(DataError, match=message):
        scenario.check_against(dataset)


def test_other_pixels_are_refused() -> None:
    dataset = Toy().load(Path())
    darker = dataclasses.replace(dataset, test=Images(dataset.test.x // 2, dataset.test.y))
    with pytest.raises(DataError, match=r"has sha256 .* Load the one it was built on: data: "):
        build_toy().check_against(darker)


def test_without_true_labels_all_but_truth_is_there() -> None:
    scenario = build_toy(labels="given", noise=SYMMETRIC)
    assert scenario.true is None
    assert scenario.correct is None
    assert scenario.realised is None
    assert scenario.noise_rate() is None
    np.testing.assert_allclose(scenario.nominal, 0.4)
    np.testing.assert_array_equal(scenario.given, build_toy(noise=SYMMETRIC).given)
    for needs_truth in (scenario.correct_only, scenario.truly_labelled):
        with pytest.raises(DataError, match="needs true labels"):
            needs_truth()


def test_arrays_are_read_only_and_the_dataset_stays_writable() -> None:
    plan = FederationPlan.model_validate({"data": Toy()})
    dataset = plan.data.load(Path())
    scenario = build_scenario(plan, dataset, 0)
    for array in (
        scenario.owner,
        scenario.given,
        scenario.true,
        scenario.nominal,
        scenario.shard(0),
    ):
        assert array is not None
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    assert dataset.train.y.flags.writeable


@pytest.mark.parametrize(
    ("noise", "dropped"),
    [
        ({"name": "symmetric", "rate": {"name": "ramp", "max": 0.4}}, 9_900),
        ({"name": "symmetric", "rate": {"name": "ramp", "max": 0.8}}, 19_800),
        ({"name": "asymmetric", "pairs": "previous", "rate": {"name": "ramp", "max": 0.4}}, 9_900),
    ],
)
def test_the_oracle_keeps_exactly_the_right_labels(noise: dict[str, Any], dropped: int) -> None:
    shards = {"name": "shards", "per_client": 2}
    noisy = build_toy(data=Toy(samples=50_000), clients=100, partition=shards, noise=noise)
    oracle = noisy.correct_only()
    assert noisy.sizes().tolist() == [500] * 100
    assert noisy.sizes().sum() - oracle.sizes().sum() == dropped
    assert oracle.noise_rate() == 0
    for k in (0, 50, 99):
        assert np.isin(oracle.shard(k), noisy.shard(k)).all()
    assert noisy.truly_labelled().noise_rate() == 0
    assert noisy.truly_labelled().sizes().sum() == 50_000


def test_the_oracle_of_all_wrong_labels_has_nothing_and_of_clean_ones_everything() -> None:
    empty = build_toy(noise={"name": "symmetric", "rate": 1.0}).correct_only()
    assert empty.sizes().tolist() == [0] * 10
    assert empty.realised is not None
    assert np.isnan(empty.realised).all()
    np.testing.assert_array_equal(build_toy().correct_only().owner, build_toy().owner)


def test_exact_noise_with_discrete_rates_flips_the_floor_of_each_client() -> None:
    scenario = build_toy(
        split={"public": 0.1}, noise={"name": "symmetric", "rate": {"name": "discrete"}}
    )
    wrong = np.floor(scenario.nominal * scenario.sizes() + 1e-9)
    assert scenario.correct is not None
    assert (~scenario.correct).sum() == wrong.sum()
    assert len(scenario.indices(Role.PUBLIC)) + scenario.sizes().sum() == 1000


def test_fb_nll_users_cover_what_the_server_left() -> None:
    scenario = build_toy(
        data=Toy(samples=50_000),
        clients=20,
        split={"validation": {"per_class": 200}},
        partition={"name": "tasks", "tasks": "cifar10-5", "impurity": 0.08},
        noise={"name": "task", "alpha": 0.25},
    )
    assert len(scenario.indices(Role.VALIDATION)) == 2_000
    assert scenario.sizes().sum() == 48_000
    assert scenario.tasks is not None
    assert scenario.true is not None
    for k, task in enumerate(scenario.tasks):
        rows = scenario.shard(k)
        changed = scenario.given[rows][scenario.given[rows] != scenario.true[rows]]
        assert len(set(changed.tolist())) == 1
        assert changed[0] not in task


def test_noise_models_see_the_pixels_of_their_own_samples() -> None:
    scenario = build_toy(split=SERVER, noise=Peeking(), labelled_noise=Peeking())
    np.testing.assert_array_equal(scenario.given, scenario.true)
    assert np.isnan(scenario.nominal).all()


def test_clients_without_samples_are_kept_if_the_partition_wants_them() -> None:
    scenario = build_toy(partition=Careless())
    assert scenario.sizes().tolist() == [1000] + [0] * 9
    assert len(scenario.shard(9)) == 0
    assert scenario.realised is not None
    assert np.isnan(scenario.realised[1:]).all()


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        (
            {"clients": 1001},
            ConfigError,
            "clients is at most the 1000 samples to deal out; got 1001",
        ),
        ({"split": {"public": 1.0}}, ConfigError, "at most the 0 samples"),
        (
            {"partition": Careless(client=10)},
            DataError,
            r"partition's owner lies in \[-1, 10\); got 10 to 10",
        ),
        (
            {"partition": Boundless(), "noise": "task"},
            DataError,
            r"a partition's task names classes in \[0, 10\); got -1 for client 0",
        ),
        ({"noise": Peeking(shift=1)}, DataError, r"given label lies in \[0, 10\); got 1 to 10"),
        ({"noise": Peeking(extra=1)}, DataError, r"one a client, shape \(10,\); got \(11,\)"),
        (
            {"noise": Peeking(dtype="float64")},
            DataError,
            r"one whole number a sample, shape \(1000,\); got float64",
        ),
        ({"seed": -1}, ConfigError, "a seed is 0 or more; got -1"),
    ],
)
def test_impossible_plans_and_broken_parts_are_refused(
    settings: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_toy(**settings)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("given", np.zeros(3, np.int64), r"one given label a sample \(1000\); got 3"),
        ("true", np.full(1000, 10), r"true lies in \[0, 10\); got 10 at sample 0"),
        ("owner", np.full(1000, -5, np.int32), r"owner lies in \[-4, 10\); got -5 at sample 0"),
        ("tasks", ((0,),), r"one task a client \(10\); got 1"),
        (
            "tasks",
            ((0,),) * 9 + ((3, -1),),
            r"a task names classes in \[0, 10\); got -1 for client 9",
        ),
        ("nominal", np.full(10, -0.1), r"nominal lies in \[0, 1\]; got -0.1 at client 0"),
    ],
)
def test_inconsistent_arrays_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataclasses.replace(build_toy(), **{name: value})


@pytest.mark.parametrize("row", [-1, 1000])
def test_test_rows_that_the_dataset_does_not_have_are_refused(row: int) -> None:
    scenario = dataclasses.replace(build_toy(), test=np.array([0, row]))
    dataset = Toy().load(Path())
    reference = dataclasses.replace(scenario.dataset, sha256=dataset.sha256)
    with pytest.raises(DataError, match=rf"test row lies in \[0, 1000\); got {row} at place 1"):
        dataclasses.replace(scenario, dataset=reference).check_against(dataset)


def test_open_federation_builds_or_reuses_exactly(tmp_path: Path) -> None:
    plan = FederationPlan.model_validate({"data": Toy(), "noise": SYMMETRIC, "clients": 7})
    _, scenario = open_federation(plan, seed=4)
    scenario.save(tmp_path / "s")
    dataset, again = open_federation(
        FederationPlan.model_validate({"scenario": tmp_path / "s"}), seed=99
    )
    assert again.sha256 == scenario.sha256
    assert (again.seed, again.clients, dataset.name) == (4, 7, "toy")
