"""What is the in-process fleet's own business; what it shares with Ray is tested with the seam."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rayfl.fleet.inline import InlineFleet, fetched, here
from rayfl.protocol import DataRef, Ref
from tests.fleet.toys import holdings, spec


@pytest.mark.parametrize("threads", [1, 2])
def test_computes_with_the_threads_of_one_actor_and_gives_them_back(threads: int) -> None:
    before = torch.get_num_threads()
    fleet = InlineFleet(replace(spec(), threads=threads), holdings())
    try:
        assert torch.get_num_threads() == threads
    finally:
        fleet.close()
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("ref", "value"), [(Ref(5), 5), (Ref({"a": 6}, "a"), 6), (Ref({"a": 6}), {"a": 6})]
)
def test_references_hold_the_value(ref: Ref, value: object) -> None:
    assert fetched(ref) == value
    assert here({"list": [ref, 1], "tuple": (ref,)}) == {"list": [value, 1], "tuple": (value,)}


def test_named_sets_are_left_to_the_executor() -> None:
    assert here([DataRef("test")]) == [DataRef("test")]


def test_whole_processes_cannot_be_lost() -> None:
    assert not InlineFleet(spec(), holdings()).lost(OSError("gone"))
