"""Networks through torch.compile: the same training, to rounding."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from torch import nn

from rayfl.learn.fit import compute_outputs
from tests.learn.toys import IMAGE, client, conv_net, learner, shrinking_net, start, train

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler"),
    # What torch's own compiler does while it compiles.
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def trained(
    compile: str, build: Callable[[], nn.Module] = conv_net, kernels: str = "whole"
) -> tuple[Any, Any]:
    """The weights after two epochs, and what the network then answers."""
    from torch._dynamo.utils import counters

    counters.clear()
    place = learner(
        build, epochs=2, batch_size=8, lr=0.1, momentum=0.9, compile=compile, kernels=kernels
    )
    place.image = IMAGE
    visited = client(24, place)
    local = train(visited, start(build))
    answers = compute_outputs(place, local, visited.x)
    assert (counters["stats"]["unique_graphs"] > 0) == (compile != "never")
    # What counts passes cuts no graph in two, and counts as without.
    assert not counters["graph_break"]
    assert place.passes.take() == (3 * 24, 2 * 24)
    return local, answers


@pytest.mark.parametrize(("build", "kernels"), [(conv_net, "whole"), (shrinking_net, "reached")])
def test_compiled_training_differs_by_rounding_only(
    build: Callable[[], nn.Module], kernels: str
) -> None:
    (plain, answers), (compiled, others) = (
        trained("never", build, kernels),
        trained("default", build, kernels),
    )
    np.testing.assert_allclose(compiled, plain, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(others, answers, rtol=1e-3, atol=1e-4)
