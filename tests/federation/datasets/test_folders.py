"""Datasets of image files: class folders, MURA, Tiny ImageNet and mini-WebVision in tiny copies of
their layouts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rayfl.errors import DataError
from rayfl.federation.datasets import DATASETS
from rayfl.federation.datasets.folder import Folder
from rayfl.federation.datasets.image_files import decode_image, decode_images
from rayfl.federation.datasets.mura import BODY_PARTS, Mura
from rayfl.federation.datasets.tiny_imagenet import TinyImageNet
from rayfl.federation.datasets.webvision import WebVision

Picture = Callable[[Path, Any], Path]


def grey(value: int, side: int = 6) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.full((side, side), value, dtype=np.uint8)


def colour(value: int, side: int = 6) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.full((side, side, 3), value, dtype=np.uint8)


# --- one image ---


@pytest.mark.parametrize(
    ("pixels", "channels", "shape"),
    [
        (grey(7), None, 1),
        (grey(7), 3, 3),
        (colour(7), None, 3),
        (colour(7), 1, 1),
        (np.full((6, 6, 4), 7, np.uint8), None, 3),
    ],
)
def test_channels(
    tmp_path: Path, picture: Picture, pixels: Any, channels: int | None, shape: int
) -> None:
    found = decode_image(picture(tmp_path / "a.png", pixels), channels)
    assert found.shape == (6, 6, shape)
    assert (found == 7).all()


def test_side_scales_the_shorter_edge_and_cuts_the_middle(tmp_path: Path, picture: Picture) -> None:
    wide = np.zeros((10, 30), dtype=np.uint8)
    wide[:, 10:20] = 200
    assert (decode_image(picture(tmp_path / "a.png", wide), side=5)[:, 1:-1] == 200).all()


def test_a_margin_scales_first_and_cuts_the_middle_then(
    tmp_path: Path, picture: Picture, rng: np.random.Generator
) -> None:
    """The release's Resize(33) and CenterCrop(32), for a photo of 40 x 66."""
    file = picture(tmp_path / "a.png", rng.integers(0, 256, (40, 66, 3), dtype=np.uint8))
    whole = decode_image(file)
    scaled = Image.fromarray(whole).resize((54, 33), Image.Resampling.BILINEAR)
    # round(.5) is 0 in Python, as in torchvision.
    assert np.array_equal(decode_image(file, side=32, margin=1), np.asarray(scaled)[0:32, 11:43])
    assert not np.array_equal(decode_image(file, side=32, margin=1), decode_image(file, side=32))


def test_images_of_two_sizes_need_a_side(tmp_path: Path, picture: Picture) -> None:
    files = [picture(tmp_path / "a.png", grey(1)), picture(tmp_path / "b.png", grey(2, 7))]
    with pytest.raises(
        DataError, match=r"one size, here \(6, 6\); got \(7, 7\) in .*b\.png\. Set `side`"
    ):
        decode_images(files, None, None)
    assert decode_images(files, None, 4)[:, 0, 0, 0].tolist() == [1, 2]


def test_many_images_keep_their_order(tmp_path: Path, picture: Picture) -> None:
    file = [picture(tmp_path / f"{value}.png", grey(value, 2)) for value in range(256)]
    assert decode_images(file * 3, None, None)[:, 0, 0, 0].tolist() == list(range(256)) * 3


# --- class folders ---


def test_train_and_test_folders(tmp_path: Path, picture: Picture) -> None:
    for part, value in (("train", 10), ("test", 20)):
        for c, name in enumerate(("dog", "cat")):
            for i in range(2):
                picture(tmp_path / "pets" / part / name / "deep" / f"{i}.png", colour(value + c))
    dataset = Folder(path=Path("pets")).load(tmp_path)
    assert (dataset.name, dataset.classes) == ("pets", ("cat", "dog"))
    assert dataset.train.y.tolist() == [0, 0, 1, 1]
    assert dataset.train.x[:, 0, 0, 0].tolist() == [11, 11, 10, 10]
    assert dataset.test.x[:, 0, 0, 0].tolist() == [21, 21, 20, 20]


def test_class_folders_alone_are_split_by_class(tmp_path: Path, picture: Picture) -> None:
    for name in "abc":
        for i in range(10):
            picture(tmp_path / "folder" / name / f"{i}.png", grey(i))
    (tmp_path / "folder" / "notes").mkdir()
    dataset = DATASETS.build({"name": "folder", "test_fraction": 0.3}).load(tmp_path)
    assert dataset.classes == ("a", "b", "c")
    assert np.bincount(dataset.train.y).tolist() == [7, 7, 7]
    assert np.bincount(dataset.test.y).tolist() == [3, 3, 3]


