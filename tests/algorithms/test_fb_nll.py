"""FB-NLL: similarities worked out by hand, the messages, exact cluster counts, and Procedure 2 over
the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from rayfl.algorithms import fb_nll, fedavg
from rayfl.algorithms.fb_nll import Clustered, FbNll, FbNllMinus
from rayfl.algorithms.fedavg import FedAvg
from rayfl.algorithms.single_global import SingleGlobal
from rayfl.config.schema import load_config
from rayfl.errors import ConfigError
from rayfl.estimate import (
    Criterion,
    calibrate_correction,
    correct_labels,
    decompose_features,
    similarity_matrix,
)
from rayfl.estimate.clustering import measure_separation
from rayfl.estimate.subspace import Rank
from rayfl.fleet.base import Spec
from rayfl.fleet.executor import Holdings
from rayfl.fleet.inline import InlineFleet
from rayfl.fleet.streams import Streams
from rayfl.models.encoders.pixels import Pixels
from rayfl.protocol import Client, Out, Shard
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.toys import NoLearner, toy_fleet

Floats = NDArray[np.float64]

CONFIGS = Path(__file__).parents[2] / "configs"
OWN_PARTITION = {"odd federation": "a partition of its own"}
TASKS: dict[str, Any] = {"partition": {"name": "tasks", "tasks": [[0, 1], [2, 3]]}}
CLEAN: dict[str, Any] = {"split": {"validation": {"per_class": 10}}}
MINUS: dict[str, Any] = {"name": "fb_nll_minus", "clustering_encoder": "pixels"}
FULL: dict[str, Any] = {
    "name": "fb_nll",
    "clustering_encoder": "pixels",
    "correction_encoder": "pixels",
}

ROWS = [
    Row(
        "fb_nll_minus",
        MINUS,
        config=TASKS,
        untried=OWN_PARTITION,
        refused=[
            ({"models": 0}, "models"),
            ({"q": 0}, "q"),
            ({"threshold": 1.0}, "threshold"),
            ({"clustering": "ward"}, "clustering"),
            ({"clustering_encoder": "hogg"}, "unknown encoder 'hogg'"),
        ],
    ),
    Row(
        "fb_nll",
        FULL,
        config={**TASKS, **CLEAN},
        untried=OWN_PARTITION,
        refused=[({"tau": 1.5}, "tau"), ({"class_rank": 0}, "class_rank")],
    ),
    # Without tasks, so that they also meet the odd federation.
    Row("fb_nll_minus_spectral", {**MINUS, "clustering": "spectral", "rank": "fixed"}),
    Row(
        "fb_nll_set", {**FULL, "clustering": "complete", "tau": 0.5, "sample_rank": 8}, config=CLEAN
    ),
]


def rotated(features: ArrayLike, degrees: float) -> Floats:
    turn = np.deg2rad(degrees)
    return np.asarray(
        features @ np.array([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    )


X1 = np.array([[2.0, 0.0], [0.0, 1.0]])
USERS = [X1, np.array([[0.0, 2.0], [1.0, 0.0]]), rotated(X1, 45), rotated(X1, 30)]


def fleet_with(
    users: Sequence[ArrayLike],
    labels: Sequence[Sequence[int]] | None = None,
    clean: tuple[ArrayLike, Sequence[int]] | None = None,
) -> InlineFleet:
    """A fleet whose users, and server, have these features."""
    features = [np.asarray(user, np.float32) for user in users]
    offsets = np.cumsum([0, *map(len, features)])
    y = (
        np.zeros(offsets[-1], np.int64)
        if labels is None
        else np.concatenate([np.asarray(one) for one in labels])
    )
    seen, truth = clean or (np.zeros((1, features[0].shape[1])), [0])
    sets = {
        "validation": Shard(np.zeros((len(truth), 1, 1, 1), np.uint8), np.asarray(truth, np.int64))
    }
    pixels = np.zeros((offsets[-1], 1, 1, 1), np.uint8)
    holdings = Holdings(pixels, y.astype(np.int64), np.arange(offsets[-1]), offsets, sets)
    spec = Spec(NoLearner, Streams(0), cohort=len(users))  # type: ignore[arg-type]
    fleet = InlineFleet(spec, holdings)
    for name in ("clustering", "correction"):
        held = {"train": np.concatenate(features), "validation": np.asarray(seen, np.float32)}
        fleet.share_features(name, held)
    return fleet


def random_users(count: int = 5, dimension: int = 8, samples: int = 30) -> list[Floats]:
    """Users in two groups, with the weight on different directions."""
    rng = np.random.default_rng(3)
    scales = [np.linspace(3, 1, dimension), np.linspace(1, 3, dimension) ** 1.5]
    return [rng.normal(size=(samples + k, dimension)) * scales[k % 2] + k % 2 for k in range(count)]


# -- clustering ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [(0, 1, 0.25), (0, 2, 0.5), (0, 3, 0.633623), (2, 3, 0.826875), (1, 1, 1.0)],
)
def test_similarities_of_turned_users(one: int, other: int, expected: float) -> None:
    found = FbNllMinus(q=2).measure_similarities(fleet_with(USERS))
    assert found[one, other] == found[other, one] == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("rank", ["shared", "adaptive", "fixed"])
@pytest.mark.parametrize("q", [1, 3, 20])
def test_exchange_gives_the_similarities_of_pooled_features(q: int, rank: Rank) -> None:
    users = random_users()
    single = decompose_features([user.astype(np.float32) for user in users])
    pooled = similarity_matrix(single, Criterion(q, rank))
    np.testing.assert_allclose(
        FbNllMinus(q=q, rank=rank).measure_similarities(fleet_with(users)), pooled, rtol=1e-5
    )


def test_only_directions_leave_a_user() -> None:
    fleet = fleet_with(USERS)
    got = fleet.map(fb_nll.sketch, fleet.clients, q=1)
    assert all(dict(report) == {} for report in got.values())
    assert {ref_shape(fleet, got.ref(client)) for client in got} == {(2, 1)}
    values = fleet.state(0, "eigenvalues")
    assert values is not None
    assert fleet.get(values) == pytest.approx([2.0])


def ref_shape(fleet: InlineFleet, ref: Any) -> tuple[int, ...]:
    return tuple(fleet.get(ref).shape)


def test_a_user_hears_of_all_others_once() -> None:
    """q directions up, those of K - 1 users down, K - 1 relevances up, four bytes each number."""
    users = random_users(count=5, dimension=8)
    fleet = fleet_with(users)
    FbNllMinus(q=3).measure_similarities(fleet)
    costs = fleet.costs.take()
    assert costs["up"] == 5 * (8 * 3 + 4) * 4
    assert costs["down"] == 5 * 4 * 8 * 3 * 4


def test_a_user_with_one_sample_has_one_direction() -> None:
    """What LAPACK makes of its null space must not count."""
    users = [*random_users(2), random_users(1)[0][:1]]
    found = FbNllMinus(q=5).measure_similarities(fleet_with(users))
    single = similarity_matrix(
        decompose_features([user.astype(np.float32) for user in users]), Criterion(1)
    )
    assert found[2, :2] == pytest.approx(single[2, :2], rel=1e-5)


def test_a_user_without_features_is_like_nobody() -> None:
    found = FbNllMinus().measure_similarities(fleet_with([*random_users(2), np.zeros((3, 8))]))
    assert found[2].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("clustering", ["average", "single", "complete", "spectral"])
@pytest.mark.parametrize("models", [1, 2, 5])
def test_exactly_m_clusters_and_none_empty(clustering: Any, models: int) -> None:
    fleet = fleet_with(random_users())
    method = FbNllMinus(clustering=clustering, models=models)
    state = method.prepare(method.init(fleet, fleet.put(np.zeros(1, np.float32))), fleet, 0)
    assert sorted(state.clusters) == list(range(5))
    assert set(state.clusters.values()) == set(range(models))
    if models == 2:
        assert list(state.clusters.values()) == [0, 1, 0, 1, 0]
    assert set(fleet.left) == (
        {"similarity"} if clustering == "spectral" else {"similarity", "dendrogram"}
    )


def test_a_single_user_needs_nobody() -> None:
    fleet = fleet_with([X1])
    method = FbNllMinus(models=1)
    state = method.prepare(method.init(fleet, fleet.put(np.zeros(1, np.float32))), fleet, 0)
    assert method.clusters(state) == {0: 0}
    assert set(fleet.left) == {"similarity"}


def test_separation_names_the_closest_calls() -> None:
    similarity = np.array(
        [[1.0, 0.9, 0.2, 0.3], [0.9, 1.0, 0.4, 0.1], [0.2, 0.4, 1.0, 0.8], [0.3, 0.1, 0.8, 1.0]]
    )
    found = measure_separation(similarity, np.array([0, 0, 1, 1]))
    assert found == {"clusters/lowest_within": 0.8, "clusters/highest_across": 0.4}


@pytest.mark.parametrize(
    "noise", ["none", {"name": "symmetric", "rate": 1.0}, {"name": "task", "alpha": 0.5}]
)
def test_labels_do_not_touch_the_clusters(noise: Any, tmp_path: Path) -> None:
    usual, left = run_toy(shortened(toy_config(ROWS[0], tmp_path), 1), directory="usual")
    other, left_too = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, noise=noise), 1), directory="other"
    )
    assert usual.sha256 != other.sha256
    assert usual.history[0]["metrics"]["clusters/adjusted_rand"] == 1.0
    assert other.history[0]["metrics"]["clusters/adjusted_rand"] == 1.0
    for name in ("similarity", "dendrogram"):
        assert np.array_equal(left.left[name], left_too.left[name])


# -- training --------------------------------------------------------------------------------------


def constant(client: Client, *, w: Any, method: FedAvg) -> Out:
    """Users 0, 1, 2, 3 bring home their model plus 1, 3, 10, 30."""
    return Out(update=w + np.float32([1, 3, 10, 30][client.id]))


def test_each_cluster_takes_the_plain_mean_of_its_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fedavg, "train", constant)
    fleet, method = fleet_with([np.zeros((size, 2)) for size in (100, 300, 5, 1)]), FbNllMinus()
    zero = fleet.put(np.zeros(1, np.float32))
    state = Clustered(zero, {0: 0, 1: 0, 2: 1, 3: 1})
    for t, (low, high) in enumerate([(2.0, 20.0), (4.0, 40.0)]):
        state = method.round(state, fleet, t)
        assert [float(fleet.get(method.model(state, fleet, client))[0]) for client in range(4)] == [
            low,
            low,
            high,
            high,
        ]


def test_a_cluster_that_nobody_replies_for_keeps_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverging(client: Client, *, w: Any, method: FedAvg) -> Out:
        return Out(update=w + np.float32(np.nan if client.id < 2 else 1))

    monkeypatch.setattr(fedavg, "train", diverging)
    fleet, method = fleet_with([np.zeros((3, 2))] * 4), FbNllMinus()
    zero = fleet.put(np.zeros(1, np.float32))
    state = method.round(Clustered(zero, {0: 0, 1: 0, 2: 1, 3: 1}), fleet, 0)
    assert method.model(state, fleet, 0) is zero
    assert fleet.get(method.model(state, fleet, 2)).tolist() == [1.0]


def test_one_cluster_is_one_global_model(tmp_path: Path) -> None:
    """To the bit, once clusters are known: in the first round users are visited for them before
    they train, and a second visit draws other numbers than a first."""
    ends = []
    methods: list[Any] = [FbNllMinus(models=1, clustering_encoder=Pixels()), SingleGlobal()]
    for method in methods:
        fleet = toy_fleet(toy_config(ROWS[0], tmp_path))
        state = method.init(fleet, fleet.initial())
        if isinstance(state, Clustered):
            state = replace(state, clusters=dict.fromkeys(fleet.clients, 0))
        for fleet.round in range(3):
            state = method.round(state, fleet, fleet.round)
        ends.append(fleet.get(method.model(state, fleet, 0)))
    assert np.array_equal(*ends)


def test_clusters_begin_alike_and_never_mix(tmp_path: Path) -> None:
    rates = [0.0] * 6
    start, _ = run_toy(shortened(toy_config(ROWS[0], tmp_path), 0), directory="start")
    clean, _ = run_toy(
        toy_config(ROWS[0], tmp_path, noise={"name": "symmetric", "rate": rates}), directory="clean"
    )
    rates[0] = 1.0
    noisy, _ = run_toy(
        toy_config(ROWS[0], tmp_path, noise={"name": "symmetric", "rate": rates}), directory="noisy"
    )
    assert all(np.array_equal(model, start.models[0]) for model in start.models.values())
    same = [np.array_equal(clean.models[client], noisy.models[client]) for client in range(6)]
    assert same == [False] * 3 + [True] * 3


def test_more_clusters_than_clients_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"at most the number of clients with data \(6\); got 7"):
        run_toy(toy_config(ROWS[0], tmp_path, {**MINUS, "models": 7}))


# -- correction ------------------------------------------------------------------------------------


def three_classes(samples: int, seed: int) -> tuple[Floats, list[int]]:
    """Classes whose variance lies in different pairs of six directions."""
    rng = np.random.default_rng(seed)
    truth = np.arange(samples) % 3
    spread = 0.3 + 3.0 * (np.arange(6) // 2 == truth[:, None])
    return rng.normal(size=(samples, 6)) * spread, truth.tolist()


@pytest.mark.parametrize("tau", [None, 0.2, 0.99])
@pytest.mark.parametrize("sample_rank", [None, 2])
def test_messages_give_the_labels_of_pooled_data(
    tau: float | None, sample_rank: int | None
) -> None:
    """All whole-class (0.2 may leave several), all sample-wise (0.99), and calibrated in
    between."""
    clean, users = three_classes(60, 0), [three_classes(90, seed) for seed in (1, 2)]
    rng = np.random.default_rng(9)
    labels = [np.where(rng.random(90) < 0.3, 0, truth).tolist() for _, truth in users]
    fleet = fleet_with([features for features, _ in users], labels, clean)
    FbNll(tau=tau, sample_rank=sample_rank, class_rank=2).correct(fleet)
    single = np.asarray(clean[0], np.float32)
    classes = {c: single[np.array(clean[1]) == c] for c in range(3)}
    found = calibrate_correction(classes, Criterion(2))
    level = (
        found.tau if tau is None else tau,
        Criterion(2),
        found.sample_rank if sample_rank is None else sample_rank,
    )
    for client, ((features, truth), given) in enumerate(zip(users, labels, strict=True)):
        corrected = fleet.get(fleet.table[client]["y"])
        pooled = correct_labels(
            features.astype(np.float32), given, decompose_features(list(classes.values())), *level
        )
        assert corrected.tolist() == pooled.labels.tolist()
        if (tau, sample_rank) == (0.99, 2):
            assert np.mean(corrected == truth) > np.mean(np.array(given) == truth) + 0.1


@pytest.mark.parametrize(("tau", "expected"), [(0.0679, 1), (0.9996, 1)])
def test_a_class_like_one_clean_class_becomes_it(tau: float, expected: int) -> None:
    clean = np.array([[3, 0, 0], [3, 0.3, 0], [0, 3, 0], [0, 3, 0.3]]), [0, 0, 1, 1]
    fleet = fleet_with([[[0.1, 3, 0], [0, 2.8, 0.2]]], [[0, 0]], clean)
    FbNll(tau=tau, class_rank=1, sample_rank=1).correct(fleet)
    assert fleet.get(fleet.table[0]["y"]).tolist() == [expected] * 2
    logged = fleet.take_logged()
    assert (logged["correction/whole_classes"], logged["correction/changed"]) == (1.0, 1.0)


@pytest.mark.parametrize(("sample_rank", "winner"), [(2, 1), (1, 0)])
def test_one_rank_for_all_subspaces(sample_rank: int, winner: int) -> None:
    """Projections of (.6, .5, .5): on e1 0.6, on e2 0.5, on e2 and e3 0.707; class 0 has no second
    direction."""
    clean = ([[2, 0, 0], [3, 0, 0], [0, 2, 0], [0, 0, 1]], [0, 0, 1, 1])
    fleet = fleet_with([[[0.6, 0.5, 0.5]]], [[0]], clean)
    method = FbNll(class_rank=1, sample_rank=sample_rank, tau=1.0)
    got = fleet.serve(fb_nll.summarise, clean=fleet.data("validation"), method=method)
    # A clean class with fewer directions than the rank has zeros beyond them.
    bases = fleet.get(got["w"])
    fleet.map(fb_nll.ask, [0], bases=bases, method=method)
    fleet.map(
        fb_nll.relabel,
        [0],
        answered=np.zeros((1, 2)),
        bases=bases,
        tau=1.0,
        sample_rank=sample_rank,
    )
    assert fleet.get(fleet.table[0]["y"]).tolist() == [winner]


def correct_with_few_clean_samples() -> list[int]:
    """A user's labels, corrected by three clean samples a class in six dimensions."""
    clean, (features, truth) = three_classes(9, 0), three_classes(90, 1)
    given = np.where(np.arange(90) % 3 == 0, 0, truth).tolist()
    fleet = fleet_with([features], [given], clean)
    FbNll(tau=0.5, class_rank=5, sample_rank=5).correct(fleet)
    return list(fleet.get(fleet.table[0]["y"]).tolist())


