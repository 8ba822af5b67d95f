"""What nothing can kill: real processes, hit in the middle of their work, end with the bits of an
undisturbed run."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rayfl
from rayfl.config.schema import validate_config
from rayfl.errors import StorageError
from tests.reliability.drills import SETTINGS, Comparable, Drill, comparable, noted
from tests.reliability.methods import UNLUCKY

pytestmark = pytest.mark.slow

PAUSE = "method.pause=0.03"
MB = 1 << 20

Start = Callable[..., Drill]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a run below the test's own folder; whatever is left of it ends with the test."""
    drills: list[Drill] = []

    def started(*arguments: str, output: Path | None = None) -> Drill:
        drills.append(Drill(tmp_path, *arguments, output=output))
        return drills[-1]

    yield started
    for drill in drills:
        drill.end()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Comparable:
    """The same run in one process that nobody disturbs."""
    drill = Drill(tmp_path_factory.mktemp("undisturbed"), "fleet=inline")
    assert drill.ended() == 0, drill.text
    found = comparable(drill.directory)
    assert f"model sha256               {found[0]}" in drill.text
    assert [record["round"] for record in found[1]] == list(range(1, 25))
    return found


def assert_same(drill: Drill, undisturbed: Comparable) -> None:
    """Finished, with the hash printed, the same hash and the same history of metrics."""
    assert drill.ended() == 0, drill.text
    printed = re.search(r"^model sha256 +(\w{64})$", drill.text, re.MULTILINE)
    assert printed is not None, drill.text
    assert (printed[1], comparable(drill.directory)) == (undisturbed[0], undisturbed)


LONG = pytest.mark.alone
"""Where a shorter drill of the kind is there."""


# -- death of processes ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "actors",
    [
        pytest.param(2, marks=pytest.mark.long),
        pytest.param(1, marks=LONG),
        pytest.param(3, marks=LONG),
    ],
)
def test_killing_a_client_actor_and_then_the_coordinator_changes_no_bit(
    start: Start, undisturbed: Comparable, actors: int
) -> None:
    drill = start(f"resources.actors={actors}", PAUSE)
    drill.await_round(3)
    os.kill(drill.await_process("ray::ClientActor.run"), signal.SIGKILL)
    drill.await_round(9)
    drill.await_process("ray::ClientActor.run")
    os.kill(drill.await_process("ray::Coordinator"), signal.SIGKILL)
    assert_same(drill, undisturbed)
    assert re.search(r"client actor \d died in round \d+ and is replaced", drill.text), drill.text
    assert re.search(r"the coordinator died after round \d+ and is started again", drill.text), (
        drill.text
    )
    rounds = [
        entry["step"]
        for entry in noted(drill.directory / "journal.jsonl")
        if entry["kind"] == "metrics"
    ]
    assert rounds == list(range(1, 25)), "a round that was computed again is tracked once"


WIDE = "model={name: mlp, hidden: [200]}"
"""Clients of a network of this size leave states that keepers own."""


@pytest.fixture(scope="module")
def undisturbed_and_wide(tmp_path_factory: pytest.TempPathFactory) -> Comparable:
    drill = Drill(tmp_path_factory.mktemp("wide"), "fleet=inline", WIDE)
    assert drill.ended() == 0, drill.text
    return comparable(drill.directory)


@pytest.mark.long
@pytest.mark.parametrize("keepers", [2, pytest.param(1, marks=LONG)])
def test_killing_a_keeper_after_a_client_actor_changes_no_bit(
    start: Start, undisturbed_and_wide: Comparable, keepers: int
) -> None:
    drill = start("resources.actors=3", f"resources.keepers={keepers}", WIDE, PAUSE)
    drill.await_round(3)
    os.kill(drill.await_process("ray::ClientActor.answer"), signal.SIGKILL)
    drill.await_round(9)
    os.kill(drill.await_process("ray::Keeper"), signal.SIGKILL)
    assert_same(drill, undisturbed_and_wide)
    assert re.search(r"client actor \d died in round \d+ and is replaced", drill.text), drill.text
    assert "a node or a keeper died with a part of the run after round" in drill.text, drill.text


def stopped(drill: Drill, number: int, *, group: bool) -> int:
    """Exit code after a signal to the driver, or to all of its group as a terminal's Ctrl-C is."""
    (os.killpg if group else os.kill)(drill.process.pid, number)
    return drill.ended()


