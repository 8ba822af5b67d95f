"""What a trial asks of a run: a place of its own, a stop from another thread, a checkpoint that is
handed on."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import rayfl
from rayfl.config.schema import validate_config
from rayfl.errors import ConfigError, StorageError
from rayfl.run.checkpoint import CheckpointStore
from rayfl.run.experiment import Interrupted, Stop
from rayfl.run.progress import Silent
from tests.tuning.tiny import TINY


def test_a_run_in_a_directory_of_the_caller_s_is_taken_up_again_there(tmp_path: Path) -> None:
    settings = {**TINY, "output": str(tmp_path), "tracking": {"enabled": False}}
    short = {**settings, "training": {"rounds": 2, "lr": 0.05}}
    mine = tmp_path / "runs" / "mine"
    assert rayfl.run(short, directory=mine).directory == mine
    whole = rayfl.run(settings, directory=mine)
    assert (whole.directory, whole.sha256) == (mine, rayfl.run(settings).sha256)
    with pytest.raises(
        ConfigError, match="a run is resumed with the configuration that it began with"
    ):
        rayfl.run({**settings, "seed": 1}, directory=mine)


def test_a_run_in_another_thread_stops_when_it_is_asked_to(tmp_path: Path) -> None:
    stop, found = Stop(), list[BaseException]()

    class Asking(Silent):
        def round(self, record: Mapping[str, Any]) -> None:
            stop.asked = 15
            stop.heed()

    def work() -> None:
        try:
            settings = {**TINY, "output": str(tmp_path), "tracking": {"enabled": False}}
            rayfl.run(settings, directory=tmp_path / "run", stop=stop, progress=Asking())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [type(error) for error in found] == [Interrupted]
    assert CheckpointStore(str(tmp_path / "run" / "checkpoints")).rounds()[-1] == 1


def test_a_checkpoint_that_is_handed_on_begins_another_run(tmp_path: Path) -> None:
    settings = {**TINY, "output": str(tmp_path), "tracking": {"enabled": False}}
    first = rayfl.run({**settings, "training": {"rounds": 2, "lr": 0.05}})
    changed = {**settings, "training": {"rounds": 4, "lr": 0.5}}
    other = tmp_path / "runs" / "other"
    store = CheckpointStore(str(first.directory / "checkpoints"))
    assert store.hand_on(str(other / "checkpoints")) == 2
    with pytest.raises(StorageError, match="belongs to this run's configuration"):
        rayfl.run(changed, directory=other)
    third = tmp_path / "runs" / "third"
    store.hand_on(str(third / "checkpoints"), validate_config(changed).digest)
    result = rayfl.run(changed, directory=third)
    assert [record["metrics"] for record in result.history[:2]] == [
        record["metrics"] for record in first.history
    ]
    whole = rayfl.run(changed)
    assert result.history[3]["metrics"] != whole.history[3]["metrics"], (
        "it began where the first one ended"
    )
