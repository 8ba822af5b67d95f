"""MURA (Rajpurkar et al. 2017): radiographs. The class is one of seven body parts, the group a
patient."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from rayfl.component import Count, component
from rayfl.errors import DataError, broken
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.files import Expected, OnDisk, damaged_file, verify_dataset
from rayfl.federation.datasets.images import decode_images, is_image

BODY_PARTS = ("elbow", "finger", "forearm", "hand", "humerus", "shoulder", "wrist")
_PATIENT = re.compile(r"patient(\d+)")


@component
class Mura(OnDisk):
    """36,808 training and 3,197 validation images (the test set here), scaled and cut to squares.

    At 224 pixels in colour they fill 6 GB; `channels: 1` keeps the grey that they are, in a third
    of it."""

    side: Count = 224
    channels: Literal[1, 3] = 3

    folder: ClassVar[str] = "mura"
    form: ClassVar[str] = "the folder MURA-v1.1 with train and valid"
    sourced: ClassVar[bool] = False
    expected: ClassVar[tuple[Expected, Expected]] = (
        (4931, 5106, 1825, 5543, 1272, 8379, 9752),
        3197,
    )

    def load(self, root: Path) -> Dataset:
        base = self.base(self.where(root))
        listed = {name: _list_radiographs(base / name) for name in ("train", "valid")}
        # Images of one patient look alike: shared patients would make the test set easy.
        shared = {_parse_patient(file) for file, _ in listed["train"]} & {
            _parse_patient(file) for file, _ in listed["valid"]
        }
        if shared:
            raise DataError(
                broken(
                    f"{base}: no patient is in train and in valid",
                    f"patient {min(shared)}",
                    self.remedy,
                )
            )
        train, test = (self.read(found) for found in listed.values())
        return verify_dataset(self, base, train, test, BODY_PARTS, self.expected)

    def base(self, folder: Path) -> Path:
        """The folder that holds train and valid."""
        for place in (folder, folder / "MURA-v1.1"):
            if (place / "train").is_dir() and (place / "valid").is_dir():
                return place
        raise DataError(
            broken(f"{folder} must hold train and valid", "no such folders", self.remedy)
        )

    def read(self, listed: list[tuple[Path, int]]) -> Images:
        pixels = decode_images([file for file, _ in listed], self.channels, self.side)
        labels = np.array([label for _, label in listed], dtype=np.int64)
        return Images(
            pixels, labels, np.array([_parse_patient(file) for file, _ in listed], dtype=np.int64)
        )


def _list_radiographs(folder: Path) -> list[tuple[Path, int]]:
    """(file, body part) of `XR_PART/patientN/studyM_sign/image.png`, in order of the path."""
    return [
        (file, label)
        for label, name in enumerate(BODY_PARTS)
        for file in sorted((folder / f"XR_{name.upper()}").rglob("*"))
        if is_image(file)
    ]


def _parse_patient(file: Path) -> int:
    # A study may be positive or negative; that is another task, and its name is left alone.
    found = _PATIENT.search(file.parent.parent.name)
    if found is None:
        raise damaged_file(file, "in a folder patientN/studyM", file.parent, "mura")
    return int(found.group(1))
