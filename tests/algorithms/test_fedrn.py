"""FedRN against numbers worked out by hand, and against its definition on small networks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rayfl.algorithms import fedrn
from rayfl.algorithms.fedrn import (
    FedRN,
    Roster,
    train_on_clean,
    tune_head,
    warm_up,
)
from rayfl.estimate.mixture import LossMixture
from rayfl.learn.divide import Division
from rayfl.learn.fit import carry_out, compute_losses, compute_outputs
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.resident import Resident
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.models.cnn import CNN4, VGG
from rayfl.models.mlp import MLP
from rayfl.models.network import Architecture, Network, build_network
from rayfl.protocol import Client, Out, Vector
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.toys import fleet_of
from tests.phases import drive, run_phase

QUICK = {"name": "fedrn", "k": 2, "warmup": 2}
LONG_VISITS = {"training": {"epochs": 4}}

ROWS = [
    Row(
        "fedrn",
        QUICK,
        config=LONG_VISITS,
        neutral={"name": "fedrn", "warmup": 6},
        same_as={"name": "fedavg"},
        refused=[
            ({"k": -1}, "method.k"),
            ({"alpha": 1.1}, "method.alpha"),
            ({"warmup": -1}, "method.warmup"),
            ({"threshold": 2}, "method.threshold"),
            ({"neighbours": "nearest"}, "method.neighbours"),
            ({"similarity_on": "features"}, "method.similarity_on"),
            ({"mixture": {"reg_covar": 0}}, "reg_covar"),
        ],
    ),
    Row(
        "fedrn_random",
        {**QUICK, "k": 1, "neighbours": "random", "fine_tune": False, "similarity_on": "logits"},
        config={"training": {"epochs": 4, "clients_per_round": 6, "weight_decay": 1e-4}},
    ),
]

ACCURACY = [0.55, 0.90, 0.40, 0.70, 0.65]
SOFTMAX = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1], [0.65, 0.25, 0.1], [0.2, 0.2, 0.6]]
PROFILE = {
    c: (a, np.log(q).astype(np.float32))
    for c, (a, q) in enumerate(zip(ACCURACY, SOFTMAX, strict=True))
}
POSTERIORS = [[0.9, 0.4, 0.6, 0.1], [0.8, 0.7, 0.2, 0.3], [0.95, 0.55, 0.45, 0.05]]


def learner_of(
    spec: Architecture, side: int = 4, channels: int = 1, classes: int = 4, **training: Any
) -> Learner:
    def build() -> Network:
        return build_network(spec, (side, side, channels), classes, seed=0)

    return Learner(
        build, LocalTraining(**{"lr": 0.1, "batch_size": 8, **training}), Normalisation(), "cpu", 16
    )


def weights(learner: Learner, seed: int) -> Vector:
    """The fresh network, moved a little."""
    start = Resident(learner.build(), learner.device).dump()
    return (start + np.random.default_rng(seed).normal(0, 0.1, start.shape)).astype(np.float32)


def client_of(
    learner: Learner, samples: int = 40, state: dict[str, Any] | None = None, side: int = 4
) -> Client:
    rng = np.random.default_rng(7)
    channels = 3 if side > 4 else 1
    x = rng.integers(0, 256, (samples, side, side, channels), dtype=np.uint8)
    # Every visit of a test starts from the same stream.
    return Client(3, x, rng.integers(0, 4, samples), state or {}, np.random.default_rng(1), learner)


def toy_client(samples: int = 40, own: int | None = 1, **training: Any) -> tuple[Client, Vector]:
    """A client of a small perceptron with its last local model, and a global model."""
    learner = learner_of(MLP(hidden=(8,)), **training)
    state = {} if own is None else {"w": weights(learner, own)}
    return client_of(learner, samples, state), weights(learner, 0)


def visit(client: Client, w: Vector, peers: Sequence[Vector] = (), **settings: Any) -> Out:
    trust = settings.pop("trust", [1.0] * (len(peers) + 1))
    method = FedRN(**{"fine_tune": False, **settings})
    return run_phase(train_on_clean, client, w=w, peers=peers, trust=trust, method=method)


def tuned(client: Client, model: Vector, samples: NDArray[np.bool_]) -> Vector:
    """The model after its head was fitted to these samples."""
    return drive(client, tune_head(client, model, samples))


def model_of(out: Out) -> Vector:
    assert isinstance(out.update, np.ndarray)
    return out.update


def filtered(client: Client, model: Vector) -> NDArray[np.bool_]:
    """What one model's mixture keeps."""
    losses = compute_losses(compute_outputs(client.learner, model, client.x), client.y)
    return LossMixture().fit(losses).clean > 0.5


