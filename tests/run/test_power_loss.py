"""A machine that loses its power in the middle of a checkpoint: whatever of the writes the disk
has, the run goes on from a checkpoint that was finished, with its bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfl import durable
from rayfl.errors import StorageError
from rayfl.run.checkpoint import CheckpointStore
from rayfl.run.directory import begin_directory, read_facts
from tests.reliability.power_loss import Recorder, chances, found_after, lay_out
from tests.run.snapshots import Entry, newest, snapshot, write

ROUNDS = 5


def clients_of(round_: int) -> dict[int, dict[str, Entry]]:
    """One state that changes in every round, and one that never does."""
    return {0: {"w": Entry(f"of {round_}")}, 1: {"w": Entry("always")}}


def test_no_loss_of_power_costs_a_finished_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path / "run")
    finished: list[tuple[int, int]] = [(0, 0)]
    with monkeypatch.context() as patch:
        store = CheckpointStore(str(tmp_path / "run"))
        recorder.patch(patch)
        always = Entry("always")
        for round_ in range(1, ROUNDS + 1):
            write(store, snapshot(round_, {**clients_of(round_), 1: {"w": always}}))
            finished.append((len(recorder.steps), round_))
    tried = 0
    for moment in range(len(recorder.steps) + 1):
        reached = max(round_ for step, round_ in finished if step <= moment)
        for number, chance in enumerate(chances(moment)):
            files = found_after(recorder.steps[:moment], chance)
            folder = lay_out(tmp_path / f"{moment}-{number}", files)
            check_found(folder, reached)
            tried += 1
    assert tried > 1000


def check_found(folder: Path, reached: int) -> None:
    """The newest checkpoint is one that was finished, or a later one, and is what it was."""
    store = CheckpointStore(str(folder))
    found = newest(store)
    if found is None:
        assert reached == 0, f"nothing is left of round {reached}"
        return
    assert found.round in (reached, reached + 1)
    expected = snapshot(found.round)
    assert found.history == expected.history
    assert found.state["note"] == expected.state["note"]
    assert found.state["model"].tolist() == expected.state["model"].tolist()
    values = {client: entries["w"].value for client, entries in found.clients.items()}
    assert values == {0: f"of {found.round}", 1: "always"}
    # And the run goes on over whatever lies there.
    after = found.round + 1
    write(store, snapshot(after, {**found.clients, 0: {"w": Entry(f"of {after}")}}))
    again = newest(CheckpointStore(str(folder)))
    assert again is not None
    assert (again.round, again.clients[0]["w"].value) == (after, f"of {after}")


def test_a_file_that_is_replaced_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = Recorder(tmp_path)
    with monkeypatch.context() as patch:
        recorder.patch(patch)
        durable.write_file(tmp_path / "run.json", '{"digest": "old"}')
        first = len(recorder.steps)
        durable.write_file(tmp_path / "run.json", '{"digest": "new"}')
    seen = set()
    for moment in range(first, len(recorder.steps) + 1):
        for number, chance in enumerate(chances(moment)):
            files = found_after(recorder.steps[:moment], chance)
            folder = lay_out(tmp_path / f"{moment}-{number}", files)
            seen.add(read_facts(folder).get("digest"))
            if moment == len(recorder.steps):
                assert read_facts(folder) == {"digest": "new"}
    assert seen == {"old", "new"}


def test_what_a_run_is_is_written_in_this_way() -> None:
    """`begin_directory` has no other way to write."""
    names = begin_directory.__code__.co_names
    assert "write_file" in names
    assert not {"write_text", "write_bytes", "open"} & set(names)


def test_without_syncs_checkpoints_would_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The simulation tells: a store that leaves out its syncs is found out."""
    recorder = Recorder(tmp_path / "run")
    with monkeypatch.context() as patch:
        store = CheckpointStore(str(tmp_path / "run"))
        recorder.patch(patch)
        for round_ in range(1, ROUNDS + 1):
            write(store, snapshot(round_, clients_of(round_)))
    unsynced = [step for step in recorder.steps if step[0] != "sync"]
    lost = 0
    for number, chance in enumerate(chances(0)):
        folder = lay_out(tmp_path / str(number), found_after(unsynced, chance))
        try:
            found = newest(CheckpointStore(str(folder)))
        except StorageError:
            found = None
        lost += found is None or found.round < ROUNDS
    assert lost
