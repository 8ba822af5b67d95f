"""Two nodes, started by hand on this machine: client actors on both, one that dies, and in each
case the same bits.

Nodes in networks of their own are in test_docs_cluster.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import rayfl
from tests.nodes import Driven, Node, head_node, wait_for, worker_node
from tests.reliability.drills import SETTINGS, Comparable, comparable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ROUNDS = 12
WIDE = {"name": "mlp", "hidden": [1024]}
"""A network whose weights are too large to travel inside of messages: they lie in the object store
of one node."""

UNHURRIED = "method.pause=0.15"
"""Rounds of half a second: actors outlive their node by a second, in which a run must not come to
its end."""

Head = tuple[Node, str, Path]
Start = Callable[..., Driven]


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    """A node of one CPU."""
    with head_node("--num-cpus", "1") as started:
        yield started


@pytest.fixture(scope="module")
def workers() -> Iterator[tuple[list[Node], ExitStack]]:
    with ExitStack() as stack:
        yield [], stack


@pytest.fixture
def worker(head: Head, workers: tuple[list[Node], ExitStack]) -> Node:
    """A second node of one CPU: the one of the test before, if it still lives."""
    nodes, stack = workers
    if not nodes or nodes[-1].process.poll() is not None:
        nodes.append(stack.enter_context(worker_node(head[1], head[2], "--num-cpus", "1")))
    return nodes[-1]


@pytest.fixture
def start(head: Head, worker: Node, tmp_path: Path) -> Iterator[Start]:
    """Start a run on both nodes, and see that it is on both; whatever is left of it ends with the
    test."""
    drills: list[Driven] = []

    def started(*arguments: str) -> Driven:
        drill = Driven(
            tmp_path, head[1], f"training.rounds={ROUNDS}", "method.pause=0.05", *arguments
        )
        drills.append(drill)
        drill.await_round(2)
        wait_for(
            lambda: [actors(head[0]), actors(worker)] == [1, 1],
            "client actors on both nodes",
            lambda: drill.text,
        )
        return drill

    yield started
    for drill in drills:
        drill.end()


def actors(node: Node) -> int:
    """Client actors on a node, as its processes show."""
    return len(node.processes("ray::ClientActor"))


def in_one_process(folder: Path, **changes: object) -> Comparable:
    training = {**SETTINGS["training"], "rounds": ROUNDS}
    result = rayfl.run(
        {**SETTINGS, "training": training, "output": folder, "fleet": "inline", **changes}
    )
    return comparable(result.directory)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Comparable:
    return in_one_process(tmp_path_factory.mktemp("inline"))


@pytest.mark.long
def test_client_actors_on_two_nodes_change_no_bit(
    start: Start, head: Head, worker: Node, undisturbed: Comparable
) -> None:
    drill = start("resources.cpus_per_client=1")
    assert [len(node.processes("ray::Coordinator")) for node in (head[0], worker)] == [1, 0], (
        "beside the run's folder"
    )
    assert drill.ended() == 0, drill.text
    assert comparable(drill.directory) == undisturbed
    wait_for(lambda: actors(head[0]) == actors(worker) == 0, "end of all client actors")


@pytest.mark.long
def test_keepers_on_two_nodes_change_no_bit(
    start: Start, head: Head, worker: Node, tmp_path: Path
) -> None:
    """States of either node's clients, owned on one and wanted on the other."""
    drill = start(
        "resources.cpus_per_client=1", "resources.keepers=2", "model={name: mlp, hidden: [1024]}"
    )
    assert [len(node.processes("ray::Keeper")) for node in (head[0], worker)] == [1, 1]
    assert drill.ended() == 0, drill.text
    assert comparable(drill.directory) == in_one_process(tmp_path / "inline", model=WIDE)
    wait_for(
        lambda: not any(node.processes("ray::Keeper") for node in (head[0], worker)),
        "end of all keepers",
    )


@pytest.mark.long
def test_a_node_that_dies_and_leaves_no_room_for_its_actor_changes_no_bit(
    start: Start, worker: Node, undisturbed: Comparable
) -> None:
    drill = start("resources.cpus_per_client=1", UNHURRIED)
    os.kill(worker.raylet, signal.SIGKILL)
    assert drill.ended() == 0, drill.text
    assert comparable(drill.directory) == undisturbed
    assert "is replaced" in drill.text


@pytest.mark.long
def test_what_only_a_dead_node_held_is_computed_again_from_the_last_checkpoint(
    start: Start, worker: Node, tmp_path: Path
) -> None:
    # One checkpoint, after the first round: whatever a later one had copied to the first node would
    # live on.
    wide = ("model={name: mlp, hidden: [1024]}", "checkpoint.min_seconds=1000", UNHURRIED)
    drill = start("resources.cpus_per_client=0.5", *wide)
    drill.await_round(5)
    os.kill(worker.raylet, signal.SIGKILL)
    assert drill.ended() == 0, drill.text
    assert comparable(drill.directory) == in_one_process(tmp_path / "inline", model=WIDE)
    assert "died with a part of the run" in drill.text
