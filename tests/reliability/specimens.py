"""One small whole file of every kind that is read, with what reads it."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import shutil
import struct
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rayfl.component import component
from rayfl.federation.archives import unpack_archive
from rayfl.federation.datasets.cifar import Cifar10
from rayfl.federation.datasets.cifar_n import read_human_labels
from rayfl.federation.datasets.folder import Folder
from rayfl.federation.datasets.idx import Mnist
from rayfl.federation.datasets.medmnist import FACTS, BreastMnist, ReleaseFacts
from rayfl.federation.datasets.mura import Mura
from rayfl.federation.datasets.on_disk import Expected
from rayfl.federation.datasets.parquet import Parquet
from rayfl.federation.datasets.svhn import Svhn
from rayfl.federation.datasets.tiny_imagenet import TinyImageNet
from rayfl.federation.datasets.webvision import WebVision
from rayfl.federation.noise.transition import Transition
from rayfl.federation.number_columns import read_columns
from rayfl.federation.scenario import Scenario
from rayfl.models.weight_files import read_weights
from tests.federation.noise.truths import server
from tests.federation.toys import save_toy

IMAGES = 20
RNG = np.random.default_rng(0)
LABELS = np.arange(IMAGES, dtype=np.uint8) % 2
GREY = RNG.integers(0, 256, (IMAGES, 28, 28), dtype=np.uint8)
ROWS = RNG.integers(0, 256, (IMAGES, 3072), dtype=np.uint8)
PHOTOS = RNG.integers(0, 256, (32, 32, 3, IMAGES), dtype=np.uint8)
BOTH: tuple[Expected, Expected] = (IMAGES, IMAGES)


@component
class _Digits(Mnist):
    expected: ClassVar[tuple[Expected, Expected]] = BOTH


@component
class _Things(Cifar10):
    expected: ClassVar[tuple[Expected, Expected]] = BOTH
    train_files: ClassVar[tuple[str, ...]] = ("data_batch_1",)


@component
class _Numbers(Svhn):
    expected: ClassVar[tuple[Expected, Expected]] = BOTH


@component
class _Tiny(TinyImageNet):
    expected: ClassVar[tuple[Expected, Expected]] = (2, 2)


@component
class _Web(WebVision):
    expected: ClassVar[tuple[Expected, Expected]] = (2, 2)


@component
class _Bones(Mura):
    expected: ClassVar[tuple[Expected, Expected]] = (7, 7)


Load = Callable[[Path], object]


@dataclass(frozen=True)
class Specimen:
    """A kind of file: `make` writes a folder and says which file is to be damaged, `read` reads the
    folder."""

    make: Callable[[Path], Path]
    read: Load


# -- images as arrays ------------------------------------------------------------------------------


def _idx(array: np.ndarray[Any, Any]) -> bytes:
    head = bytes((0, 0, 8, array.ndim)) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(np.uint8).tobytes()


def _make_idx(spoilt: str, packed: bool, folder: Path) -> Path:
    end = ".gz" if packed else ""
    for part in ("train", "t10k"):
        for kind, array in (("images-idx3", GREY), ("labels-idx1", LABELS)):
            content = _idx(array)
            name = folder / f"{part}-{kind}-ubyte{end}"
            name.write_bytes(gzip.compress(content) if packed else content)
    return folder / f"train-{spoilt}-ubyte{end}"


def _make_pickles(protocol: int, folder: Path) -> Path:
    for name in ("data_batch_1", "test_batch"):
        batch = {"data": ROWS, "labels": LABELS.tolist()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))
    return folder / "data_batch_1"


def _make_records(folder: Path) -> Path:
    records = np.concatenate([LABELS[:, None], ROWS], axis=1)
    for name in ("data_batch_1.bin", "test_batch.bin"):
        records.tofile(folder / name)
    return folder / "data_batch_1.bin"


def _make_strips(spoilt: str, folder: Path) -> Path:
    for name, split in (("data_batch_1", "train"), ("test_batch", "test")):
        strip = ROWS.reshape(IMAGES, 1024, 3)
        (folder / f"{name}.png").write_bytes(_encode_image("PNG", strip))
        (folder / f"{split}_lables.json").write_text(json.dumps(LABELS.tolist()))
    return folder / spoilt


def _make_npz(save: Callable[..., None], folder: Path) -> Path:
    parts: dict[str, Any] = {}
    for part in ("train", "test"):
        parts |= {f"{part}_images": GREY, f"{part}_labels": LABELS[:, None]}
    save(folder / "breastmnist.npz", **parts)
    return folder / "breastmnist.npz"


def _read_npz(folder: Path) -> object:
    FACTS["breastmnist"] = ReleaseFacts(((IMAGES, IMAGES),), "malignant|normal or benign")
    return BreastMnist(path=folder).load(folder)


def _make_mat(compressed: bool, folder: Path) -> Path:
    from scipy.io import savemat

    for name in ("train_32x32.mat", "test_32x32.mat"):
        content = {"X": PHOTOS, "y": LABELS[:, None] + 1}
        savemat(folder / name, content, do_compression=compressed)
    return folder / "train_32x32.mat"


# -- images as files -------------------------------------------------------------------------------


def _encode_image(form: str, pixels: np.ndarray[Any, Any]) -> bytes:
    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, form)
    return stream.getvalue()


def _photo(at: int, form: str = "PNG") -> bytes:
    return _encode_image(form, PHOTOS[..., at])


def _make_folder(form: str, folder: Path) -> Path:
    end = form.lower()
    for label in ("cat", "dog"):
        (folder / label).mkdir()
        for at in range(5):
            (folder / label / f"{at}.{end}").write_bytes(_photo(at, form))
    return folder / "cat" / f"3.{end}"


def _make_parquet(compression: str, folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    info = {"info": {"features": {"label": {"names": ["cat", "dog"]}}}}
    photos = [{"bytes": _photo(at), "path": "x"} for at in range(IMAGES)]
    table = pa.table({"image": photos, "label": LABELS.astype(np.int64)})
    table = table.replace_schema_metadata({b"huggingface": json.dumps(info).encode()})
    pq.write_table(table, folder / "train-0.parquet", compression=compression)
    return folder / "train-0.parquet"


def _make_tiny(spoilt: str, folder: Path) -> Path:
    for wnid in ("n01", "n02"):
        (folder / "train" / wnid / "images").mkdir(parents=True)
        (folder / "train" / wnid / "images" / "0.JPEG").write_bytes(_photo(0, "JPEG"))
    (folder / "val" / "images").mkdir(parents=True)
    lines = []
    for at, wnid in enumerate(("n01", "n02")):
        (folder / "val" / "images" / f"{at}.JPEG").write_bytes(_photo(at, "JPEG"))
        lines.append(f"{at}.JPEG\t{wnid}\t0\t0\t9\t9\n")
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("n01\nn02\n")
    (folder / "words.txt").write_text("n01\tgoldfish, Carassius auratus\n")
    return folder / spoilt


def _make_web(spoilt: str, folder: Path) -> Path:
    for place, listing in (("google", "train_filelist_google"), ("val_images_256", "val_filelist")):
        (folder / "info").mkdir(exist_ok=True)
        (folder / place).mkdir()
        for at in range(2):
            (folder / place / f"{at}.jpg").write_bytes(_photo(at, "JPEG"))
        prefix = "google/" if place == "google" else ""
        (folder / "info" / f"{listing}.txt").write_text(f"{prefix}0.jpg 0\n{prefix}1.jpg 49\n")
    synsets = "".join(f"n{c:08} bird {c}, avis\n" for c in range(60))
    (folder / "info" / "synsets.txt").write_text(synsets)
    return folder / spoilt


def _make_bones(folder: Path) -> Path:
    from rayfl.federation.datasets.mura import BODY_PARTS

    for number, part in enumerate(("train", "valid")):
        for at, name in enumerate(BODY_PARTS):
            patient = f"patient{number}{at:04}"
            study = folder / part / f"XR_{name.upper()}" / patient / "study1_positive"
            study.mkdir(parents=True)
            (study / "image1.png").write_bytes(_photo(at))
    return folder / "train" / "XR_HAND" / "patient00003" / "study1_positive" / "image1.png"


# -- archives --------------------------------------------------------------------------------------


def _make_tar(mode: str, folder: Path) -> Path:
    end = mode.replace("w:", ".").removesuffix(".")
    archive = folder / f"a.tar{end}"
    with tarfile.open(archive, mode) as tar:  # type: ignore[call-overload]
        for name in ("x/y.idx", "x/" + "long" * 40, "z"):
            member = tarfile.TarInfo(name)
            content = _idx(LABELS)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return archive


def _make_zip(method: int, folder: Path) -> Path:
    archive = folder / "a.zip"
    with zipfile.ZipFile(archive, "w", method) as packed:
        for name in ("x/y.idx", "z"):
            packed.writestr(name, _idx(LABELS))
    return archive


def _read_archive(name: str, folder: Path) -> None:
    target = folder / "unpacked"
    shutil.rmtree(target, ignore_errors=True)
    unpack_archive(folder / name, target)


# -- numbers ---------------------------------------------------------------------------------------


def _make_table(end: str, folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = folder / f"table{end}"
    client = np.arange(200) % 10
    if end == ".parquet":
        pq.write_table(pa.table({"client": client, "index": np.arange(200)}), file)
    elif end == ".npy":
        np.save(file, client)
    elif end == ".json":
        file.write_text(json.dumps({"client": client.tolist(), "index": list(range(200))}))
    else:
        rows = "".join(f"{value},{at}\n" for at, value in enumerate(client))
        file.write_text(f"client,index\n{rows}")
    return file


def _make_matrix(end: str, folder: Path) -> Path:
    file = folder / f"matrix{end}"
    matrix = np.full((4, 4), 0.1) + 0.6 * np.eye(4)
    if end == ".npy":
        np.save(file, matrix)
    else:
        np.savetxt(file, matrix, delimiter=",")
    return file


def _read_matrix(name: str, folder: Path) -> object:
    truth = server(5, classes=4)
    return Transition(matrix=folder / name).corrupt(truth, np.random.default_rng(0))


def _make_human(end: str, folder: Path) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq
    import torch

    columns = {name: LABELS.astype(np.int64) for name in ("clean_label", "worse_label")}
    file = folder / f"human{end}"
    if end == ".pt":
        torch.save(columns, file)
    else:
        pq.write_table(pa.table(columns), file)
    return file


def _make_weights(form: str, folder: Path) -> Path:
    import torch
    from safetensors.torch import save_file

    weights = {"a": torch.ones(30), "b": torch.ones(3, 4)}
    if form == "safetensors":
        save_file(weights, folder / "w.safetensors")
        return folder / "w.safetensors"
    torch.save(weights, folder / "w.pt", _use_new_zipfile_serialization=form == "zip")
    return folder / "w.pt"


def _make_scenario(spoilt: str, folder: Path) -> Path:
    save_toy(folder / "s", clients=5, noise={"name": "symmetric", "rate": 0.4})
    return folder / "s" / spoilt


def _read_dataset(kind: Callable[..., Any], folder: Path) -> object:
    return kind(path=folder).load(folder)


def _name_specimens() -> dict[str, Specimen]:
    """All of them; the file that is damaged is what differs."""
    dataset = partial
    found = {
        "idx images": Specimen(partial(_make_idx, "images-idx3", False), _of(_Digits)),
        "idx labels": Specimen(partial(_make_idx, "labels-idx1", False), _of(_Digits)),
        "idx images, gzip": Specimen(partial(_make_idx, "images-idx3", True), _of(_Digits)),
        "cifar pickle 2": Specimen(partial(_make_pickles, 2), _of(_Things)),
        "cifar pickle 4": Specimen(partial(_make_pickles, 4), _of(_Things)),
        "cifar binary": Specimen(_make_records, _of(_Things)),
        "cifar strips": Specimen(partial(_make_strips, "data_batch_1.png"), _of(_Things)),
        "cifar labels": Specimen(partial(_make_strips, "train_lables.json"), _of(_Things)),
        "npz": Specimen(partial(_make_npz, np.savez), _read_npz),
        "npz, compressed": Specimen(partial(_make_npz, np.savez_compressed), _read_npz),
        "mat": Specimen(partial(_make_mat, False), _of(_Numbers)),
        "mat, compressed": Specimen(partial(_make_mat, True), _of(_Numbers)),
        "mura picture": Specimen(_make_bones, dataset(_read_dataset, partial(_Bones, side=8))),
        "human labels pt": Specimen(partial(_make_human, ".pt"), _human(".pt")),
        "human labels parquet": Specimen(partial(_make_human, ".parquet"), _human(".parquet")),
    }
    for form in ("PNG", "JPEG", "GIF", "TIFF", "BMP", "WEBP", "PPM"):
        read = partial(_read_dataset, partial(Folder, side=16))
        found[f"picture {form}"] = Specimen(partial(_make_folder, form), read)
    for packing in ("snappy", "zstd", "none"):
        found[f"parquet {packing}"] = Specimen(partial(_make_parquet, packing), _of(Parquet))
    for listing in ("val/val_annotations.txt", "wnids.txt", "words.txt"):
        found[f"tiny {listing}"] = Specimen(partial(_make_tiny, listing), _of(_Tiny))
    for listing in ("train_filelist_google.txt", "synsets.txt"):
        found[f"web {listing}"] = Specimen(partial(_make_web, f"info/{listing}"), _of(_Web))
    for mode in ("w:", "w:gz", "w:bz2", "w:xz"):
        name = f"a.tar{mode.replace('w:', '.').removesuffix('.')}"
        found[name] = Specimen(partial(_make_tar, mode), partial(_read_archive, name))
    for method, name in ((0, "stored"), (8, "deflated"), (12, "bzip2"), (14, "lzma")):
        found[f"zip {name}"] = Specimen(partial(_make_zip, method), partial(_read_archive, "a.zip"))
    for end in (".csv", ".json", ".npy", ".parquet"):
        found[f"table {end}"] = Specimen(partial(_make_table, end), _table(end))
    for end in (".csv", ".npy"):
        read = partial(_read_matrix, f"matrix{end}")
        found[f"matrix {end}"] = Specimen(partial(_make_matrix, end), read)
    for form, end in (("zip", "pt"), ("old", "pt"), ("safetensors", "safetensors")):
        found[f"weights {form}"] = Specimen(partial(_make_weights, form), _weights(f"w.{end}"))
    for name in ("scenario.json", "samples.parquet", "clients.parquet"):
        found[f"scenario {name}"] = Specimen(partial(_make_scenario, name), _load_scenario)
    return found


def _of(kind: Callable[..., Any]) -> Load:
    return partial(_read_dataset, kind)


def _human(end: str) -> Load:
    return lambda folder: read_human_labels(folder / f"human{end}", "worse")


def _table(end: str) -> Load:
    return lambda folder: read_columns(folder / f"table{end}", "client")


def _weights(name: str) -> Load:
    return lambda folder: read_weights(folder / name)


def _load_scenario(folder: Path) -> object:
    return Scenario.load(folder / "s")


SPECIMENS = _name_specimens()
