"""Downloads that resume where they stopped, and that count as done only once whole and verified."""

from __future__ import annotations

import hashlib
import http.client
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from rayfl.errors import ConfigError, DataError, broken

_ATTEMPTS = 4
_CHUNK = 1 << 18
_HASHED_AT_ONCE = 1 << 20
_TIMEOUT_SECONDS = 60
# Timed out, range not satisfiable, too many requests: another try may succeed. Other refusals are
# final.
_PASSING = (408, 416, 429)
# Without identity a server may compress on the way, and the length would not be the file's.
_HEADERS = {"User-Agent": "rayfl", "Accept-Encoding": "identity"}

Say = Callable[[str], None]
Advance = Callable[[int], None]


def download_file(
    url: str,
    folder: Path,
    digest: str,
    say: Say,
    pause: float = 1.0,
) -> Path:
    """The file behind a URL; a `.part` beside it is what an earlier try left, and is continued.

    Parameters
    ----------
    url
        Where it is.
    folder
        Where it goes; a file that is there already is not fetched again.
    digest
        What it must hash to, as for `check_digest`.
    say
        Takes lines for the user.
    pause
        Seconds before the second try; later tries wait longer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Two publishers may use one name: the address makes the difference.
    tag = hashlib.sha256(url.encode()).hexdigest()[:8]
    name = unquote(Path(urlsplit(url).path).name)
    target = folder / tag / (name or "file")
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        part = target.with_name(target.name + ".part")
        _retry_transfer(url, part, say, pause)
        check_digest(part, digest, discard=True)
        part.replace(target)
    return target


def _retry_transfer(
    url: str,
    part: Path,
    say: Say,
    pause: float,
) -> None:
    """Try, and try again from where the last try ended."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _transfer_rest(url, part, say)
        except urllib.error.HTTPError as error:
            problem: Exception = error
            if error.code < 500 and error.code not in _PASSING:
                break
        except (OSError, http.client.HTTPException) as error:
            problem = error
        if attempt < _ATTEMPTS:
            say(f"{problem}; trying again")
            time.sleep(pause * attempt)
    remedy = "Check the address and the network"
    if part.exists():
        remedy = "Run the command again to continue"
    raise DataError(broken(f"{url} must be reachable to its end", problem, remedy)) from problem


def _transfer_rest(
    url: str,
    part: Path,
    say: Say,
) -> None:
    """Append what is missing; start afresh if the server cannot continue."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers=_HEADERS)
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        # Nothing beyond what is here: it was whole already when the last run ended.
        if error.headers.get("Content-Range") == f"bytes */{have}":
            return
        part.unlink()
        raise
    with answer:
        resumed = answer.status == http.HTTPStatus.PARTIAL_CONTENT
        start = have if resumed else 0
        length = answer.headers.get("Content-Length")
        total = None if length is None else start + int(length)
        mode = "ab" if resumed else "wb"
        with (
            part.open(mode) as out,
            report_progress(part.stem, start, total, say) as advance,
        ):
            while chunk := answer.read(_CHUNK):
                out.write(chunk)
                advance(len(chunk))
    # A connection that closes early looks like an end of file.
    size = part.stat().st_size
    if total is not None and size != total:
        raise OSError(f"the connection ended at {size:,} of {total:,} bytes")


def check_digest(
    file: Path,
    digest: str,
    discard: bool = False,
) -> None:
    """Refuse a file that hashes to something else.

    Parameters
    ----------
    file
        What to hash.
    digest
        `sha256:...` or `md5:...`; nothing is known if it is empty.
    discard
        Remove a file that is refused.
    """
    if not digest:
        return
    kind, _, wanted = digest.partition(":")
    if kind not in ("sha256", "md5") or not wanted:
        raise ConfigError(broken("a digest is sha256:HEX or md5:HEX", digest))
    wanted = wanted.lower()
    found = _hash_file(file, kind)
    if found != wanted:
        # Continuing a wrong file could never make it right.
        if discard:
            file.unlink()
        rule = f"{file} has the {kind} {wanted}"
        raise DataError(broken(rule, found, "Fetch it again or from elsewhere"))


def _hash_file(file: Path, kind: str) -> str:
    digest = hashlib.new(kind, usedforsecurity=False)
    with file.open("rb") as stream:
        while chunk := stream.read(_HASHED_AT_ONCE):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def report_progress(
    name: str,
    start: int,
    total: int | None,
    say: Say,
) -> Iterator[Advance]:
    """A bar on a terminal, a line at every tenth elsewhere.

    Parameters
    ----------
    name
        What is fetched.
    start
        How many bytes were there already.
    total
        How many there will be, if the server tells.
    say
        Takes the lines.
    """
    if sys.stderr.isatty():
        with _draw_bar(name, start, total) as advance:
            yield advance
    else:
        yield report_in_lines(name, start, total, say)


@contextmanager
def _draw_bar(
    name: str,
    start: int,
    total: int | None,
) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(name, total=total, completed=start)
        yield lambda size: progress.advance(task, size)


def report_in_lines(
    name: str,
    start: int,
    total: int | None,
    say: Say,
) -> Advance:
    """Tells a tenth when it is reached, or every 64 MB of a size that nobody knows; `name`,
    `start`, `total` and `say` are as in `report_progress`."""
    step = max(1, total // 10) if total else 64_000_000
    whole = f" of {total / 1e6:,.1f} MB" if total else " MB"
    have = start

    def advance(size: int) -> None:
        nonlocal have
        before = have
        have += size
        if have // step > before // step:
            say(f"{name}: {have / 1e6:,.1f}{whole}")

    return advance
