"""Masks of what visits select, and rings of answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import torch

from rayfl.learn.answer_history import AnswerHistory
from rayfl.learn.batches import Batch
from rayfl.learn.selection import Selection


def batch(index: list[int], epoch: int = 0) -> Batch:
    return cast(Batch, SimpleNamespace(index=np.array(index), epoch=epoch))


def test_a_row_an_epoch() -> None:
    chosen = Selection(5)
    chosen.note(batch([3, 1]), torch.tensor([0]))
    chosen.note(batch([4, 0]), torch.tensor([1, 0]))
    chosen.note(batch([2, 1], epoch=2), torch.tensor([1]))
    expected = [[1, 0, 0, 1, 1], [0, 0, 0, 0, 0], [0, 1, 0, 0, 0]]
    assert chosen.state["kept"].astype(int).tolist() == expected


def test_nothing_seen_is_nothing_kept() -> None:
    assert Selection(5).state == {}


def test_a_history_goes_on_from_a_state_and_leaves_that_alone() -> None:
    first = AnswerHistory({}, samples=2, length=2)
    first.record(np.array([0, 1]), [5, 6])
    state: dict[str, Any] = first.state
    for array in state.values():
        array.setflags(write=False)
    second = AnswerHistory(state, samples=2, length=2)
    second.record(np.array([0]), [7])
    second.record(np.array([0]), [8])
    assert second.rows.tolist() == [[8, 7], [6, 0]]
    assert (second.counts.tolist(), second.filled.tolist()) == ([3, 1], [2, 1])
    assert first.rows.tolist() == [[5, 0], [6, 0]]
