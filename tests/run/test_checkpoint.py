"""Checkpoints: atomic, few, verified."""

from __future__ import annotations

import errno
import json
import logging
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl import durable
from rayfl.errors import StorageError
from rayfl.run.checkpoint import KEPT, UNSEALED, CheckpointStore, Snapshot
from tests.run.snapshots import Entry, newest, snapshot, write


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_what_is_written_is_read(scheme: str, tmp_path: Path) -> None:
    uri = f"{scheme}{tmp_path}/run"
    clients = {
        3: {"w": Entry(np.arange(3.0)), "y": Entry([1, 2])},
        -1: {"model/head": Entry({"a": 1})},
    }
    write(CheckpointStore(uri), snapshot(2, clients))
    found = newest(CheckpointStore(uri))
    assert found is not None
    assert found.round == 2
    assert found.history == snapshot(2).history
    assert found.meta == {"digest": "mine"}
    assert np.array_equal(found.state["model"], np.full(4, 2.0))
    assert found.state["note"] == (2, "text")
    assert {client: set(entries) for client, entries in found.clients.items()} == {
        3: {"w", "y"},
        -1: {"model/head"},
    }
    assert found.clients[3]["w"].value.tolist() == [0, 1, 2]
    assert found.clients[-1]["model/head"].value == {"a": 1}
    assert (tmp_path / "run" / "round-000002.json").is_file()


def test_a_new_place_has_none(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path / "deep" / "er"))
    assert newest(store) is None
    assert store.rounds() == []


