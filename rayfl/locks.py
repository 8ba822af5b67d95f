"""One writer at a time: locks on files, which the kernel takes from a process that dies.

A lock is `flock` on a file that stays; only the lock on it comes and goes, so a killed owner leaves
nothing behind that would have to be cleaned up. What is promised:

- On local file systems the lock excludes everybody, also another thread of the same process.
- On NFS (Linux turns `flock` into a lock of the server there), CephFS, GPFS and Lustre mounted with
  `flock` it excludes other machines too. A killed process gives it back at once, a machine that
  lost its power or its network when the server gives up on it (NFSv4: after its lease, 90 s).
- On SMB, from Linux 5.5 on, it excludes other machines too, and nobody can read who holds it.
- Where the mount keeps locks to each machine (`nolock`, `local_lock=all`, Lustre's `localflock`),
  it excludes the processes of one machine alone.
- Where there are no locks at all, that is said in a warning, and nobody is kept out."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import platform
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from rayfl.durable import make_folder
from rayfl.errors import StorageError, broken

log = logging.getLogger("rayfl")

RETRY_SECONDS = 0.05
NAMELESS_SECONDS = 1.0
"""How long a lock is tried for whose holder has not yet written who it is."""
HELD = (BlockingIOError, PermissionError)
"""What the kernel says of a lock that somebody has; of one on SMB it says the second."""
NO_LOCKS_HERE = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}


@dataclass(frozen=True)
class Holder:
    """Who holds a lock."""

    pid: int
    host: str
    since: str

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class LockHeldError(StorageError):
    """Somebody else is at work there.

    Attributes
    ----------
    path : Path
        The lock's file.
    holder : Holder or None
        Who holds it, where they have said so.
    """

    def __init__(self, path: Path, what: str, holder: Holder | None) -> None:
        self.path = path
        self.holder = holder
        who = "another process" if holder is None else str(holder)
        rule = f"one process at a time works on {what}"
        super().__init__(broken(rule, f"one that is held by {who}", "Wait for it, or end it."))


class FileLock:
    """A lock that is held until `release`, or to the end of a `with` block. Made by `take_lock`."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path = path
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back; a second time does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None:
            return
        # The file itself stays: somebody may have it open and be waiting for the lock, and would
        # hold a lock on a file that nobody else can find.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            # A process that this one has forked may have the file open too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


def take_lock(path: Path, what: str, patience: float = 0.0) -> FileLock:
    """Take the lock on a file, which is made if it is not there.

    Parameters
    ----------
    path : Path
        The lock's file; its folder is made too. It holds nothing but who has the lock.
    what : str
        What the lock protects, for the refusal: `one process at a time works on {what}`.
    patience : float
        Seconds to wait for somebody who holds it.

    Returns
    -------
    FileLock
        Released by its `release`, by the end of a `with` block, and by the end of the process.

    Raises
    ------
    LockHeldError
        Somebody else holds it, also another thread of this process.
    OSError
        The file cannot be made.
    """
    make_folder(path.parent)
    # Python's descriptors are not handed on to programs that a process starts (Ray's daemons, git):
    # the lock ends with this process, whatever outlives it.
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _wait_for(descriptor, path, what, patience)
    except OSError as error:
        os.close(descriptor)
        if error.errno not in NO_LOCKS_HERE:
            raise
        log.warning("%s has no locks: nobody is kept from writing to %s too", path.parent, what)
        return FileLock(path, None)
    except BaseException:
        os.close(descriptor)
        raise
    _sign_lock(descriptor)
    return FileLock(path, descriptor)


def read_holder(path: Path) -> Holder | None:
    """Who wrote their name into a lock's file last and has not given it back.

    It tells whom to name, not whether the lock is held: one that was killed has left its name. To
    find out, take the lock.
    """
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
        return Holder(int(facts["pid"]), str(facts["host"]), str(facts["since"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def _wait_for(descriptor: int, path: Path, what: str, patience: float) -> None:
    started = time.monotonic()
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except HELD:
            holder = read_holder(path)
        # Between taking a lock and signing it a holder has no name.
        limit = patience if holder is not None else max(patience, NAMELESS_SECONDS)
        if time.monotonic() - started >= limit:
            raise LockHeldError(path, what, holder)
        time.sleep(RETRY_SECONDS)


def _sign_lock(descriptor: int) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    holder = Holder(os.getpid(), platform.node(), since)
    # Who holds it is a courtesy; a full disk must not keep anybody from holding it.
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(asdict(holder)).encode(), 0)