# -- who is a neighbour ----------------------------------------------------------------------------


def neighbours_of(
    method: FedRN, target: int, profile: dict[int, Any], t: int = 5
) -> tuple[list[int], list[float]]:
    """Ids of a client's neighbours (their stored models are those ids), and the trust that goes
    with them."""
    fleet = fleet_of([4] * 5)
    fleet.map(stored_id, range(5))
    found = method.neighbourhoods([target], Roster.of(fleet.clients, profile), fleet, t)[target]
    return [int(fleet.get(ref)[0]) for ref in found["peers"]], found["trust"]


def stored_id(client: Client) -> Out:
    return Out(state={"w": np.array([client.id], np.float32)})


@pytest.mark.parametrize(
    ("alpha", "order"), [(0.6, [3, 1, 2, 4]), (0.0, [3, 2, 4, 1]), (1.0, [1, 3, 4, 2])]
)
def test_neighbours_come_by_reliability(alpha: float, order: list[int]) -> None:
    assert neighbours_of(FedRN(k=4, alpha=alpha), 0, PROFILE)[0] == order
    assert neighbours_of(FedRN(k=9, alpha=alpha), 0, PROFILE)[0] == order
    assert neighbours_of(FedRN(k=1, alpha=alpha), 0, PROFILE)[0] == order[:1]


def test_trust_is_the_targets_own_first() -> None:
    _, trust = neighbours_of(FedRN(k=4), 0, PROFILE)
    assert trust == pytest.approx([0.58, 0.757399, 0.6, 0.388730, 0.360437], abs=1e-6)


def test_no_neighbours_is_trust_in_oneself_alone() -> None:
    peers, trust = neighbours_of(FedRN(k=0), 0, PROFILE)
    assert peers == []
    assert trust == pytest.approx([0.58])


@pytest.mark.parametrize("missing", [0, 3])
def test_clients_that_never_took_part_are_no_neighbours(missing: int) -> None:
    profile = {client: known for client, known in PROFILE.items() if client != missing}
    peers, trust = neighbours_of(FedRN(k=4), 0, profile)
    assert missing not in peers
    assert len(peers) == (4 if missing == 0 else 3)
    if missing == 0:
        # Half an expert, wholly similar to itself, unlike everybody else: the order is by expertise
        # alone.
        assert trust == pytest.approx([0.6 * 0.5 + 0.4, 0.6, 0.36, 0.3, 0.0])
        assert peers == [1, 3, 4, 2]


@pytest.mark.parametrize("neighbours", ["reliable", "random"])
def test_first_round_without_warm_up_has_no_neighbours(neighbours: Any) -> None:
    peers, trust = neighbours_of(FedRN(warmup=0, neighbours=neighbours), 2, {})
    assert peers == []
    assert trust == [pytest.approx(0.7 if neighbours == "reliable" else 1.0)]


def test_expertise_ignores_the_target_and_similarity_the_accuracy() -> None:
    roster = Roster.of(range(5), PROFILE)
    expert = FedRN(alpha=1.0).scores(roster)
    assert np.array_equal(expert, np.tile(expert[0], (5, 1)))
    shuffled = {client: (1 - accuracy, q) for client, (accuracy, q) in PROFILE.items()}
    similar = FedRN(alpha=0.0)
    assert np.array_equal(similar.scores(roster), similar.scores(Roster.of(range(5), shuffled)))