def test_only_the_last_are_kept(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    for round_ in range(1, 6):
        write(store, snapshot(round_, {0: {"w": Entry(round_)}}))
    assert KEPT == 2
    assert files(tmp_path) == {
        *(f"round-00000{n}.{suffix}" for n in (4, 5) for suffix in ("json", "state")),
        *(f"clients/0.w.00000{n}" for n in (4, 5)),
    }


def test_entries_are_written_when_they_changed(tmp_path: Path) -> None:
    store, one, two = CheckpointStore(str(tmp_path)), Entry("one"), Entry("two")
    assert write(store, snapshot(1, {0: {"w": one}, 1: {"w": two}})) == ["one", "two"]
    assert write(store, snapshot(2, {0: {"w": one}, 1: {"w": two}})) == []
    new = Entry("new")
    for round_ in (3, 4, 5):
        assert write(store, snapshot(round_, {0: {"w": one}, 1: {"w": new}})) == (
            ["new"] if round_ == 3 else []
        )
    # The old entry stays as long as a manifest names it, and the unchanged one for good.
    assert {name for name in files(tmp_path) if "clients" in name} == {
        "clients/0.w.000001",
        "clients/1.w.000003",
    }
    found = newest(CheckpointStore(str(tmp_path)))
    assert found is not None
    assert found.clients[0]["w"].value == "one"


def test_a_resumed_run_does_not_write_unchanged_entries_again(tmp_path: Path) -> None:
    write(CheckpointStore(str(tmp_path)), snapshot(1, {0: {"w": Entry("one")}}))
    store = CheckpointStore(str(tmp_path))
    found = newest(store)
    assert found is not None
    assert write(store, snapshot(2, found.clients)) == []
    assert files(tmp_path) >= {"clients/0.w.000001", "round-000001.json", "round-000002.json"}


# -- damage ----------------------------------------------------------------------------------------

DAMAGE: dict[str, tuple[str, Callable[[bytes], bytes] | None]] = {
    "manifest cut": ("round-000002.json", lambda blob: blob[:-9]),
    "manifest empty": ("round-000002.json", lambda blob: b""),
    "manifest a list": ("round-000002.json", lambda blob: b"[]"),
    "manifest of another format": (
        "round-000002.json",
        lambda blob: blob.replace(b'"format": 2', b'"format": 9'),
    ),
    "state changed": ("round-000002.state", lambda blob: blob[:-1] + bytes([blob[-1] ^ 1])),
    "state cut": ("round-000002.state", lambda blob: blob[:50]),
    "state gone": ("round-000002.state", None),
    "entry changed": ("clients/0.w.000002", lambda blob: blob[:-1] + b"?"),
    "entry gone": ("clients/0.w.000002", None),
}


@pytest.fixture(params=DAMAGE)
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointStore:
    """Two checkpoints, of which the newer is damaged."""
    store = CheckpointStore(str(tmp_path))
    for round_ in (1, 2):
        write(store, snapshot(round_, {0: {"w": Entry(round_)}}))
    name, change = DAMAGE[request.param]
    path = tmp_path / name
    path.write_bytes(change(path.read_bytes())) if change else path.unlink()
    return CheckpointStore(str(tmp_path))


def test_a_damaged_checkpoint_is_passed_over(
    damaged: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rayfl"):
        found = newest(damaged)
    assert found is not None
    assert found.round == 1
    assert found.clients[0]["w"].value == 1
    assert "checkpoint of round 2 is not usable and is passed over" in caplog.text


def test_a_run_goes_on_beside_a_damaged_checkpoint(
    damaged: CheckpointStore, tmp_path: Path
) -> None:
    """The damaged one goes; it does not push a good one out."""
    assert newest(damaged) is not None
    write(damaged, snapshot(3, {0: {"w": Entry(3)}}))
    assert damaged.rounds() == [1, 3]
    assert "round-000002.state" not in files(tmp_path)
    (tmp_path / "round-000003.state").write_bytes(b"")
    again = newest(CheckpointStore(str(tmp_path)))
    assert again is not None
    assert again.round == 1


def test_if_none_is_usable_each_is_named(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    for round_ in (1, 2):
        write(store, snapshot(round_))
    (tmp_path / "round-000001.state").write_bytes(b"junk")
    (tmp_path / "round-000002.json").write_bytes(b"{")
    with pytest.raises(
        StorageError, match=r"no usable checkpoint in .*: round 2: .*; round 1: .*its manifest says"
    ):
        newest(CheckpointStore(str(tmp_path)))


def test_a_foreign_checkpoint_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    write(CheckpointStore(str(tmp_path)), snapshot(1, digest="theirs"))
    with pytest.raises(
        StorageError, match=r"round 1: a checkpoint belongs to this run \(mine\); got theirs"
    ):
        newest(CheckpointStore(str(tmp_path)))
    assert "round-000001.json" in files(tmp_path)


def test_other_files_are_no_checkpoints(tmp_path: Path) -> None:
    for name in ("round-abc.json", "round-000009.json.part", "round-000009.state", "notes.json"):
        (tmp_path / name).write_text("{}")
    assert CheckpointStore(str(tmp_path)).rounds() == []


# -- manifests that are whole, and lie -------------------------------------------------------------


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "an earlier round": lambda m: m.update(round=1),
    "a later round": lambda m: m.update(round=7),
    "another client": lambda m: m["clients"].update({"4": m["clients"].pop("0")}),
    "a client like another": lambda m: m["clients"].update({"1": m["clients"].pop("0")}),
    "another key": lambda m: m["clients"]["0"].update(b=m["clients"]["0"].pop("w")),
    "another case": lambda m: m["clients"]["0"].update(W=m["clients"]["0"].pop("w")),
    "a client twice": lambda m: m["clients"].update({"00": m["clients"]["0"]}),
    "a client less": lambda m: m["clients"].pop("0"),
    "the state of before": lambda m: m.update(state=["round-000001.state", m["state"][1]]),
    "another owner": lambda m: m["meta"].update(note="mine"),
    "more than it has": lambda m: m.update(more=1),
}
UNSEEN = {"a client less", "another owner"}
"""What nobody can see in a manifest without a hash of itself."""


@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "older"])
@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_passed_over(lie: str, sealed: bool, tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path))
    for round_ in (1, 2):
        write(store, snapshot(round_, {0: {"w": Entry(round_)}}))
    path = tmp_path / "round-000002.json"
    manifest = json.loads(path.read_text())
    if not sealed:
        del manifest["sha256"]
        manifest["format"] = UNSEALED
    LIES[lie](manifest)
    path.write_text(json.dumps(manifest))
    found = newest(CheckpointStore(str(tmp_path)))
    assert found is not None
    assert found.round == (2 if not sealed and lie in UNSEEN else 1)


def test_a_checkpoint_of_an_older_version_is_read(tmp_path: Path) -> None:
    write(CheckpointStore(str(tmp_path)), snapshot(2, {0: {"w": Entry(2)}}))
    path = tmp_path / "round-000002.json"
    manifest = json.loads(path.read_text())
    del manifest["sha256"]
    path.write_text(json.dumps({**manifest, "format": UNSEALED}))
    found = newest(CheckpointStore(str(tmp_path)))
    assert found is not None
    assert (found.round, found.clients[0]["w"].value) == (2, 2)