def test_a_test_class_that_training_lacks_is_refused(tmp_path: Path, picture: Picture) -> None:
    picture(tmp_path / "train" / "cat" / "a.png", grey(1))
    picture(tmp_path / "val" / "cow" / "a.png", grey(1))
    with pytest.raises(DataError, match=r"the classes of .*val are those of train; got cow"):
        Folder(path=tmp_path).load(tmp_path)


def test_a_lonely_train_folder_is_refused(tmp_path: Path, picture: Picture) -> None:
    picture(tmp_path / "train" / "cat" / "a.png", grey(1))
    with pytest.raises(
        DataError, match=r"one of test, val, valid, validation; got none\. Name .*train as `path`"
    ):
        Folder(path=tmp_path).load(tmp_path)


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_without_classes_is_refused(tmp_path: Path, exists: bool) -> None:
    if exists:
        (tmp_path / "folder").mkdir()
    with pytest.raises(
        DataError, match=r"must hold folders of images, one a class; got none.*--from ARCHIVE"
    ):
        Folder().load(tmp_path)


def test_a_truncated_image_is_refused_by_name(
    tmp_path: Path, picture: Picture, rng: np.random.Generator
) -> None:
    file = picture(
        tmp_path / "folder" / "cat" / "bad.png", rng.integers(0, 256, (30, 30, 3), dtype=np.uint8)
    )
    file.write_bytes(file.read_bytes()[:500])
    with pytest.raises(
        DataError, match=r"cat/bad\.png must be a whole image file; got .*truncated"
    ):
        Folder().load(tmp_path)


# --- MURA ---