@pytest.mark.long
def test_a_driver_that_is_told_to_stop_checkpoints_and_can_be_resumed(
    start: Start, undisturbed: Comparable
) -> None:
    rare = "checkpoint.min_seconds=1000"
    first = start("resources.actors=1", PAUSE, rare)
    first.await_round(4)
    code = stopped(first, signal.SIGTERM, group=False)
    name = first.directory.name
    assert code == 143, first.text
    assert f"stopped by SIGTERM; go on with the same command and --resume {name}" in first.text
    assert "Traceback" not in first.text
    assert "***" not in first.text, "Ray's own handler prints a stack"
    reached = first.reached()
    saved = sorted(path.stem for path in (first.directory / "checkpoints").glob("round-*.json"))
    assert saved[-1] >= f"round-{reached:06d}" > "round-000001", (
        "the signal, not the schedule, made this checkpoint"
    )

    second = start("resources.actors=3", PAUSE, rare, "--resume", name)
    second.await_round(reached + 4)
    assert stopped(second, signal.SIGINT, group=True) == 130, second.text
    assert f"stopped by SIGINT; go on with the same command and --resume {name}" in second.text

    third = start("resources.actors=2", PAUSE, "--resume", "auto")
    assert_same(third, undisturbed)
    assert third.directory.name == name


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=LONG)],
)
def test_a_run_in_one_process_stops_and_resumes_alike(
    start: Start, undisturbed: Comparable, number: int, code: int
) -> None:
    drill = start("fleet=inline", PAUSE, "checkpoint.every=0")
    drill.await_round(5)
    assert stopped(drill, number, group=True) == code, drill.text
    assert "--resume " in drill.text
    assert_same(start("fleet=inline", PAUSE, "--resume", "auto"), undisturbed)


def test_a_driver_that_is_killed_outright_is_resumed_from_its_last_checkpoint(
    start: Start, undisturbed: Comparable
) -> None:
    drill = start("fleet=inline", PAUSE)
    drill.await_round(5)
    assert stopped(drill, signal.SIGKILL, group=False) == -signal.SIGKILL
    journal = drill.directory / "journal.jsonl"
    journal.write_text(journal.read_text() + '{"kind": "met')
    assert_same(start("fleet=inline", PAUSE, "--resume", drill.directory.name), undisturbed)
    assert [e["step"] for e in noted(journal) if e["kind"] == "metrics"] == list(range(1, 25))


# -- failing clients -------------------------------------------------------------------------------


@pytest.mark.long
def test_a_phase_that_raises_stops_the_run_with_client_round_and_remote_traceback(
    start: Start,
) -> None:
    drill = start("method=tests.reliability.methods:Raising", "resources.actors=2")
    assert drill.ended() == 4, drill.text
    assert (
        f"error: a phase raised on client {UNLUCKY} in round 2:\nTraceback (most recent call last):"
        in drill.text
    )
    assert re.search(r'methods\.py", line \d+, in raising\n +raise ValueError', drill.text), (
        drill.text
    )
    assert "ValueError: the sensor is broken" in drill.text
    assert "rayfl/cli.py" not in drill.text, "only the remote traceback is of use"
    assert drill.reached() == 2, "what was reached before is kept"
    assert not (drill.directory / "result.json").exists()


@pytest.mark.long
def test_a_client_whose_update_is_not_finite_is_left_out_counted_and_named(
    start: Start, tmp_path: Path
) -> None:
    ray = start("method=tests.reliability.methods:Diverging", "training.rounds=3")
    assert ray.ended() == 0, ray.text
    digest, history = comparable(ray.directory)
    for record in history:
        assert (record["clients/diverged"], record[f"clients/diverged/{UNLUCKY}"]) == (1.0, 1.0)
        assert (record["clients/participants"], record["test/accuracy"] > 0) == (12.0, True)
    settings = {
        **SETTINGS,
        "method": "tests.reliability.methods:Diverging",
        "output": tmp_path / "inline",
    }
    training = {**SETTINGS["training"], "rounds": 3}
    inline = rayfl.run({**settings, "training": training, "fleet": "inline"})
    assert inline.sha256 == digest


def test_a_round_in_which_everyone_diverges_leaves_the_model_as_it_was(tmp_path: Path) -> None:
    def after(rounds: int) -> rayfl.Result:
        method = {"name": "tests.reliability.methods:Diverging", "void": 2}
        training = {**SETTINGS["training"], "rounds": rounds}
        return rayfl.run(
            {
                **SETTINGS,
                "method": method,
                "training": training,
                "output": tmp_path,
                "fleet": "inline",
            }
        )

    two, four = after(2), after(4)
    assert four.sha256 == two.sha256
    assert [record["metrics"]["clients/diverged"] for record in four.history] == [1, 1, 12, 12]