def test_a_history_that_ends_elsewhere_is_refused(tmp_path: Path) -> None:
    store, short = CheckpointStore(str(tmp_path)), snapshot(2)
    write(store, snapshot(1))
    write(store, Snapshot(2, short.state, {}, short.history[:1], short.meta))
    found = newest(CheckpointStore(str(tmp_path)))
    assert found is not None
    assert found.round == 1


# -- atomicity and trouble -------------------------------------------------------------------------


def fail_at(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The n-th file that is written from now on fills the disk with its first half."""
    written = [0]

    def write_bytes(stream: Any, blob: bytes) -> int:
        written[0] += 1
        if written[0] > number:
            stream.write(blob[: len(blob) // 2])
            raise OSError(errno.ENOSPC, "No space left on device")
        return int(stream.write(blob))

    monkeypatch.setattr(durable, "_write_all", write_bytes)


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_a_write_that_fails_leaves_the_checkpoint_before_it(
    writes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Entry, state, manifest: whichever fails, nothing half-written is ever read."""
    store = CheckpointStore(str(tmp_path))
    write(store, snapshot(1, {0: {"w": Entry(1)}}))
    match = (
        r"the checkpoint of round 2 could not be written to .*No space left.*"
        r"Free some space or set checkpoint\.uri"
    )
    with monkeypatch.context() as patch:
        fail_at(writes, patch)
        with pytest.raises(StorageError, match=match):
            write(store, snapshot(2, {0: {"w": Entry(2)}}))
    assert not {name for name in files(tmp_path) if name.endswith(".part")}
    found = newest(CheckpointStore(str(tmp_path)))
    assert found is not None
    assert found.round == 1
    write(store, snapshot(2, {0: {"w": Entry(2)}}))
    assert store.rounds() == [1, 2]


def test_the_manifest_comes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, order = CheckpointStore(str(tmp_path)), list[str]()
    replace = os.replace

    def noted(part: Path, path: Path) -> None:
        order.append(path.relative_to(tmp_path).as_posix())
        replace(part, path)

    monkeypatch.setattr(os, "replace", noted)
    write(store, snapshot(1, {0: {"w": Entry(1)}}))
    assert order == ["clients/0.w.000001", "round-000001.state", "round-000001.json"]
    manifest = json.loads((tmp_path / order[-1]).read_text())
    assert manifest["state"][0] == order[1]
    assert manifest["clients"]["0"]["w"][0] == order[0]


@pytest.mark.parametrize(
    "uri", ["{}/file/below", "/proc/nowhere", "nonsense://place", "file://relative/{}"]
)
def test_a_place_that_cannot_be_written_is_a_clear_error(uri: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        StorageError, match=r"checkpoints need a writable place; got .*Set checkpoint\.uri\."
    ):
        CheckpointStore(uri.format(tmp_path))


def test_a_folder_that_became_unwritable_is_a_clear_error(tmp_path: Path) -> None:
    store = CheckpointStore(str(tmp_path / "run"))
    (tmp_path / "run" / "clients").rmdir()
    (tmp_path / "run").rmdir()
    (tmp_path / "run").touch()
    with pytest.raises(StorageError, match="the checkpoint of round 1 could not be written"):
        write(store, snapshot(1))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of one megabyte, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = os.name == "posix" and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)],
        capture_output=True,
        check=False,
    )
    if not mounted or mounted.returncode:
        pytest.skip("mounting a small disk is not permitted here")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_keeps_what_is_there(small_disk: Path) -> None:
    store = CheckpointStore(str(small_disk / "run"))
    write(store, snapshot(1, {0: {"w": Entry(np.zeros(10_000))}}))
    with pytest.raises(
        StorageError, match=r"the checkpoint of round 2 could not be written.*Free some space"
    ):
        write(store, snapshot(2, {0: {"w": Entry(np.zeros(1_000_000))}}))
    found = newest(CheckpointStore(str(small_disk / "run")))
    assert found is not None
    assert found.round == 1
    write(store, snapshot(3, {0: {"w": Entry(np.zeros(10_000))}}))
