"""The twelve two-dimensional sets of MedMNIST (Yang et al. 2023) at 28, 64, 128 and 224 pixels, in
their .npz files."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.files import Ints, OnDisk, Pixels, damaged, find, verified

Which = Literal[
    "pathmnist",
    "chestmnist",
    "dermamnist",
    "octmnist",
    "pneumoniamnist",
    "retinamnist",
    "breastmnist",
    "bloodmnist",
    "tissuemnist",
    "organamnist",
    "organcmnist",
    "organsmnist",
]


class Facts(NamedTuple):
    """(train, test) sizes of each release, and the class names parted by `|`."""

    sizes: tuple[tuple[int, int], ...]
    names: str


_ORGANS = "bladder|femur, left|femur, right|heart|kidney, left|kidney, right|liver|lung, left|lung, right|pancreas|spleen"
FACTS: dict[str, Facts] = {
    "pathmnist": Facts(
        ((89996, 7180),),
        "adipose|background|debris|lymphocytes|mucus|smooth muscle|normal colon mucosa|cancer-associated stroma"
        "|colorectal adenocarcinoma epithelium",
    ),
    "chestmnist": Facts(((78468, 22433),), "no finding|some finding"),
    "dermamnist": Facts(
        ((7007, 2005),),
        "actinic keratosis|basal cell carcinoma|benign keratosis|dermatofibroma|melanoma|melanocytic nevus"
        "|vascular lesion",
    ),
    "octmnist": Facts(
        ((97477, 1000),), "choroidal neovascularization|diabetic macular edema|drusen|normal"
    ),
    "pneumoniamnist": Facts(((4708, 624),), "normal|pneumonia"),
    "retinamnist": Facts(((1080, 400),), "grade 0|grade 1|grade 2|grade 3|grade 4"),
    "breastmnist": Facts(((546, 156),), "malignant|normal or benign"),
    "bloodmnist": Facts(
        ((11959, 3421),),
        "basophil|eosinophil|erythroblast|immature granulocyte|lymphocyte|monocyte|neutrophil|platelet",
    ),
    "tissuemnist": Facts(
        ((165466, 47280),),
        "collecting duct, connecting tubule|distal convoluted tubule|glomerular endothelium|interstitial endothelium"
        "|leukocyte|podocyte|proximal tubule|thick ascending limb",
    ),
    # The third release of the organs dropped a few duplicates.
    "organamnist": Facts(((34561, 17778), (34581, 17778)), _ORGANS),
    "organcmnist": Facts(((12975, 8216), (13000, 8268)), _ORGANS),
    "organsmnist": Facts(((13932, 8827), (13940, 8829)), _ORGANS),
}


@component
class MedMnist(OnDisk):
    """One of the sets, at one size. The validation images stay unused."""

    dataset: Which
    size: Literal[28, 64, 128, 224] = 28

    folder: ClassVar[str] = "medmnist"
    form: ClassVar[str] = "the .npz file of its publisher"

    @property
    def file(self) -> str:
        return f"{self.dataset}.npz" if self.size == 28 else f"{self.dataset}_{self.size}.npz"

    @property
    def remedy(self) -> str:
        return f"Run `rayfl data get {self.dataset} size={self.size}`, or say where the file is with `path`"

    def load(self, root: Path) -> Dataset:
        place = self.where(root)
        file = place if place.is_file() else find(place, self.file)
        if file is None:
            raise DataError(
                broken(
                    f"{self.dataset} needs the file {place / self.file}",
                    "no such file",
                    self.remedy,
                )
            )
        train, test = read_npz(file, self.size)
        facts = FACTS[self.dataset]
        # If no release fits, the newest one is what the error names.
        sizes = next(
            (pair for pair in facts.sizes if pair == (len(train), len(test))), facts.sizes[0]
        )
        dataset = verified(self, file, train, test, tuple(facts.names.split("|")), sizes)
        return Dataset(self.dataset, dataset.train, dataset.test, dataset.classes)


def read_npz(file: Path, side: int) -> tuple[Images, Images]:
    """Both parts of a file, whose arrays are plain: nothing in it is unpickled."""
    try:
        # Opened here, because numpy leaves a damaged file open.
        with file.open("rb") as stream, np.load(stream, allow_pickle=False) as arrays:
            return part(arrays, "train", side), part(arrays, "test", side)
    except (
        zipfile.BadZipFile,
        zlib.error,
        EOFError,
        KeyError,
        ValueError,
        TypeError,
        OSError,
    ) as error:
        raise damaged(file, "a whole .npz of MedMNIST", error) from error


def part(arrays: np.lib.npyio.NpzFile, name: str, side: int) -> Images:
    pixels: Pixels = arrays[f"{name}_images"]
    if pixels.shape[1:3] != (side, side):
        raise ValueError(f"images of {pixels.shape[1:]} where {side}x{side} were asked for")
    return Images(
        pixels if pixels.ndim == 4 else pixels[..., None], one_label(arrays[f"{name}_labels"])
    )


def one_label(labels: NDArray[np.integer[Any]]) -> Ints:
    """(n, 1) columns as they are; of several findings an image (ChestMNIST), whether there is
    any."""
    found: Ints = (
        labels[:, 0].astype(np.int64)
        if labels.shape[1] == 1
        else np.any(labels, axis=1).astype(np.int64)
    )
    return found


@component
class PathMnist(MedMnist):
    dataset: Which = "pathmnist"


@component
class ChestMnist(MedMnist):
    dataset: Which = "chestmnist"


@component
class DermaMnist(MedMnist):
    dataset: Which = "dermamnist"


@component
class OctMnist(MedMnist):
    dataset: Which = "octmnist"


@component
class PneumoniaMnist(MedMnist):
    dataset: Which = "pneumoniamnist"


@component
class RetinaMnist(MedMnist):
    dataset: Which = "retinamnist"


@component
class BreastMnist(MedMnist):
    dataset: Which = "breastmnist"


@component
class BloodMnist(MedMnist):
    dataset: Which = "bloodmnist"


@component
class TissueMnist(MedMnist):
    dataset: Which = "tissuemnist"


@component
class OrganAMnist(MedMnist):
    dataset: Which = "organamnist"


@component
class OrganCMnist(MedMnist):
    dataset: Which = "organcmnist"


@component
class OrganSMnist(MedMnist):
    dataset: Which = "organsmnist"
