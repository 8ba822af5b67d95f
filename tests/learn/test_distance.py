"""Distances of models by tensor, against hand-made vectors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.errors import DataError
from rayfl.learn.distance import Distance, measure_distance, name_spans
from rayfl.learn.resident import Resident
from tests.learn.kit import build_normed

CPU = torch.device("cpu")


def two_tensors() -> Resident:
    return Resident(nn.Linear(2, 1), CPU)


@pytest.mark.parametrize(
    ("gaps", "total", "norm"),
    [([3, 4, 12], 17.0, 13.0), ([3, 4, 0], 5.0, 5.0), ([0, 0, 0], 0.0, 0.0)],
)
def test_the_two_distances_differ(gaps: list[float], total: float, norm: float) -> None:
    a = np.array([1.0, -2.0, 0.5], np.float32)
    found = measure_distance(two_tensors(), a, a + np.array(gaps, np.float32))
    assert found.by_tensor == {"weight": math.hypot(*gaps[:2]), "bias": gaps[2]}
    assert (found.total, found.norm) == (total, norm)


def test_distances_of_rscfed() -> None:
    found = Distance({"a": 5.0, "b": 10.0})
    assert found.total == 15
    assert found.norm == pytest.approx(11.180340, abs=1e-6)


def test_statistics_count_where_they_are_asked_for() -> None:
    network = Resident(build_normed(), CPU)
    a = np.zeros(len(network.flat), np.float32)
    b = np.arange(len(a), dtype=np.float32)
    whole, trained = (measure_distance(network, a, b, flag) for flag in (True, False))
    assert whole.norm == pytest.approx(np.linalg.norm(b), rel=1e-6)
    assert trained.norm == pytest.approx(np.linalg.norm(b[: network.n_parameters]), rel=1e-6)
    assert set(trained.by_tensor) == {name for name, _ in network.net.named_parameters()}
    extra = set(whole.by_tensor) - set(trained.by_tensor)
    assert extra == {f"{layer}.running_{which}" for layer in (1, 4) for which in ("mean", "var")}


def test_spans_cover_the_vector() -> None:
    network = Resident(build_normed(), CPU)
    spans = sorted(name_spans(network).values(), key=lambda span: span.start)
    assert spans[0].start == 0
    assert spans[-1].stop == len(network.flat)
    for name, span in name_spans(network, statistics=False).items():
        parameter = network.net.get_parameter(name)
        assert span.stop - span.start == parameter.numel()


def test_small_differences_of_large_numbers_are_not_lost() -> None:
    a = np.array([1e8, 0, 0], np.float32)
    b = np.array([1e8 + 8, 0, 0], np.float32)
    assert measure_distance(two_tensors(), a, b).total == 8


def test_models_of_another_network_are_refused() -> None:
    with pytest.raises(DataError, match="models of this network have 3 numbers; got 3 and 4"):
        measure_distance(two_tensors(), np.zeros(3, np.float32), np.zeros(4, np.float32))