@pytest.fixture
def mura(tmp_path: Path, picture: Picture, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One patient with two images for every body part in train, and a single other patient in
    valid."""
    monkeypatch.setattr(Mura, "expected", ((2,) * 7, 1))
    base = tmp_path / "mura" / "MURA-v1.1"
    for c, part in enumerate(BODY_PARTS):
        study = base / "train" / f"XR_{part.upper()}" / f"patient{c + 40:05}" / "study1_positive"
        picture(study / "image1.png", grey(c, 20))
        picture(study / "image2.png", grey(c, 30))
        # What archives made on a Mac leave beside every file.
        (study / "._image1.png").write_bytes(b"not an image")
    picture(
        base / "valid" / "XR_WRIST" / "patient11185" / "study1_negative" / "image1.png", grey(9)
    )
    return base


@pytest.mark.parametrize(
    ("settings", "shape"), [({"side": 8}, (8, 8, 3)), ({"side": 5, "channels": 1}, (5, 5, 1))]
)
@pytest.mark.usefixtures("mura")
def test_mura_classes_are_body_parts_and_groups_patients(
    tmp_path: Path, settings: dict[str, int], shape: tuple[int, int, int]
) -> None:
    dataset = DATASETS.build({"name": "mura", **settings}).load(tmp_path)
    assert dataset.classes == ("elbow", "finger", "forearm", "hand", "humerus", "shoulder", "wrist")
    assert dataset.shape == shape
    assert dataset.train.y.tolist() == [c for c in range(7) for _ in range(2)]
    assert dataset.train.groups is not None
    assert dataset.test.groups is not None
    assert dataset.train.groups.tolist() == [c + 40 for c in range(7) for _ in range(2)]
    assert (dataset.test.y.tolist(), dataset.test.groups.tolist()) == ([6], [11185])


def test_mura_counts_are_the_published_ones() -> None:
    train, valid = Mura.expected
    assert train == (4931, 5106, 1825, 5543, 1272, 8379, 9752)
    assert (sum(train), valid) == (36_808, 3_197)


def test_mura_shares_no_patient_between_train_and_valid(
    tmp_path: Path, mura: Path, picture: Picture
) -> None:
    picture(mura / "valid" / "XR_HAND" / "patient00042" / "study1_negative" / "image1.png", grey(1))
    with pytest.raises(DataError, match="no patient is in train and in valid; got patient 42"):
        Mura(side=4).load(tmp_path)


def test_mura_refuses_a_missing_image(tmp_path: Path, mura: Path) -> None:
    next((mura / "train" / "XR_HAND").rglob("image2.png")).unlink()
    with pytest.raises(DataError, match="mura/train has 14 images; got 13"):
        Mura(side=4).load(tmp_path)


def test_mura_without_its_folders(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"must hold train and valid; .*rayfl data get mura --from ARCHIVE"
    ):
        Mura().load(tmp_path)


# --- Tiny ImageNet ---


@pytest.fixture
def tiny_imagenet(tmp_path: Path, picture: Picture, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(TinyImageNet, "expected", ((2, 2), 3))
    base = tmp_path / "tiny-imagenet" / "tiny-imagenet-200"
    for c, wnid in enumerate(("n02", "n01")):
        picture(base / "train" / wnid / "images" / f"{wnid}_0.JPEG", colour(100 * c, 64))
        picture(base / "train" / wnid / "images" / f"{wnid}_1.JPEG", grey(100 * c, 64))
        (base / "train" / wnid / f"{wnid}_boxes.txt").write_text("no image\n")
    (base / "wnids.txt").write_text("n02\nn01\n")
    (base / "words.txt").write_text("n01\tgoldfish, Carassius auratus\nn77\tdragon\n")
    for i in range(3):
        picture(base / "val" / "images" / f"val_{i}.JPEG", colour(i, 64))
    lines = [f"val_{i}.JPEG\t{wnid}\t0\t0\t9\t9" for i, wnid in enumerate(("n02", "n01", "n02"))]
    (base / "val" / "val_annotations.txt").write_text("\n".join(lines) + "\n")
    return base


@pytest.mark.usefixtures("tiny_imagenet")
def test_tiny_imagenet(tmp_path: Path) -> None:
    dataset = DATASETS.build("tiny-imagenet").load(tmp_path)
    assert dataset.shape == (64, 64, 3)
    assert dataset.classes == ("goldfish", "n02")
    assert dataset.train.y.tolist() == [0, 0, 1, 1]
    assert dataset.train.x[:, 0, 0, 0].tolist() == [100, 100, 0, 0]
    assert dataset.test.y.tolist() == [1, 0, 1]


@pytest.mark.parametrize("line", ["val_0.JPEG\tn09\t0", "val_0.JPEG n01", ""])
def test_tiny_imagenet_refuses_a_strange_annotation(
    tmp_path: Path, tiny_imagenet: Path, line: str
) -> None:
    (tiny_imagenet / "val" / "val_annotations.txt").write_text(f"{line}\n")
    with pytest.raises(
        DataError, match=r"val_annotations\.txt must be lines of file and known class.* got line 1"
    ):
        TinyImageNet().load(tmp_path)


def test_tiny_imagenet_needs_its_annotations(tmp_path: Path, tiny_imagenet: Path) -> None:
    (tiny_imagenet / "val" / "val_annotations.txt").unlink()
    with pytest.raises(
        DataError, match=r"val_annotations\.txt must say the validation images' classes"
    ):
        TinyImageNet().load(tmp_path)


# --- mini-WebVision ---


@pytest.fixture
def webvision(tmp_path: Path, picture: Picture, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three images in train and two in val, one of each beyond the first fifty classes."""
    monkeypatch.setattr(WebVision, "expected", (2, 1))
    base = tmp_path / "webvision"
    (base / "info").mkdir(parents=True)
    (base / "info" / "train_filelist_google.txt").write_text(
        "google/q0001/a.jpg 0\ngoogle/q0002/b.jpg 49\ngoogle/q0003/c.jpg 50\n"
    )
    (base / "info" / "val_filelist.txt").write_text("val1.jpg 49\nval2.jpg 999\n")
    picture(base / "google" / "q0001" / "a.jpg", colour(40, 70))
    picture(base / "google" / "q0002" / "b.jpg", grey(80, 50))
    picture(base / "val_images_256" / "val1.jpg", colour(120, 33))
    return base


@pytest.mark.parametrize("side", [16, 32])
@pytest.mark.usefixtures("webvision")
def test_webvision_keeps_the_first_fifty_classes(tmp_path: Path, side: int) -> None:
    dataset = DATASETS.build({"name": "webvision", "side": side}).load(tmp_path)
    assert dataset.shape == (side, side, 3)
    assert len(dataset.classes) == 50
    assert (dataset.train.y.tolist(), dataset.test.y.tolist()) == ([0, 49], [49])
    assert dataset.train.x[:, 0, 0, 0].tolist() == [40, 80]


def test_webvision_takes_names_from_its_synsets(tmp_path: Path, webvision: Path) -> None:
    (webvision / "info" / "synsets.txt").write_text(
        "".join(f"n{c:08} bird {c}, avis\n" for c in range(1000))
    )
    assert WebVision().load(tmp_path).classes[:2] == ("bird 0", "bird 1")


def test_webvision_counts_are_the_published_ones() -> None:
    assert WebVision.expected == (65_944, (50,) * 50)


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("val2.jpg", "lines of file and label"),
        ("val2.jpg 1000", r"lines whose label lies in \[0, 1000\)"),
    ],
)
def test_webvision_refuses_a_strange_line(
    tmp_path: Path, webvision: Path, line: str, rule: str
) -> None:
    (webvision / "info" / "val_filelist.txt").write_text(f"val1.jpg 49\n{line}\n")
    with pytest.raises(DataError, match=rf"val_filelist\.txt must be {rule}; got line 2: '{line}'"):
        WebVision().load(tmp_path)


def test_webvision_names_a_missing_image(tmp_path: Path, webvision: Path) -> None:
    (webvision / "google" / "q0002" / "b.jpg").unlink()
    with pytest.raises(
        DataError, match=r"q0002/b\.jpg must be a whole image file; got .*No such file"
    ):
        WebVision().load(tmp_path)
