"""FedRN against numbers worked out by hand, and against its definition on small networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rayfl.algorithms import fedrn
from rayfl.algorithms.fedrn import (
    FedRN,
    Roster,
)
from rayfl.learn.divide import Division
from rayfl.learn.fit import carry_out, compute_outputs
from rayfl.learn.judge import Judged, judge
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Fit
from rayfl.models.cnn import CNN4, VGG
from rayfl.models.mlp import MLP
from rayfl.models.network import Network
from rayfl.protocol import Client, Out, Vector
from tests.algorithms.fedrn_toys import (
    client_of,
    filtered,
    learner_of,
    model_of,
    toy_client,
    tuned,
    visit,
    weights,
)
from tests.algorithms.toys import fleet_of

ACCURACY = [0.55, 0.90, 0.40, 0.70, 0.65]


SOFTMAX = [[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.6, 0.3, 0.1], [0.65, 0.25, 0.1], [0.2, 0.2, 0.6]]


PROFILE = {
    c: (a, np.log(q).astype(np.float32))
    for c, (a, q) in enumerate(zip(ACCURACY, SOFTMAX, strict=True))
}


POSTERIORS = [[0.9, 0.4, 0.6, 0.1], [0.8, 0.7, 0.2, 0.3], [0.95, 0.55, 0.45, 0.05]]


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


def test_a_judging_batch_of_its_own_frees_fedrn_from_the_run_s_evaluation_batch() -> None:
    """A network with batch statistics answers by its batch, and FedRN learns from its answers."""
    found = {}
    for evaluation in (16, 5):
        learner = learner_of(CNN4(widths=(4,)), side=8, channels=3)
        learner.evaluation_batch = evaluation
        client = client_of(learner, side=8)
        for judging in (8, None):
            division = fedrn.divide_by(client, weights(learner, 1), FedRN(judging_batch=judging))
            found[evaluation, judging] = division.clean.tobytes()
    assert found[16, 8] == found[5, 8]
    assert found[16, None] != found[5, None]


def test_the_accuracy_of_a_client_is_judged_in_the_same_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int | None] = []

    def note_batch(client: Client, w: Vector, batch_size: int | None = None) -> Judged:
        asked.append(batch_size)
        return judge(client, w, batch_size=batch_size)

    monkeypatch.setattr(fedrn, "judge", note_batch)
    client, w = toy_client()
    visit(client, w, [weights(client.learner, 5)], judging_batch=8)
    assert asked == [8, 8, 8]
