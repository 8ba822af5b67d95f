"""Networks through torch.compile: the same training, to rounding."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest
import torch

from rayfl.learn.fit import fit, outputs
from rayfl.learn.resident import Resident
from tests.learn.toys import client, conv_net, learner

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"),
    # What torch's own compiler does while it compiles.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def trained(compile: str) -> tuple[Any, Any]:
    """The weights after two epochs, and what the network then answers."""
    from torch._dynamo.utils import counters

    counters.clear()
    place = learner(conv_net, epochs=2, batch_size=8, lr=0.1, momentum=0.9, compile=compile)
    visited = client(24, place)
    local = fit(visited, Resident(conv_net(), torch.device("cpu")).dump())
    assert (counters["stats"]["unique_graphs"] > 0) == (compile != "never")
    return local, outputs(place, local, visited.x)


def test_compiled_training_differs_by_rounding_only() -> None:
    (plain, answers), (compiled, others) = trained("never"), trained("default")
    np.testing.assert_allclose(compiled, plain, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(others, answers, rtol=1e-3, atol=1e-4)
