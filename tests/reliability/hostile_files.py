"""Files that are made to do harm: they claim or unpack to far more than they are, wait for ever, or
ask for what no dataset needs."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rayfl.component import component
from rayfl.federation.archives import unpack_archive
from rayfl.federation.datasets.array_pickles import read_pickle
from rayfl.federation.datasets.cifar import Cifar10
from rayfl.federation.datasets.folder import Folder
from rayfl.federation.datasets.idx import Mnist
from rayfl.federation.datasets.medmnist import BreastMnist
from rayfl.federation.datasets.on_disk import OnDisk
from rayfl.federation.datasets.parquet import Parquet
from rayfl.federation.datasets.svhn import Svhn
from rayfl.federation.number_columns import read_columns
from rayfl.federation.scenario_store import read_header

BOMB = 400_000_000
"""Bytes that a bomb unpacks to."""
ALLOWED = 2_000_000
"""What an archive may unpack to here."""


@component
class _SmallDigits(Mnist):
    holds: ClassVar[int] = 100_000


@component
class _SmallNumbers(Svhn):
    holds: ClassVar[int] = 1_000_000


def _load(kind: Callable[..., OnDisk], folder: Path) -> object:
    return kind(path=folder).load(folder)


def _write_zeros(write: Callable[[bytes], object], size: int = BOMB) -> None:
    piece = bytes(1 << 20)
    for _ in range(size // len(piece)):
        write(piece)


def gzip_bomb(folder: Path) -> object:
    for name in ("train-images-idx3", "train-labels-idx1"):
        with gzip.open(folder / f"{name}-ubyte.gz", "wb", compresslevel=1) as out:
            out.write(bytes((0, 0, 8, 3)) + struct.pack(">3I", 20, 28, 28))
            _write_zeros(out.write)
    return _load(_SmallDigits, folder)


def idx_claim(folder: Path) -> object:
    head = bytes((0, 0, 8, 3)) + struct.pack(">3I", 1 << 31, 1 << 31, 1 << 31)
    (folder / "train-images-idx3-ubyte").write_bytes(head + bytes(100))
    return _load(_SmallDigits, folder)


def npz_bomb(folder: Path) -> object:
    with zipfile.ZipFile(folder / "breastmnist.npz", "w", zipfile.ZIP_DEFLATED) as packed:
        head = io.BytesIO()
        facts = {"descr": "|u1", "fortran_order": False, "shape": (BOMB // 784, 28, 28)}
        np.lib.format.write_array_header_1_0(head, facts)
        with packed.open("train_images.npy", "w") as out:
            out.write(head.getvalue())
            _write_zeros(out.write)
    return _load(BreastMnist, folder)


def mat_bomb(folder: Path) -> object:
    packer = zlib.compressobj(1)
    parts: list[bytes] = []
    _write_zeros(lambda piece: parts.append(packer.compress(piece)))
    packed = b"".join([*parts, packer.flush()])
    head = b"MATLAB 5.0".ljust(124) + struct.pack("<H", 0x0100) + b"IM"
    content = head + struct.pack("<II", 15, len(packed)) + packed
    (folder / "train_32x32.mat").write_bytes(content)
    return _load(_SmallNumbers, folder)


def _unpack(folder: Path, name: str) -> object:
    try:
        unpack_archive(folder / name, folder / "unpacked", ALLOWED)
    finally:
        written = sum(file.stat().st_size for file in (folder / "unpacked").rglob("*"))
        assert written <= 2 * ALLOWED, f"{written} bytes were written"
    return None


def zip_bomb(method: int, folder: Path) -> object:
    with (
        zipfile.ZipFile(folder / "a.zip", "w", method, compresslevel=1) as packed,
        packed.open("x", "w") as out,
    ):
        _write_zeros(out.write, BOMB // 4)
    return _unpack(folder, "a.zip")


def zip_of_many(folder: Path) -> object:
    with zipfile.ZipFile(folder / "a.zip", "w") as packed:
        for number in range(10_000):
            packed.writestr(f"{number}", b"")
    return _unpack(folder, "a.zip")


def _write_tar(folder: Path, member: tarfile.TarInfo, size: int) -> None:
    """A packed tar file whose one member has as many zeros."""
    with gzip.open(folder / "a.tar.gz", "wb", compresslevel=1) as out:
        out.write(member.tobuf(tarfile.GNU_FORMAT))
        _write_zeros(out.write, size)


def tar_bomb(folder: Path) -> object:
    member = tarfile.TarInfo("x")
    member.size = BOMB
    _write_tar(folder, member, BOMB)
    return _unpack(folder, "a.tar.gz")


def tar_header_bomb(kind: bytes, folder: Path) -> object:
    member = tarfile.TarInfo("x")
    member.type = kind
    member.size = BOMB
    _write_tar(folder, member, BOMB)
    return _unpack(folder, "a.tar.gz")


class _Call:
    """Pickled as a call."""

    def __init__(self, called: Any, *arguments: Any) -> None:
        self.call = called, arguments

    def __reduce__(self) -> Any:
        return self.call


def _read_pickled(content: bytes, folder: Path) -> object:
    (folder / "batch").write_bytes(content)
    return read_pickle(folder / "batch")


def pickled_claim(folder: Path) -> object:
    rebuild: Any = np.zeros(1).__reduce__()[0]
    claim = _Call(rebuild, np.ndarray, (10**12,), b"b")
    return _read_pickled(pickle.dumps({"data": claim}), folder)


def pickled_length(folder: Path) -> object:
    return _read_pickled(b"\x80\x04\x8e" + struct.pack("<Q", 1 << 60) + b"x", folder)


def pickled_encoding(folder: Path) -> object:
    import codecs

    return _read_pickled(pickle.dumps({"a": _Call(codecs.encode, "x" * 10, "nowhere")}), folder)


def pickled_depth(folder: Path) -> object:
    content = b"\x80\x04}\x8c\x04data" + b"]" * 100_000 + b"a" * 99_999 + b"s."
    (folder / "data_batch_1").write_bytes(content)
    return _load(Cifar10, folder)


def picture_bomb(folder: Path) -> object:
    side = 20_000
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    packer = zlib.compressobj(1)
    rows = b"".join(packer.compress(bytes(side // 8 + 1)) for _ in range(side)) + packer.flush()
    content = b"\x89PNG\r\n\x1a\n"
    for kind, chunk in ((b"IHDR", head), (b"IDAT", rows), (b"IEND", b"")):
        check = struct.pack(">I", zlib.crc32(kind + chunk))
        content += struct.pack(">I", len(chunk)) + kind + chunk + check
    (folder / "cat").mkdir()
    (folder / "cat" / "0.png").write_bytes(content)
    return _load(partial(Folder, side=16), folder)


def picture_of_another_kind(folder: Path) -> object:
    from PIL import Image

    (folder / "cat").mkdir()
    Image.new("L", (16, 16)).save(folder / "cat" / "0.png", "TGA")
    return _load(partial(Folder, side=16), folder)


def picture_pipe(folder: Path) -> object:
    (folder / "cat").mkdir()
    os.mkfifo(folder / "cat" / "0.png")
    return _load(Folder, folder)


def picture_device(folder: Path) -> object:
    (folder / "cat").mkdir()
    (folder / "cat" / "0.png").symlink_to("/dev/zero")
    return _load(Folder, folder)


def picture_link_to_nothing(folder: Path) -> object:
    (folder / "cat").mkdir()
    (folder / "cat" / "0.png").symlink_to(folder / "nowhere.png")
    return _load(Folder, folder)


def parquet_pipe(folder: Path) -> object:
    os.mkfifo(folder / "train-0.parquet")
    return _load(Parquet, folder)


def table_device(folder: Path) -> object:
    (folder / "table.csv").symlink_to("/dev/zero")
    return read_columns(folder / "table.csv", "client")


def scenario_pipe(folder: Path) -> object:
    os.mkfifo(folder / "scenario.json")
    return read_header(folder)


HOSTILE: Mapping[str, tuple[Callable[[Path], object], str]] = {
    "a bomb of gzip": (gzip_bomb, "bytes long, by its header"),
    "an immense claim of IDX": (idx_claim, "an array of at most"),
    "a bomb in an npz": (npz_bomb, "bytes where .* are the most"),
    "a bomb in a mat file": (mat_bomb, "more than 4,000,000 bytes, unpacked"),
    "a zip bomb": (partial(zip_bomb, zipfile.ZIP_DEFLATED), "unpacks to 2,000,000 bytes at most"),
    "a zip bomb of bzip2": (partial(zip_bomb, zipfile.ZIP_BZIP2), "unpacks to"),
    "ten thousand empty files": (zip_of_many, "unpacks to"),
    "a tar bomb": (tar_bomb, "unpacks to"),
    "a tar bomb of a long name": (partial(tar_header_bomb, b"L"), "a header of"),
    "a tar bomb of a header": (partial(tar_header_bomb, b"x"), "a header of"),
    "an array of 8 TB in a pickle": (pickled_claim, "more memory than there is"),
    "a text of 2^60 bytes in a pickle": (pickled_length, "a whole pickle"),
    "an unknown encoding in a pickle": (pickled_encoding, "asks for the encoding 'nowhere'"),
    "100,000 lists in each other": (pickled_depth, "a batch of"),
    "a picture of 400 megapixels": (picture_bomb, "pixels"),
    "another format": (picture_of_another_kind, "a whole image file"),
    "a pipe called a picture": (picture_pipe, "Is a pipe, a socket or a device"),
    "a link to a device": (picture_device, "Is a pipe, a socket or a device"),
    "a link to nothing": (picture_link_to_nothing, "No such file"),
    "a pipe called a Parquet file": (parquet_pipe, "Is a pipe, a socket or a device"),
    "a table that is a device": (table_device, "the file exists"),
    "a pipe called a scenario": (scenario_pipe, "Is a pipe, a socket or a device"),
}
"""Each makes its file in an empty folder and reads it; and what the refusal says."""
