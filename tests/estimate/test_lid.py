from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from rayfl.errors import DataError
from rayfl.estimate import client_lids, lid_of_distances, local_intrinsic_dimensionality

Floats = NDArray[np.float64]
STEPS = np.arange(1, 21) / 20


@pytest.mark.parametrize(
    ("distances", "expected", "digits"),
    [
        ([1.0, 2.0, 4.0], 1.442695, 1e-5),
        (STEPS, 1.137718, 6e-7),
        (STEPS ** (1 / 2), 2.275434, 6e-7),
        (STEPS ** (1 / 5), 5.688566, 6e-7),
        (STEPS * 100, 1.137719, 6e-7),
    ],
    ids=["ln2", "line", "square root", "fifth root", "scaled"],
)
def test_lid_of_given_distances(distances: Floats, expected: float, digits: float) -> None:
    assert float(lid_of_distances(distances)) == pytest.approx(expected, abs=digits)


@pytest.mark.parametrize("dimension", [2, 5])
def test_root_of_the_distances_multiplies_the_dimension(dimension: int) -> None:
    assert lid_of_distances(STEPS ** (1 / dimension)) == pytest.approx(
        dimension * lid_of_distances(STEPS), abs=1e-4
    )


def test_every_sample_against_a_loop() -> None:
    points = np.random.default_rng(0).dirichlet(np.ones(5), size=40)
    gaps = np.sqrt(((points[:, None] - points) ** 2).sum(axis=2))
    expected = []
    for i in range(40):
        nearest = sorted(np.delete(gaps[i], i))[:7]
        expected.append(-7 / (sum(np.log(r / (nearest[-1] + 1e-6)) for r in nearest) + 1e-6))
    np.testing.assert_allclose(local_intrinsic_dimensionality(points, k=7), expected, rtol=1e-9)


def test_batches_are_their_members() -> None:
    batches = np.random.default_rng(0).normal(size=(2, 3, 25, 4))
    together = local_intrinsic_dimensionality(batches, k=5)
    assert together.shape == (2, 3, 25)
    assert np.array_equal(together[1, 2], local_intrinsic_dimensionality(batches[1, 2], k=5))


@pytest.mark.parametrize("dimension", [1, 2, 4])
def test_estimates_the_dimension_of_a_ball(dimension: int) -> None:
    points = np.zeros((1500, 10))
    points[:, :dimension] = np.random.default_rng(0).uniform(size=(1500, dimension))
    assert np.median(local_intrinsic_dimensionality(points, k=40)) == pytest.approx(
        dimension, rel=0.2
    )


@pytest.mark.parametrize(("samples", "k"), [(11, 20), (11, 10)])
def test_small_clients_use_the_neighbours_they_have(samples: int, k: int) -> None:
    line = np.arange(samples)[:, None] / 20.0
    # The first point sees distances 1/20 .. 10/20, so the numerator must be 10, not 20.
    expected = 10 / -np.log(np.arange(1, 11) / 10).sum()
    assert expected == pytest.approx(2.524791 / 2, abs=1e-4)
    assert local_intrinsic_dimensionality(line, k)[0] == pytest.approx(expected, abs=1e-4)


def test_duplicates_are_neighbours_too() -> None:
    points = np.array([[0.0], [0.0], [1.0], [2.0]])
    found = local_intrinsic_dimensionality(points, k=2)
    assert np.isfinite(found).all()
    assert found[0] == pytest.approx(2 / -np.log(1e-12), rel=1e-4)
    assert local_intrinsic_dimensionality(np.ones((5, 3)), k=3).tolist() == [0.0] * 5


def test_a_lone_sample_has_none_and_its_client_gets_the_median() -> None:
    assert np.isnan(local_intrinsic_dimensionality([[1.0, 2.0]])).all()
    rng = np.random.default_rng(0)
    clients = [
        rng.normal(size=(20, 3)),
        rng.normal(size=(1, 3)),
        rng.normal(size=(30, 3)),
        rng.normal(size=(9, 3)),
    ]
    found = client_lids(clients, k=5)
    assert found[0] == local_intrinsic_dimensionality(clients[0], k=5).mean()
    assert found[1] == np.median(found[[0, 2, 3]])
    assert client_lids([[[1.0]]]).tolist() == [0.0]


@pytest.mark.parametrize(("points", "k"), [([1.0, 2.0], 3), ([[1.0], [2.0]], 0)])
def test_refuses_what_is_no_batch(points: list[float], k: int) -> None:
    with pytest.raises(DataError, match="k is at least 1"):
        local_intrinsic_dimensionality(points, k)
