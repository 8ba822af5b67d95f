"""A federation of few samples: heads' own mistakes are not put down to its labels."""

from __future__ import annotations

import numpy as np
import pytest

import rayfl
from rayfl.arrays import Floats
from rayfl.audit.story import Audit
from tests.audit.toys import make_settings

RATES = [0.06, 0.02, 0.08, 0.26, 0.63]


def audit_sites(samples: int, seed: int) -> tuple[Audit, Floats]:
    """An audit of five sites with so many samples in all, and their true shares."""
    settings = make_settings(
        clients=len(RATES),
        split={"train_samples": {"total": samples}},
        noise={"name": "symmetric", "rate": RATES},
        seed=seed,
    )
    found: Audit = rayfl.audit(settings)
    realised = found.subject.scenario.realised
    assert realised is not None
    return found, realised


@pytest.mark.parametrize("seed", [1, 2])
def test_twenty_samples_a_site_accuse_not_everybody(seed: int) -> None:
    found, realised = audit_sites(100, seed)
    shares = np.array([client.share.value for client in found.findings.clients])
    # Heads whose sureness was fitted to these labels are 0.21 and more off.
    assert np.abs(shares - realised).mean() < 0.15
    assert len([client for client in found.findings.clients if client.accused]) <= 3


def test_intervals_know_that_heads_have_learned_from_few() -> None:
    held: list[bool] = []
    for seed in range(1, 6):
        found, realised = audit_sites(150, seed)
        held += [
            client.share.low <= realised[client.client] <= client.share.high
            for client in found.findings.clients
        ]
    # Without the chance of the heads it is 0.56.
    assert np.mean(held) > 0.65