def test_logits_and_softmax_rank_differently() -> None:
    answers = [[2.0, 0.0, -1.0], [4.0, 2.0, 1.0], [2.0, 0.5, -1.0]]
    roster = Roster.of(range(3), {c: (0.5, np.array(q, np.float32)) for c, q in enumerate(answers)})
    by_softmax, by_logits = (
        FedRN(alpha=0.0, similarity_on=on).scores(roster)[0] for on in ("softmax", "logits")
    )
    assert by_softmax[1] == pytest.approx(1.0)
    assert by_logits[1] == 0.0 < by_logits[2]


def test_random_neighbours_are_distinct_uniform_and_never_the_target() -> None:
    method, fleet = FedRN(k=2, neighbours="random"), fleet_of([1] * 11)
    fleet.map(stored_id, range(11))
    roster = Roster.of(fleet.clients, dict.fromkeys(range(11), PROFILE[0]))
    counts, rounds = np.zeros(11), 2000
    for t in range(rounds):
        found = method.neighbourhoods([4], roster, fleet, t)[4]
        assert found["trust"] == [1.0, 1.0, 1.0]
        drawn = [int(fleet.get(ref)[0]) for ref in found["peers"]]
        assert len(set(drawn)) == 2
        counts[drawn] += 1
    assert counts[4] == 0
    # 2 of 10: four standard deviations of a frequency.
    assert np.abs(np.delete(counts, 4) / rounds - 0.2).max() < 4 * np.sqrt(0.2 * 0.8 / rounds)


def test_random_neighbours_are_fresh_in_every_round_and_for_every_target() -> None:
    method, fleet = FedRN(k=3, neighbours="random"), fleet_of([1] * 40)
    fleet.map(stored_id, range(40))
    roster = Roster.of(fleet.clients, dict.fromkeys(range(40), PROFILE[0]))
    drawn = {
        tuple(int(fleet.get(ref)[0]) for ref in found["peers"])
        for t in (0, 1)
        for found in method.neighbourhoods([0, 1], roster, fleet, t).values()
    }
    assert len(drawn) == 4


