"""A federation of few samples: heads' own mistakes are not put down to its labels."""

from __future__ import annotations

import numpy as np
import pytest

import rayfl
from rayfl.audit.story import Audit
from tests.audit.toys import make_settings

FEW = {"clients": 5, "split": {"train_samples": {"total": 250}}}


def test_clean_labels_of_few_samples_stay() -> None:
    found: Audit = rayfl.audit(make_settings(**FEW, noise="none"))
    assert not [client for client in found.findings.clients if client.accused]
    assert found.findings.samples.flagged.mean() < 0.06


@pytest.mark.parametrize("seed", [0, 1])
def test_shares_of_few_samples_are_near_the_truth(seed: int) -> None:
    rates = [0.06, 0.02, 0.08, 0.26, 0.63]
    noise = {"name": "symmetric", "rate": rates}
    found: Audit = rayfl.audit(make_settings(**FEW, noise=noise, seed=seed))
    realised = found.subject.scenario.realised
    assert realised is not None
    shares = np.array([client.share.value for client in found.findings.clients])
    assert np.abs(shares - realised).mean() < 0.06
