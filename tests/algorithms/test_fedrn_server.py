"""FedRN at the server: neighbours, profiles, what is logged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rayfl.algorithms import fedrn
from rayfl.algorithms.fedrn import (
    FedRN,
    warm_up,
)
from rayfl.learn.local_fit import Fitting
from rayfl.protocol import Client, Vector
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config
from tests.algorithms.fedrn_toys import (
    filtered,
    model_of,
    toy_client,
    tuned,
    visit,
    weights,
)
from tests.phases import run_phase

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
