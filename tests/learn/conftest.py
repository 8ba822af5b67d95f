"""One thread: the tensors of these tests are too small for more."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def global_streams() -> Iterator[None]:
    """Python's, numpy's and torch's global streams are afterwards what they were."""
    python, numbers, tensors = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    yield
    random.setstate(python)
    np.random.set_state(numbers)  # noqa: NPY002
    torch.set_rng_state(tensors)
