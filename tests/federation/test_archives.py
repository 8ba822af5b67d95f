"""Unpacking: tar and zip alike, nothing outside, no links, no half archives."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rayfl.errors import DataError
from rayfl.federation.archives import is_archive, unpack_archive


def tar_of(file: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(file, "w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return file


def zip_of(file: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(file, "w") as packed:
        for name, content in members.items():
            packed.writestr(name, content)
    return file


Pack = Callable[[Path, dict[str, bytes]], Path]
PACKS = [("a.tgz", tar_of), ("a.tar.gz", tar_of), ("a.zip", zip_of)]


@pytest.mark.parametrize(("name", "pack"), PACKS)
def test_archives_unpack(tmp_path: Path, name: str, pack: Pack) -> None:
    archive = pack(tmp_path / name, {"x/y.txt": b"1", "z": b"2"})
    assert is_archive(archive)
    unpack_archive(archive, tmp_path / "out")
    assert (tmp_path / "out/x/y.txt").read_bytes() == b"1"
    assert (tmp_path / "out/z").read_bytes() == b"2"


@pytest.mark.parametrize(("name", "pack"), PACKS)
@pytest.mark.parametrize("path", ["../evil", "/tmp/rayfl-evil", "a/../../evil"])
def test_archives_stay_inside(tmp_path: Path, name: str, pack: Pack, path: str) -> None:
    archive = pack(tmp_path / name, {path: b"1"})
    with pytest.raises(DataError, match=r"stay inside it; got .*evil.* Do not trust"):
        unpack_archive(archive, tmp_path / "out")
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(tmp_path: Path, kind: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        info = tarfile.TarInfo("odd")
        info.type, info.linkname = kind, "/etc/passwd"
        tar.addfile(info)
    with pytest.raises(
        DataError, match="holds files and folders only; got odd, a link or a device"
    ):
        unpack_archive(tmp_path / "a.tar", tmp_path / "out")


@pytest.mark.parametrize(("name", "pack"), PACKS)
def test_truncated_archives_are_refused(
    tmp_path: Path,
    name: str,
    pack: Pack,
) -> None:
    archive = pack(tmp_path / name, {"x": np.random.default_rng(0).bytes(5000)})
    archive.write_bytes(archive.read_bytes()[:3000])
    with pytest.raises(DataError, match=f"{name} must be a whole archive"):
        unpack_archive(archive, tmp_path / "out")


def test_npz_is_no_archive_to_unpack() -> None:
    assert not is_archive(Path("pathmnist.npz"))