# -- which samples are kept ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("trust", "models", "kept"),
    [
        ([0.58], 1, [0, 2]),
        ([0.58, 0.757399], 2, [0, 1]),
        ([0.58, 0.757399, 0.6], 3, [0, 1]),
        ([1.0, 1.0, 1.0], 3, [0, 1]),
        ([0.0, 0.0, 0.0], 3, [0, 1]),
    ],
)
def test_selection_by_the_ensemble(
    trust: list[float], models: int, kept: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter(POSTERIORS)

    def divided(*_: object) -> Division:
        clean = np.array(next(answers))
        return Division(clean, clean > 0.5, separated=True, inverted=0)

    monkeypatch.setattr(fedrn, "divide_by", divided)
    client, w = toy_client(samples=4)
    out = visit(client, w, peers=[w] * (models - 1), trust=trust)
    assert np.flatnonzero(out.state["kept"]).tolist() == kept


def test_without_neighbours_it_is_a_filter_by_the_own_last_model() -> None:
    client, w = toy_client()
    kept = visit(client, w).state["kept"]
    assert np.array_equal(kept, filtered(client, client.state["w"]))
    assert not np.array_equal(kept, filtered(client, w))
    assert 0 < kept.sum() < len(client)


@pytest.mark.parametrize("trust", [[0.3, 0.9], [1.0, 0.0], [0.2, 0.2, 0.7]])
def test_identical_neighbours_change_nothing(trust: list[float]) -> None:
    alone = visit(*toy_client())
    client, w = toy_client()
    twins = visit(client, w, peers=[client.state["w"]] * (len(trust) - 1), trust=trust)
    assert np.array_equal(twins.state["kept"], alone.state["kept"])
    assert np.array_equal(model_of(twins), model_of(alone))


def test_training_starts_from_the_global_model_on_the_kept_samples() -> None:
    client, w = toy_client()
    out = visit(client, w, peers=[weights(client.learner, 5)])
    again, _ = toy_client()
    kept = out.state["kept"]
    assert 0 < kept.sum() < len(kept)
    assert np.array_equal(model_of(out), carry_out(again, Fit(w, keep=kept)).weights)
    assert np.array_equal(model_of(out), out.state["w"])


def test_report_is_of_all_samples_and_the_new_model() -> None:
    client, w = toy_client()
    out = visit(client, w)
    model = out.state["w"]
    right = compute_outputs(client.learner, model, client.x).argmax(axis=1) == client.y
    assert out.report["acc"] == right.mean()
    assert "n" not in out.report
    noise = torch.from_numpy(
        np.random.default_rng(fedrn.PROBE_SEED).standard_normal((1, 1, 4, 4), dtype=np.float32)
    )
    with torch.no_grad():
        expected = client.learner.resident(model).net.eval()(noise)[0].numpy()
    assert np.array_equal(out.report["q"], expected)


def test_nobody_elses_data_or_place_changes_the_answer() -> None:
    here, there = (learner_of(MLP(hidden=(8,))) for _ in range(2))
    w = weights(here, 3)
    here.resident(weights(here, 4)).net.train()
    assert np.array_equal(
        fedrn.answer_to_probe(here, w, (4, 4, 1)), fedrn.answer_to_probe(there, w, (4, 4, 1))
    )


# -- fine-tuning heads -----------------------------------------------------------------------------


def changed(before: Vector, after: Vector) -> NDArray[np.int64]:
    return np.flatnonzero(before.view(np.uint32) != after.view(np.uint32))


def head_positions(learner: Learner) -> NDArray[np.int64]:
    resident = learner.shape_of()
    assert isinstance(resident.net, Network)
    return np.concatenate(
        [np.arange(span.start, span.stop) for span in resident.span(resident.net.head)]
    )


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_only_the_head_of_the_papers_network_moves(decay: float) -> None:
    learner = learner_of(CNN4(), side=32, channels=3, classes=10, weight_decay=decay, momentum=0.5)
    client, peer = client_of(learner, samples=24, side=32), weights(learner, 2)
    assert len(peer) == 115_658
    moved = changed(peer, tuned(client, peer, np.ones(24, np.bool_)))
    assert set(moved) <= set(head_positions(learner))
    # Rows of classes that no sample has may keep a few of their 2,570 numbers to the last bit.
    assert 2_500 < len(moved) <= len(head_positions(learner)) == 2_570


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_statistics_of_a_frozen_body_stay(optimizer: str) -> None:
    spec = VGG()
    learner = learner_of(
        spec, side=8, channels=3, optimizer=optimizer, weight_decay=0.1, momentum=0.9
    )
    client = client_of(learner, samples=20, side=8)
    peer = weights(learner, 2)
    resident = learner.shape_of()
    assert len(peer) > resident.n_parameters
    # Variances are not negative.
    peer[resident.n_parameters :] = np.abs(peer[resident.n_parameters :]) + 0.5
    moved = changed(peer, tuned(client, peer, np.ones(20, np.bool_)))
    assert len(moved) > 0
    assert set(moved) <= set(head_positions(learner))


@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_one_epoch_on_the_auxiliary_set(decay: float) -> None:
    """Softmax regression is all head: fine-tuning must equal one epoch of training on those
    samples."""
    from rayfl.models.mlp import Linear

    learner = learner_of(Linear(), epochs=3, momentum=0.5, weight_decay=decay)
    client, peer = client_of(learner), weights(learner, 2)
    samples = np.arange(40) % 3 > 0
    found = tuned(client, peer, samples)
    once = carry_out(client, Fit(peer, keep=samples, settings={"epochs": 1}))
    np.testing.assert_allclose(found, once.weights, rtol=0, atol=1e-6)
    assert client.learner.passes.take() == (2 * samples.sum(), 2 * samples.sum())


def test_every_neighbour_sees_the_same_batches_and_the_clients_stream_stays() -> None:
    client, w = toy_client()
    peer = weights(client.learner, 5)
    mask = np.ones(40, np.bool_)
    assert np.array_equal(tuned(client, peer, mask), tuned(client, peer, mask))
    # Threshold 1 keeps nothing, so everything: what is left of the neighbours is their use of
    # random numbers.
    everything = visit(client, w, peers=[peer], threshold=1.0, fine_tune=True)
    assert np.array_equal(
        model_of(everything), model_of(run_phase(warm_up, toy_client()[0], w=w, method=FedRN()))
    )


def test_the_auxiliary_set_is_the_own_models_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[NDArray[np.bool_]] = []

    def spy(client: Client, model: Vector, samples: NDArray[np.bool_]) -> Fitting[Vector]:
        seen.append(samples)
        yield from ()
        return model

    monkeypatch.setattr(fedrn, "tune_head", spy)
    client, w = toy_client()
    visit(client, w, peers=[w, weights(client.learner, 5)], fine_tune=True)
    own = filtered(client, client.state["w"])
    assert [np.array_equal(samples, own) for samples in seen] == [True, True]


# -- costs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [0, 1, 2])
@pytest.mark.parametrize("fine_tune", [True, False])
def test_passes(k: int, fine_tune: bool) -> None:
    """F = e s + k a + (k + 1) + 1 and B = e s + k a; without fine-tuning a = 0. s, a: kept and
    auxiliary shares. The probe is one image more."""
    client, w = toy_client(epochs=3)
    auxiliary = filtered(client, client.state["w"]).sum()
    client.learner.passes.take()
    out = visit(
        client, w, peers=[weights(client.learner, 5 + n) for n in range(k)], fine_tune=fine_tune
    )
    trained = 3 * out.state["kept"].sum() + k * fine_tune * auxiliary
    assert client.learner.passes.take() == (trained + (k + 2) * 40 + 1, trained)


@pytest.mark.parametrize(("k", "down"), [(1, 231_316), (2, 346_974)])
def test_traffic_of_the_papers_network(k: int, down: int, tmp_path: Path) -> None:
    big = {
        "data": {
            "name": "blobs",
            "samples": 24,
            "test_samples": 4,
            "classes": 10,
            "side": 32,
            "channels": 3,
        },
        "clients": 3,
        "model": {"name": "cnn4"},
        "training": {"rounds": 2, "clients_per_round": 3, "epochs": 1, "batch_size": 8},
    }
    row = Row("big", {"name": "fedrn", "k": k, "warmup": 1}, config=big)
    outcome, _ = run_toy(toy_config(row, tmp_path))
    warm, reliable = (record["metrics"] for record in outcome.history)
    assert warm["cost/down_mb"] * 1e6 == 3 * 4 * 115_658
    assert reliable["cost/down_mb"] * 1e6 == pytest.approx(3 * 4 * down)
    for metrics in (warm, reliable):
        assert metrics["cost/up_mb"] * 1e6 == pytest.approx(3 * 4 * (115_658 + 11))


# -- odd cases -------------------------------------------------------------------------------------


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_nothing_kept_is_everything_kept(samples: int) -> None:
    client, w = toy_client(samples=samples)
    out = visit(client, w, peers=[w], threshold=1.0, fine_tune=True)
    assert out.state["kept"].tolist() == [True] * samples


def test_one_sample_is_clean() -> None:
    client, w = toy_client(samples=1)
    out = visit(client, w, peers=[w])
    assert out.state["kept"].tolist() == [True]
    assert out.report["unseparated"] == 2


@pytest.mark.parametrize("fine_tune", [True, False])
def test_a_broken_neighbour_is_left_out(fine_tune: bool) -> None:
    client, w = toy_client()
    good = weights(client.learner, 5)
    with_broken = visit(
        client, w, [np.full_like(w, np.nan), good], trust=[0.2, 9.0, 0.3], fine_tune=fine_tune
    )
    without = visit(*toy_client(), [good], trust=[0.2, 0.3], fine_tune=fine_tune)
    assert np.array_equal(with_broken.state["kept"], without.state["kept"])
    assert (with_broken.report["dropped"], without.report["dropped"]) == (1, 0)


@pytest.mark.parametrize("own", [None, np.inf])
def test_the_global_model_stands_in_for_the_own_one(own: float | None) -> None:
    client, w = toy_client(own=None)
    if own is not None:
        client.state = {"w": np.full_like(w, own)}
    assert np.array_equal(visit(client, w).state["kept"], filtered(client, w))


def test_a_broken_global_model_ends_in_an_update_that_is_left_out() -> None:
    client, w = toy_client(own=None)
    out = visit(client, np.full_like(w, np.nan))
    assert out.state["kept"].all()
    assert not np.isfinite(model_of(out)).all()


# -- whole runs ------------------------------------------------------------------------------------


@pytest.mark.parametrize("warmup", [2, 4])
def test_warm_up_is_federated_averaging(warmup: int, tmp_path: Path) -> None:
    config = toy_config(ROWS[0], tmp_path, {"name": "fedrn", "warmup": warmup})
    average, _ = run_toy(
        shortened(toy_config(ROWS[0], tmp_path, {"name": "fedavg"}), warmup), directory="average"
    )
    warm, _ = run_toy(shortened(config, warmup), directory="warm")
    after, _ = run_toy(config, directory="after")
    assert warm.sha256 == average.sha256
    tests = [
        [r["metrics"]["test/loss"] for r in outcome.history[:warmup]]
        for outcome in (average, warm, after)
    ]
    assert tests[0] == tests[1] == tests[2]


def test_what_a_run_shows(tmp_path: Path) -> None:
    outcome, fleet = run_toy(toy_config(ROWS[0], tmp_path))
    before, after = outcome.history[1]["metrics"], outcome.history[-1]["metrics"]
    assert before["labels/recall"] == before["labels/kept"] == 1.0
    # Noisy clients cannot reach a high accuracy on their own labels.
    assert after["expertise/noise_correlation"] < -0.9
    assert "mixtures/inverted" in after
    assert "mixtures/inverted" not in before
    matrix = fleet.left["similarity"]
    assert matrix.shape == (6, 6)
    assert np.array_equal(matrix, matrix.T, equal_nan=True)
    assert np.diagonal(matrix) == pytest.approx(np.ones(6))


def test_selection_raises_label_precision_in_every_round(tmp_path: Path) -> None:
    selected, _ = run_toy(toy_config(ROWS[0], tmp_path), directory="selected")
    # The same cohorts, everything kept: precision is the share of right labels.
    everything, _ = run_toy(
        toy_config(ROWS[0], tmp_path, {"name": "fedrn", "warmup": 6}), directory="all"
    )
    pairs = [
        (a["metrics"], b["metrics"])
        for a, b in zip(selected.history, everything.history, strict=True)
    ]
    gains = [a["labels/precision"] - b["labels/precision"] for a, b in pairs]
    assert gains[:2] == [0.0, 0.0]
    assert min(gains[2:]) > 0.1
    assert min(a["labels/recall"] for a, _ in pairs) > 0.8


def test_strangers_are_blank_in_the_picture(tmp_path: Path) -> None:
    _, fleet = run_toy(shortened(toy_config(ROWS[0], tmp_path), 1))
    matrix = fleet.left["similarity"]
    took_part = [client in fleet.table for client in range(6)]
    assert np.array_equal(np.isfinite(matrix), np.outer(took_part, took_part))
    assert sum(took_part) == 4


def test_alpha_and_k_matter(tmp_path: Path) -> None:
    settings = [
        QUICK,
        {**QUICK, "k": 0},
        {**QUICK, "alpha": 0.0},
        {**QUICK, "neighbours": "random"},
    ]
    runs = [
        run_toy(toy_config(ROWS[0], tmp_path, each), directory=f"{i}")[0]
        for i, each in enumerate(settings)
    ]
    assert len({run.sha256 for run in runs}) == len(settings)
