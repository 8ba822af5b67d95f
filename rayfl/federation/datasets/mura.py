"""MURA (Rajpurkar et al. 2017): radiographs. The class is one of seven body parts, the group a
patient."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import numpy as np

from rayfl.component import Count, component
from rayfl.errors import DataError, broken
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.image_files import decode_images, is_image
from rayfl.federation.datasets.on_disk import (
    Expected,
    OnDisk,
    damaged_file,
    verify_dataset,
)

BODY_PARTS = ("elbow", "finger", "forearm", "hand", "humerus", "shoulder", "wrist")
_PATIENT = re.compile(r"patient(\d{1,18})(?!\d)")


class _Radiographs(NamedTuple):
    """What the paths say, before any image is decoded."""

    files: list[Path]
    labels: list[int]
    patients: list[int]


@component
class Mura(OnDisk):
    """36,808 training and 3,197 validation images (the test set here), scaled and cut to squares.

    At 224 pixels in colour they fill 6 GB; `channels: 1` keeps the grey that they are, in a third
    of it."""

    side: Count = 224
    channels: Literal[1, 3] = 3

    folder: ClassVar[str] = "mura"
    holds: ClassVar[int] = 3_400_000_000
    form: ClassVar[str] = "the folder MURA-v1.1 with train and valid"
    sourced: ClassVar[bool] = False
    expected: ClassVar[tuple[Expected, Expected]] = (
        (4931, 5106, 1825, 5543, 1272, 8379, 9752),
        3197,
    )

    def load(self, root: Path) -> Dataset:
        base = self._find_base(self.where(root))
        train = _list_radiographs(base / "train")
        test = _list_radiographs(base / "valid")
        # Images of one patient look alike: shared patients would make the test set easy.
        shared = set(train.patients) & set(test.patients)
        if shared:
            rule = f"{base}: no patient is in train and in valid"
            raise DataError(broken(rule, f"patient {min(shared)}", self.remedy))
        images = self._read(train), self._read(test)
        return verify_dataset(self, base, *images, BODY_PARTS, self.expected)

    def _find_base(self, folder: Path) -> Path:
        """The folder that holds train and valid."""
        for place in (folder, folder / "MURA-v1.1"):
            if (place / "train").is_dir() and (place / "valid").is_dir():
                return place
        rule = f"{folder} must hold train and valid"
        raise DataError(broken(rule, "no such folders", self.remedy))

    def _read(self, listed: _Radiographs) -> Images:
        return Images(
            x=decode_images(listed.files, self.channels, self.side),
            y=np.array(listed.labels, dtype=np.int64),
            groups=np.array(listed.patients, dtype=np.int64),
        )


def _list_radiographs(folder: Path) -> _Radiographs:
    """The images `XR_PART/patientN/studyM_sign/image.png`, in order of the path."""
    files: list[Path] = []
    labels: list[int] = []
    for c, name in enumerate(BODY_PARTS):
        part = folder / f"XR_{name.upper()}"
        found = sorted(filter(is_image, part.rglob("*")))
        files += found
        labels += [c] * len(found)
    patients = [_parse_patient(file) for file in files]
    return _Radiographs(files, labels, patients)


def _parse_patient(file: Path) -> int:
    # A study may be positive or negative; that is another task, and its name is left alone.
    found = _PATIENT.search(file.parent.parent.name)
    if found is None:
        raise damaged_file(file, "in a folder patientN/studyM", file.parent, "mura")
    return int(found.group(1))
