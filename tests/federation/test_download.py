"""Downloads: resumed, verified, and whole or not at all."""

from __future__ import annotations

import hashlib
import io
import sys
from pathlib import Path

import pytest

from rayfl.errors import ConfigError, DataError
from rayfl.federation.download import check_digest, download_file, report_in_lines, report_progress
from tests.federation.server import CONTENT, SHA256, Server


def quiet(_: str) -> None:
    """Say nothing."""


def fetched(server: Server, folder: Path, digest: str = f"sha256:{SHA256}") -> bytes:
    return download_file(server.url(), folder, digest, quiet, pause=0).read_bytes()


def test_a_download_comes_whole_and_only_once(server: Server, tmp_path: Path) -> None:
    assert fetched(server, tmp_path) == CONTENT
    assert fetched(server, tmp_path) == CONTENT
    assert server.asked == [None]


def test_a_broken_connection_is_continued(server: Server, tmp_path: Path) -> None:
    server.failures, server.cut = 2, 30_000
    assert fetched(server, tmp_path) == CONTENT
    assert server.asked == [None, "bytes=30000-", "bytes=60000-"]


def test_a_later_run_continues_where_the_last_one_ended(server: Server, tmp_path: Path) -> None:
    server.failures, server.cut = 4, 1000
    with pytest.raises(
        DataError,
        match=r"got the connection ended at 4,000 of 102,400 bytes\. Run the command again",
    ):
        fetched(server, tmp_path)
    assert [file.suffix for file in tmp_path.rglob("data*")] == [".part"]
    assert fetched(server, tmp_path) == CONTENT
    assert server.asked[-1] == "bytes=4000-"


def test_a_server_that_cannot_continue_starts_afresh(server: Server, tmp_path: Path) -> None:
    server.failures, server.cut, server.ranges = 1, 5000, False
    assert fetched(server, tmp_path) == CONTENT


def left_part(server: Server, folder: Path, content: bytes) -> None:
    """Leave a partial file, as an interrupted download of this server does."""
    tag = hashlib.sha256(server.url().encode()).hexdigest()[:8]
    (folder / tag).mkdir(parents=True)
    (folder / tag / "data.bin.part").write_bytes(content)


@pytest.mark.parametrize("left", [CONTENT, CONTENT + b"too much", b""])
def test_a_part_of_any_length_ends_well(server: Server, tmp_path: Path, left: bytes) -> None:
    left_part(server, tmp_path, left)
    assert fetched(server, tmp_path) == CONTENT


def test_a_wrong_hash_is_refused_and_forgotten(server: Server, tmp_path: Path) -> None:
    left_part(server, tmp_path, b"x" * 100)
    with pytest.raises(
        DataError, match=rf"has the sha256 {SHA256}; got [0-9a-f]{{64}}\. Fetch it again"
    ):
        fetched(server, tmp_path)
    assert fetched(server, tmp_path) == CONTENT


@pytest.mark.parametrize(("status", "tries"), [(404, 1), (403, 1), (503, 4), (429, 4)])
def test_errors_of_the_server(server: Server, tmp_path: Path, status: int, tries: int) -> None:
    server.status = status
    with pytest.raises(
        DataError, match=f"data.bin must be reachable to its end; got HTTP Error {status}"
    ):
        fetched(server, tmp_path)
    assert len(server.asked) == tries


def test_two_addresses_with_one_file_name_stay_apart(server: Server, tmp_path: Path) -> None:
    first = download_file(server.url("a/x.gz"), tmp_path, "", quiet)
    second = download_file(server.url("b/x.gz"), tmp_path, "", quiet)
    assert first.name == second.name == "x.gz"
    assert first != second


@pytest.mark.parametrize("digest", ["crc:12", "sha256:", "abc"])
def test_a_strange_digest_is_refused(tmp_path: Path, digest: str) -> None:
    with pytest.raises(ConfigError, match="a digest is sha256:HEX or md5:HEX"):
        check_digest(tmp_path, digest)


def test_digests_know_md5_and_capitals(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"abc")
    check_digest(file, "md5:900150983CD24FB0D6963F7D28E17F72")
    with pytest.raises(DataError, match="has the md5 00; got 900150983cd24fb0d6963f7d28e17f72"):
        check_digest(file, "md5:00")


@pytest.mark.parametrize(
    ("start", "total", "told"),
    [(0, 1_000_000, ["f: 0.1 of 1.0 MB", "f: 0.6 of 1.0 MB", "f: 1.0 of 1.0 MB"]), (0, None, [])],
)
def test_progress_off_a_terminal_is_a_few_lines(
    start: int, total: int | None, told: list[str]
) -> None:
    said: list[str] = []
    advance = report_in_lines("f", start, total, said.append)
    for size in (99_999, 1, 50, 450_000, 449_950):
        advance(size)
    assert said == told


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    said: list[str] = []
    with report_progress("mnist.tgz", 50, 100, said.append) as advance:
        advance(50)
    assert not said
    assert "mnist.tgz" in terminal.getvalue()
