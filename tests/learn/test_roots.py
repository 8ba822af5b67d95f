"""Square roots: MKL's for fast bits, and what every processor agrees on for portable ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rayfl.learn import roots
from rayfl.learn.roots import square_root

SQUARES = np.abs(np.random.default_rng(0).standard_normal(10_003)).astype(np.float32)
SQUARES[:3] = 0.0, 1e-42, 3e38


def test_fast_roots_are_torchs() -> None:
    assert torch.equal(square_root(torch.from_numpy(SQUARES)), torch.from_numpy(SQUARES).sqrt())


def test_portable_roots_are_of_exact_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roots, "is_portable", lambda: True)
    found = square_root(torch.from_numpy(SQUARES)).numpy()
    one = np.float32(1)
    with np.errstate(divide="ignore"):
        # numpy's roots and quotients are rounded as IEEE 754 has it.
        wanted = one / (one / np.sqrt(SQUARES))
    np.testing.assert_array_equal(found, wanted)
