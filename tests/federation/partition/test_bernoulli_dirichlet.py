from __future__ import annotations

import numpy as np
import pytest

from rayfl.errors import ConfigError
from rayfl.federation.partition import bernoulli_dirichlet
from rayfl.federation.partition.bernoulli_dirichlet import draw_holders, share_class

from .pools import assign, held, pool_of


def test_fedcorr_partition_covers_the_data_and_keeps_to_phi(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn = []

    def recorded(clients: int, classes: int, phi: float, rng: np.random.Generator) -> object:
        drawn.append(draw_holders(clients, classes, phi, rng))
        return drawn[-1]

    monkeypatch.setattr(bernoulli_dirichlet, "draw_holders", recorded)
    pool = pool_of([5000] * 10, clients=100)
    owner = assign("bernoulli_dirichlet", pool).owner
    counts = held(pool, owner)
    assert owner.min() == 0
    assert (counts.sum(axis=0) == 5000).all()
    assert not counts[~drawn[-1]].any()
    assert drawn[-1].any(axis=1).all()
    assert abs(np.mean(drawn[-1]) - 0.7) < 5 * np.sqrt(0.7 * 0.3 / 1000)


@pytest.mark.parametrize(
    ("clients", "classes", "phi"), [(500, 2, 0.1), (1, 30, 0.1), (2, 10, 0.3), (1, 1, 0.01)]
)
def test_no_row_and_no_column_stays_empty(clients: int, classes: int, phi: float) -> None:
    holds = draw_holders(clients, classes, phi, np.random.default_rng(0))
    assert holds.any(axis=1).all()
    assert holds.any(axis=0).all()


def test_phi_of_one_makes_everyone_a_holder() -> None:
    assert draw_holders(7, 5, 1.0, np.random.default_rng(0)).all()


def test_a_hopeless_phi_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"got none such in 1000 draws with phi = 1e-09\. Raise phi"
    ):
        assign({"name": "bernoulli_dirichlet", "phi": 1e-9}, pool_of([10] * 3, clients=2))


def test_samples_fall_independently_with_dirichlet_shares() -> None:
    """Mean and variance of the Dirichlet-multinomial count of one of three holders."""
    rng = np.random.default_rng(0)
    mine = np.array([True, False, True, True])
    counts = np.array([share_class(mine, 5.0, 60, rng) for _ in range(4000)])
    assert not counts[:, 1].any()
    assert (counts.sum(axis=1) == 60).all()
    assert counts[:, 0].mean() == pytest.approx(20, abs=0.6)
    assert counts[:, 0].var() == pytest.approx(
        60 * (1 / 3) * (2 / 3) * (60 + 15) / (1 + 15), rel=0.1
    )
