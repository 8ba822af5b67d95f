"""Locks on files: one holder, who is named, and nothing left behind by one that is killed."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rayfl.errors import StorageError
from rayfl.locks import FileLock, LockHeldError, read_holder, take_lock

HOLD = """
import sys
from pathlib import Path
from rayfl.locks import take_lock
lock = take_lock(Path(sys.argv[1]), "it")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the lock until it is killed or its input ends."""
    words = [sys.executable, "-c", HOLD, str(path)]
    holder = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdin is not None
    try:
        assert holder.stdout.readline() == "held\n"
        yield holder
    finally:
        holder.kill()
        holder.wait()
        for pipe in (holder.stdin, holder.stdout):
            pipe.close()


def test_a_second_process_is_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "lock"
    with another_holder(path) as holder:
        who = rf"process {holder.pid} on \S+ since 20.*"
        rule = rf"^one process at a time works on the run; got one that is held by {who}\. Wait"
        with pytest.raises(LockHeldError, match=rule) as refusal:
            take_lock(path, "the run")
    assert isinstance(refusal.value, StorageError)
    assert refusal.value.path == path
    assert refusal.value.holder is not None
    assert refusal.value.holder.pid == holder.pid


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    with another_holder(tmp_path / "lock") as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
        with take_lock(tmp_path / "lock", "it"):
            found = read_holder(tmp_path / "lock")
    assert found is not None
    assert found.pid == os.getpid()


def test_the_lock_does_not_live_on_in_a_program_that_the_holder_started(tmp_path: Path) -> None:
    child = "import subprocess; subprocess.Popen(['sleep', '30'], close_fds=False)\n"
    words = [sys.executable, "-c", HOLD.replace("print(", child + "print(", 1)]
    words.append(str(tmp_path / "lock"))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        holder.kill()
        holder.wait()
        take_lock(tmp_path / "lock", "it").release()


FORKING = """
import os, signal, sys
from pathlib import Path
from rayfl.locks import take_lock
lock = take_lock(Path(sys.argv[1]), "it")
child = os.fork()
if child == 0:
    signal.pause()
try:
    lock.release()
    take_lock(Path(sys.argv[1]), "it")
    print("again")
finally:
    os.kill(child, signal.SIGKILL)
"""


def test_a_lock_that_is_given_back_is_free_though_a_forked_process_has_it_open(
    tmp_path: Path,
) -> None:
    words = [sys.executable, "-c", FORKING, str(tmp_path / "lock")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.stdout == "again\n", done.stderr


def test_a_lock_of_another_machine_on_smb_is_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There the kernel denies it as it denies a file."""

    def refuse(descriptor: int, how: int) -> None:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(LockHeldError, match="held by another process"):
        take_lock(tmp_path / "lock", "it")


def test_another_thread_of_the_same_process_is_kept_out_too(tmp_path: Path) -> None:
    refused: list[BaseException] = []

    def try_it() -> None:
        try:
            take_lock(tmp_path / "lock", "it").release()
        except LockHeldError as error:
            refused.append(error)

    with take_lock(tmp_path / "lock", "it"):
        thread = threading.Thread(target=try_it)
        thread.start()
        thread.join()
    assert len(refused) == 1


def test_a_lock_that_is_given_back_names_nobody_and_can_be_taken_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = take_lock(path, "it")
    lock.release()
    lock.release()
    assert read_holder(path) is None
    assert path.exists()
    take_lock(path, "it").release()


def test_one_with_patience_waits_for_the_holder(tmp_path: Path) -> None:
    with another_holder(tmp_path / "lock") as holder:
        assert holder.stdin is not None
        ending = threading.Timer(0.3, holder.stdin.close)
        ending.start()
        with take_lock(tmp_path / "lock", "it", patience=60):
            pass
        ending.join()


def test_damaged_names_are_no_names(tmp_path: Path) -> None:
    for text in (b"", b"{", b"[]", b"{}", b'{"pid": "x"}', b"\xff\xfe"):
        (tmp_path / "lock").write_bytes(text)
        assert read_holder(tmp_path / "lock") is None


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK])
def test_without_locks_there_is_a_warning_and_no_refusal(
    number: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(descriptor: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with caplog.at_level(logging.WARNING, "rayfl"):
        lock = take_lock(tmp_path / "lock", "the run")
    assert isinstance(lock, FileLock)
    lock.release()
    assert "has no locks: nobody is kept from writing to the run too" in caplog.text


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        take_lock(tmp_path / "file" / "lock", "it")
