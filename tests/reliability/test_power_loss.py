"""A whole run on a machine that loses its power, at any moment: it is taken up again with the bits
of an undisturbed one, from no earlier round than was saved, and what is over can be read."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import rayfl
from rayfl.run.checkpoint import CheckpointStore
from rayfl.run.progress import Silent
from rayfl.run.store import list_records
from tests.reliability.drills import comparable, noted
from tests.reliability.power_loss import Chance, Recorder, Step, chances, found_after, lay_out

ROUNDS = 3
SETTINGS: dict[str, Any] = {
    "data": {"name": "blobs", "samples": 60, "test_samples": 20, "classes": 3},
    "clients": 2,
    "noise": {"name": "symmetric", "rate": 0.2},
    "model": {"name": "mlp", "hidden": [4]},
    "method": "scaffold",
    "training": {"rounds": ROUNDS, "lr": 0.1},
    "fleet": "inline",
    "device": "cpu",
    "tracking": {"enabled": False},
    "checkpoint": {"min_seconds": 0},
}
SAVED = "saved"


class Begun(Silent):
    """The first round that a run tells of as new."""

    def __init__(self) -> None:
        self.resumed = 0

    def note(self, text: str) -> None:
        if text.startswith("resumed after round "):
            self.resumed = int(text.split()[-1])


class LostPower:
    """A recorded run, whose machine loses its power again and again."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.tried = 0
        self.undisturbed = comparable(self._run(folder / "undisturbed", Begun()))
        with monkeypatch.context() as patch:
            self.steps = self._record(folder / "recorded", patch)

    def _run(self, output: Path, progress: Begun) -> Path:
        settings = {**SETTINGS, "output": str(output)}
        return rayfl.run(settings, resume="auto", progress=progress).directory

    def _record(self, output: Path, patch: pytest.MonkeyPatch) -> list[Step]:
        output.mkdir()
        recorder = Recorder(output)
        write = CheckpointStore.write

        def write_and_note(store: CheckpointStore, snapshot: Any, *more: Any) -> None:
            write(store, snapshot, *more)
            recorder.steps.append((SAVED, snapshot.round))

        recorder.patch(patch)
        patch.setattr(CheckpointStore, "write", write_and_note)
        self._run(output, Begun())
        return recorder.steps

    def lose(self, moment: int, chance: Chance) -> None:
        """Lose the power after so many steps, and go on."""
        done = self.steps[:moment]
        files = found_after(done, chance)
        output = lay_out(self.folder / "found", files)
        for record in list_records(output):
            assert (record.sha256, sorted(record.arrays)) == (self.undisturbed[0], ARRAYS)
        begun = Begun()
        run = self._run(output, begun)
        assert comparable(run) == self.undisturbed
        steps = [entry["step"] for entry in noted(run / "journal.jsonl") if "step" in entry]
        assert steps == list(range(1, ROUNDS + 1))
        if not any("result.json" in name for name in files):  # else it was over
            assert begun.resumed >= last_saved(done)
        shutil.rmtree(output)
        self.tried += 1


ARRAYS = ["confusion", "noise_rate"]


def last_saved(steps: Sequence[Step]) -> int:
    """The round of the last checkpoint that was finished."""
    return max((what for kind, what in steps if kind == SAVED), default=0)


@pytest.fixture
def lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> LostPower:
    caplog.set_level(logging.CRITICAL, "rayfl")  # of hundreds that are expected
    return LostPower(tmp_path, monkeypatch)


def test_power_is_lost_now_and_then(
    lost: LostPower, record_property: Callable[[str, object], None]
) -> None:
    for moment in sorted({*range(0, len(lost.steps), 15), len(lost.steps)}):
        for chance in chances(moment, between=1):
            lost.lose(moment, chance)
    assert lost.tried > 20
    record_property("tried", lost.tried)


@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_power_is_lost_at_every_write(
    lost: LostPower, record_property: Callable[[str, object], None]
) -> None:
    for moment in range(len(lost.steps) + 1):
        for chance in chances(moment, between=4):
            lost.lose(moment, chance)
    assert lost.tried == 6 * (len(lost.steps) + 1)
    record_property("tried", lost.tried)
