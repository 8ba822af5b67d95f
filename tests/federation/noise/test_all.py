"""What holds for every noise model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rayfl.federation.interfaces import Truth
from rayfl.federation.noise import NOISES

from .truths import changed, corrupt, truth_of

RANDOM: list[Any] = [
    {"name": "symmetric", "rate": 0.4},
    {"name": "symmetric", "rate": 0.4, "count": "per_class"},
    {"name": "symmetric", "rate": {"name": "ramp", "max": 0.8}, "targets": "present"},
    {"name": "symmetric", "rate": "discrete", "targets": "all", "count": "bernoulli"},
    "uniform",
    {"name": "asymmetric", "rate": 0.4, "pairs": "next"},
    {"name": "asymmetric", "rate": 0.4, "pairs": {0: 1, 3: 2}, "count": "per_class_floor"},
    {"name": "task", "mode": "independent"},
    {"name": "task", "mode": "dependent"},
    {"name": "task", "redraw": True},
    {"name": "transition", "matrix": (np.eye(10) * 0.5 + 0.05).tolist()},
    {"name": "instance", "rate": 0.4},
    {"name": "mixed", "parts": [{"noise": {"name": "symmetric", "rate": 0.4}, "clients": 0.5}]},
]


def example(clients: int = 8, per_class: int = 20) -> Truth:
    images = np.random.default_rng(0).integers(
        0, 256, (clients * per_class * 10, 3, 3, 1), dtype=np.uint8
    )
    tasks = tuple((k % 10, (k + 1) % 10) for k in range(clients))
    return truth_of([[per_class] * 10] * clients, images=images, tasks=tasks)


@pytest.mark.parametrize("spec", ["none", *RANDOM], ids=str)
def test_given_labels_are_classes_and_the_truth_is_left_alone(spec: Any) -> None:
    truth = example()
    before = truth.labels.copy()
    for array in (truth.labels, truth.owner, truth.position, truth.images()):
        array.setflags(write=False)
    result = corrupt(spec, truth)
    assert result.given.dtype == np.int64
    assert result.given.shape == truth.labels.shape
    assert set(result.given) <= set(range(10))
    assert result.nominal.shape == (8,)
    assert not np.shares_memory(result.given, truth.labels)
    assert (truth.labels == before).all()


@pytest.mark.parametrize("spec", RANDOM, ids=str)
def test_the_seed_decides(spec: Any) -> None:
    truth = example()
    first, again, other = (corrupt(spec, truth, seed) for seed in (1, 1, 2))
    assert (first.given == again.given).all()
    assert (first.nominal == again.nominal).all()
    assert (first.given != other.given).any()


@pytest.mark.parametrize("spec", ["none", *RANDOM], ids=str)
def test_a_noise_can_be_written_down_and_built_again(spec: Any) -> None:
    noise = NOISES.build(spec)
    assert NOISES.build(NOISES.describe(noise)) == noise


@pytest.mark.parametrize("name", NOISES.names())
def test_every_registered_name_leads_to_a_component(name: str) -> None:
    assert hasattr(NOISES.find(name), "corrupt")


@given(
    counts=st.lists(st.lists(st.integers(0, 30), min_size=4, max_size=4), min_size=1, max_size=6),
    rate=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=150, deadline=None)
def test_exact_counts_are_exact_on_every_client(
    counts: list[list[int]], rate: float, seed: int
) -> None:
    truth = truth_of(counts)
    sizes = np.array(counts).sum(axis=1)
    for spec in (
        {"name": "symmetric", "rate": rate},
        {"name": "asymmetric", "rate": rate, "pairs": "next"},
    ):
        assert (
            changed(truth, corrupt(spec, truth, seed)).tolist()
            == np.floor(rate * sizes + 1e-9).tolist()
        )


@given(
    counts=st.lists(st.lists(st.integers(0, 30), min_size=4, max_size=4), min_size=1, max_size=6),
    rate=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
@settings(max_examples=80, deadline=None)
def test_counts_per_class_are_exact_in_every_class_of_every_client(
    counts: list[list[int]], rate: float, seed: int
) -> None:
    truth = truth_of(counts)
    result = corrupt({"name": "symmetric", "rate": rate, "count": "per_class"}, truth, seed)
    wrong = result.given != truth.labels
    cells = np.bincount((truth.owner * 4 + truth.labels)[wrong], minlength=4 * len(counts))
    assert cells.tolist() == np.rint(rate * np.array(counts).ravel()).tolist()


@pytest.mark.parametrize("spec", [s for s in RANDOM if "instance" not in str(s)], ids=str)
def test_a_million_samples_over_ten_thousand_clients_are_corrupted(spec: Any) -> None:
    truth = example(clients=10_000, per_class=10)
    result = corrupt(spec, truth)
    assert 0.03 < np.mean(result.given != truth.labels) < 0.6
