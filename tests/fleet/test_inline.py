"""What is the in-process fleet's own business; what it shares with Ray is tested with the seam."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from rayfl.fleet.inline import InlineFleet, _look_up, _replace_refs
from rayfl.protocol import DataRef, Ref
from tests.fleet import phases
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
    assert _look_up(ref) == value
    assert _replace_refs({"list": [ref, 1], "tuple": (ref,)}) == {
        "list": [value, 1],
        "tuple": (value,),
    }


def test_named_sets_are_left_to_the_executor() -> None:
    assert _replace_refs([DataRef("test")]) == [DataRef("test")]


def draw_globally(seeded: bool = True) -> list[float]:
    """One number of each stream; the streams are at their beginning again."""
    if seeded:
        seed_globally()
    drawn = [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002
    seed_globally()
    return drawn


def seed_globally() -> None:
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002
    torch.manual_seed(3)


@pytest.mark.parametrize("work", [False, True])
def test_gives_the_global_streams_back(work: bool) -> None:
    """They are this process's own business: visits seed them."""
    expected = draw_globally()
    fleet = InlineFleet(spec(), holdings())
    if work:
        assert len(fleet.map(phases.draw, [0, 1])) == 2
    fleet.close()
    assert draw_globally(seeded=False) == expected


def test_whole_processes_cannot_be_lost() -> None:
    assert not InlineFleet(spec(), holdings()).lost(OSError("gone"))