# -- disks -----------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("a file system cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize(
    ("place", "rule"),
    [
        pytest.param(
            "checkpoints",
            "the checkpoint of round \\d+ could not be written to ",
            marks=pytest.mark.long,
        ),
        ("journal", "the (journal of a run|output folder) must be writable; got "),
    ],
)
def test_a_full_disk_ends_the_run_clearly_and_what_was_reached_is_kept(
    start: Start, undisturbed: Comparable, small_disk: Path, tmp_path: Path, place: str, rule: str
) -> None:
    (small_disk / "filler").write_bytes(
        b"0" * (MB - (MB >> 2 if place == "checkpoints" else 48 << 10))
    )
    disks = {
        "checkpoints": (tmp_path / "out", small_disk),
        "journal": (small_disk / "out", tmp_path / "checkpoints"),
    }
    output, checkpoints = disks[place]
    arguments = ("fleet=inline", f"checkpoint.uri={checkpoints}")
    drill = start(*arguments, output=output)
    assert drill.ended() == 5, drill.text
    assert re.search(f"^error: {rule}.*No space left on device", drill.text, re.MULTILINE), (
        drill.text
    )
    assert "Traceback" not in drill.text
    journal = drill.directory / "journal.jsonl"
    reached = drill.reached()
    assert reached >= 1
    assert [entry["step"] for entry in noted(journal) if entry["kind"] == "metrics"] == list(
        range(1, reached + 1)
    )
    assert not (drill.directory / "result.json").exists()

    (small_disk / "filler").unlink()
    assert_same(start(*arguments, "--resume", drill.directory.name, output=output), undisturbed)


@pytest.mark.parametrize("place", ["file/in/the/way", "/proc/nowhere"])
def test_a_place_for_checkpoints_that_cannot_be_written_is_refused_at_once(
    tmp_path: Path, place: str
) -> None:
    (tmp_path / "file").write_text("")
    settings = {
        **SETTINGS,
        "output": tmp_path,
        "fleet": "inline",
        "checkpoint": {"uri": str(tmp_path / place)},
    }
    with pytest.raises(
        StorageError, match=r"checkpoints need a writable place; got .*Set checkpoint\.uri"
    ):
        rayfl.run(settings)


# -- damaged and foreign checkpoints ---------------------------------------------------------------


def emptied(folder: Path) -> None:
    (folder / "round-000010.json").write_bytes(b"")


def cut(folder: Path) -> None:
    whole = (folder / "round-000010.json").read_bytes()
    (folder / "round-000010.json").write_bytes(whole[: len(whole) // 2])


def flipped(folder: Path) -> None:
    state = bytearray((folder / "round-000010.state").read_bytes())
    state[len(state) // 2] ^= 1
    (folder / "round-000010.state").write_bytes(state)


def missing(folder: Path) -> None:
    (folder / "round-000010.state").unlink()


def other_client(folder: Path) -> None:
    manifest = json.loads((folder / "round-000010.json").read_text())
    names = sorted(
        entry[0] for entries in manifest["clients"].values() for entry in entries.values()
    )
    newest = next(name for name in names if name.endswith("000010"))
    (folder / newest).write_bytes(b"spoilt")


def renamed(folder: Path) -> None:
    path = folder / "round-000010.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))


Damage = Callable[[Path], None]


def ten_rounds(output: Path, **settings: object) -> tuple[dict[str, object], Path]:
    """The settings and the directory of a run that stopped after ten rounds."""
    common = {**SETTINGS, "output": output, "fleet": "inline", **settings}
    result = rayfl.run({**common, "training": {**SETTINGS["training"], "rounds": 10}})
    return common, result.directory


@pytest.mark.parametrize("damage", [emptied, cut, flipped, missing, other_client, renamed])
def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, undisturbed: Comparable, caplog: pytest.LogCaptureFixture, damage: Damage
) -> None:
    common, directory = ten_rounds(tmp_path)
    damage(directory / "checkpoints")
    with caplog.at_level("INFO", logger="rayfl"):
        rayfl.run(common, resume=directory)
    assert "checkpoint of round 10 is not usable and is passed over" in caplog.text
    assert "resumed after round 9" in caplog.text
    assert comparable(directory) == undisturbed


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_left_alone(tmp_path: Path) -> None:
    common, directory = ten_rounds(tmp_path)
    for path in (directory / "checkpoints").glob("*.state"):
        path.write_bytes(b"spoilt")
    before = sorted(path.name for path in (directory / "checkpoints").rglob("*"))
    with pytest.raises(
        StorageError, match=r"no usable checkpoint in .*round 10: .*has sha256 .*round 9: "
    ):
        rayfl.run(common, resume=directory)
    assert sorted(path.name for path in (directory / "checkpoints").rglob("*")) == before


def test_a_foreign_checkpoint_is_refused_with_both_owners(tmp_path: Path) -> None:
    _, foreign = ten_rounds(tmp_path / "foreign", seed=1)
    common, mine = ten_rounds(tmp_path / "mine")
    shutil.rmtree(mine / "checkpoints")
    shutil.copytree(foreign / "checkpoints", mine / "checkpoints")
    owner = validate_config({**common, "seed": 1}).digest[:12]
    known = validate_config(common).digest[:12]
    rule = f"a checkpoint belongs to this run's configuration \\({known}\\); got {owner}"
    with pytest.raises(StorageError, match=rule):
        rayfl.run(common, resume=mine)
