"""Streams of visits: never the same numbers twice, and lent again at their beginning."""

from __future__ import annotations

import numpy as np
import pytest

from rayfl.fleet.executor import Task
from rayfl.fleet.streams import Streams, StreamsOfPlace


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_streams_that_are_lent_again_are_at_their_beginning(seed: int) -> None:
    """Whatever was drawn from them, by any kind of draw, for whomever."""
    lending = StreamsOfPlace(Streams(seed))
    for client in range(4):
        task = Task(client, 3, {}, {}, visit=client % 2, examined=client == 3)
        lent = [lending.lend(task), lending.lend(task)]
        assert lent[0] is not lent[1]
        for stream in lent:
            fresh = Streams(seed)(task)
            assert str(stream.bit_generator.state) == str(fresh.bit_generator.state)
            assert stream.permutation(9).tolist() == fresh.permutation(9).tolist()
            stream.integers(7, dtype=np.int32)  # leaves half a draw behind
        lending.take_back()


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_streams_never_repeat(seed: int) -> None:
    streams = Streams(seed)
    first, second = (
        {
            int(streams(Task(client, t, {}, {}, visit, examined)).integers(1 << 62, size=9)[draw])
            for t in (-1, 0, 1, 5000)
            for client in (-70_000, -1, 0, 1, 100_000)
            for visit in (0, 1, 2, 3000)
            for examined in (False, True)
        }
        for draw in (0, 8)
    )
    assert len(first | second) == 2 * 20 * 4 * 2
