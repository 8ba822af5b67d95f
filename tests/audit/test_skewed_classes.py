"""Clients that hold two classes each: what the best of them do not hold is not taken for wrong."""

from __future__ import annotations

import numpy as np
import pytest

import rayfl
from rayfl.audit.story import Audit
from tests.audit.toys import make_settings


@pytest.mark.parametrize("seed", [1, 2])
def test_clean_clients_of_two_classes_are_not_accused(seed: int) -> None:
    settings = make_settings(
        clients=10,
        split={"train_samples": {"total": 1000}},
        partition={"name": "classes", "per_client": 2},
        noise="none",
        seed=seed,
    )
    found: Audit = rayfl.audit(settings)
    # Trust in the best alone, who hold some of the classes, finds 16 % and more of them wrong.
    assert np.mean([client.share.value for client in found.findings.clients]) < 0.03
    assert not any(client.accused for client in found.findings.clients)