def test_the_servers_null_space_changes_no_label(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks of 5 and 3 samples a class: the other two directions are the eigen-solver's choice."""
    usual = correct_with_few_clean_samples()
    rng, solve = np.random.default_rng(5), np.linalg.eigh

    def solve_otherwise(matrix: Floats) -> tuple[Floats, Floats]:
        values, vectors = solve(matrix)
        null = int((values <= 1e-9 * values.max()).sum())
        rotation = np.linalg.qr(rng.normal(size=(null, null)))[0]
        return values, np.hstack([vectors[:, :null] @ rotation, vectors[:, null:]])

    monkeypatch.setattr(np.linalg, "eigh", solve_otherwise)
    assert [correct_with_few_clean_samples() for _ in range(5)] == [usual] * 5


def test_rank_and_threshold_reach_the_correction() -> None:
    """Two directions of a class with one, or with a weak one: `fixed` finds it like none."""
    clean = np.array([[3, 0, 0], [2, 0, 0], [0, 3, 0], [0, 2, 0.1]]), [0, 0, 1, 1]
    whole = []
    for rank, threshold in [("shared", 1e-3), ("fixed", 1e-3), ("fixed", 0.1)]:
        fleet = fleet_with([[[3, 0, 0.01], [2, 0, 0.0]]], [[0, 0]], clean)
        how: Any = {"rank": rank, "threshold": threshold}
        FbNll(tau=0.5, class_rank=2, sample_rank=1, **how).correct(fleet)
        whole.append(fleet.take_logged()["correction/whole_classes"])
    assert whole == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("sample_rank", [None, 2])
def test_projection_accuracy_is_that_of_the_rank_that_is_taken(sample_rank: int | None) -> None:
    clean, (features, truth) = three_classes(60, 0), three_classes(30, 1)
    fleet = fleet_with([features], [truth], clean)
    FbNll(class_rank=2, sample_rank=sample_rank).correct(fleet)
    logged = fleet.take_logged()
    classes = {c: np.asarray(clean[0], np.float32)[np.array(clean[1]) == c] for c in range(3)}
    ranks = (5, 10, 20, 40) if sample_rank is None else (sample_rank,)
    found = calibrate_correction(classes, Criterion(2), ranks)
    assert logged["correction/projection_accuracy"] == found.accuracy
    assert logged["correction/sample_rank"] == found.sample_rank


def test_labels_never_leave_the_user() -> None:
    """Other names for the same groups change nothing that a user sends."""
    features, truth = three_classes(30, 1)
    clean = three_classes(60, 0)
    messages = []
    bases, method = np.zeros((3, 6, 2), np.float32), FbNll(class_rank=2)
    for names in ([0, 1, 2], [3, 4, 9]):
        fleet = fleet_with([features], [[names[label] for label in truth]], clean)
        got = fleet.map(fb_nll.ask, [0], bases=bases, method=method)
        assert dict(got[0]) == {}
        messages.append(fleet.get(got.ref(0)))
    assert messages[0].shape == (3, 6, 2)
    assert np.array_equal(*messages)


def test_correction_is_counted_once_and_helps(tmp_path: Path) -> None:
    noise = {"name": "task", "mode": "dependent", "alpha": 0.25}
    outcome, _ = run_toy(shortened(toy_config(ROWS[1], tmp_path, noise=noise), 2))
    first, second = (record["metrics"] for record in outcome.history)
    assert first["labels/right_after"] > first["labels/right_before"] + 0.15
    assert first["labels/corrected"] == pytest.approx(first["correction/changed"])
    assert 0 < first["correction/tau"] < 1
    # Everybody, in four exchanges; those who train in the same round are counted already.
    assert first["clients/participants"] == 6
    assert second["clients/participants"] == 4
    assert not any(name.startswith(("labels/", "correction/")) for name in second)


def test_server_needs_its_clean_set(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="FbNll needs the set 'validation'"):
        run_toy(toy_config(Row("bare", FULL, config=TASKS), tmp_path))


@pytest.mark.parametrize(
    ("clean", "held"),
    [
        ({"per_class": 1}, "1 of class 0"),
        ({"total": 7}, "1 of class 3"),
        ({"total": 3}, "0 of class 3"),
    ],
)
def test_server_needs_two_samples_of_every_class(
    clean: dict[str, int], held: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"two samples or more of every class; got {held}"):
        run_toy(
            toy_config(
                Row("poor", FULL, config={**TASKS, "split": {"validation": clean}}), tmp_path
            )
        )


@pytest.mark.parametrize("name", ["fb_nll", "fb_nll_minus", "single_global"])
def test_configurations_share_their_federation(name: str) -> None:
    config = load_config(CONFIGS / "methods" / f"{name}.yaml")
    assert config.recorded() == load_config(CONFIGS / "methods" / "single_global.yaml").recorded()
    assert config.resolved()["method"]["name"] == name


def test_configuration_of_the_paper() -> None:
    config = load_config(CONFIGS / "paper" / "fb_nll_cifar10.yaml")
    training, method = config.training, config.method
    assert (training.rounds, training.epochs, training.batch_size, training.cohort(20)) == (
        80,
        2,
        64,
        20,
    )
    assert (training.lr, training.momentum, training.weight_decay) == (5e-4, 0.5, 1e-3)
    assert isinstance(method, FbNll)
    assert (method.models, method.q, config.clients) == (2, 10, 20)
