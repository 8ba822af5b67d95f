"""The twelve two-dimensional sets of MedMNIST (Yang et al. 2023) at 28, 64, 128 and 224 pixels, in
their .npz files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints, Pixels
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.on_disk import OnDisk, find_file, refuse_damage, verify_dataset
from rayfl.regular_files import open_regular

SetName = Literal[
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


_LABEL_BYTES = 256
"""More than fourteen findings take, in any type; headers too."""


class ReleaseFacts(NamedTuple):
    """(train, test) sizes of each release, and the class names parted by `|`."""

    sizes: tuple[tuple[int, int], ...]
    names: str


_ORGANS = (
    "bladder|femur, left|femur, right|heart|kidney, left|kidney, right|liver|lung, left"
    "|lung, right|pancreas|spleen"
)
FACTS: dict[str, ReleaseFacts] = {
    "pathmnist": ReleaseFacts(
        ((89996, 7180),),
        "adipose|background|debris|lymphocytes|mucus|smooth muscle|normal colon mucosa"
        "|cancer-associated stroma|colorectal adenocarcinoma epithelium",
    ),
    "chestmnist": ReleaseFacts(((78468, 22433),), "no finding|some finding"),
    "dermamnist": ReleaseFacts(
        ((7007, 2005),),
        "actinic keratosis|basal cell carcinoma|benign keratosis|dermatofibroma|melanoma"
        "|melanocytic nevus|vascular lesion",
    ),
    "octmnist": ReleaseFacts(
        ((97477, 1000),), "choroidal neovascularization|diabetic macular edema|drusen|normal"
    ),
    "pneumoniamnist": ReleaseFacts(((4708, 624),), "normal|pneumonia"),
    "retinamnist": ReleaseFacts(((1080, 400),), "grade 0|grade 1|grade 2|grade 3|grade 4"),
    "breastmnist": ReleaseFacts(((546, 156),), "malignant|normal or benign"),
    "bloodmnist": ReleaseFacts(
        ((11959, 3421),),
        "basophil|eosinophil|erythroblast|immature granulocyte|lymphocyte|monocyte|neutrophil"
        "|platelet",
    ),
    "tissuemnist": ReleaseFacts(
        ((165466, 47280),),
        "collecting duct, connecting tubule|distal convoluted tubule|glomerular endothelium"
        "|interstitial endothelium|leukocyte|podocyte|proximal tubule|thick ascending limb",
    ),
    # The third release of the organs dropped a few duplicates.
    "organamnist": ReleaseFacts(((34561, 17778), (34581, 17778)), _ORGANS),
    "organcmnist": ReleaseFacts(((12975, 8216), (13000, 8268)), _ORGANS),
    "organsmnist": ReleaseFacts(((13932, 8827), (13940, 8829)), _ORGANS),
}


@component
class MedMnist(OnDisk):
    """Any of the twelve sets of MedMNIST, at one size; each has a name of its own, too.

    The validation images stay unused."""

    dataset: SetName
    size: Literal[28, 64, 128, 224] = 28

    folder: ClassVar[str] = "medmnist"
    form: ClassVar[str] = "the .npz file of its publisher"

    @property
    def file(self) -> str:
        """The publisher's name of the file."""
        size = "" if self.size == 28 else f"_{self.size}"
        return f"{self.dataset}{size}.npz"

    @property
    def most_bytes(self) -> int:
        # Twice the images of both parts: there is a third one, for validation, which is smaller.
        images = max(map(sum, FACTS[self.dataset].sizes))
        return 2 * images * (3 * self.size**2 + _LABEL_BYTES)

    @property
    def remedy(self) -> str:
        command = f"rayfl data get {self.dataset} size={self.size}"
        return f"Run `{command}`, or say where the file is with `path`"

    def load(self, root: Path) -> Dataset:
        place = self.where(root)
        file = place if place.is_file() else find_file(place, self.file)
        if file is None:
            rule = f"{self.dataset} needs the file {place / self.file}"
            raise DataError(broken(rule, "no such file", self.remedy))
        train, test = _read_npz(file, self.size, self.most_bytes)
        facts = FACTS[self.dataset]
        found = (len(train), len(test))
        # If no release fits, the newest one is what the error names.
        sizes = found if found in facts.sizes else facts.sizes[0]
        classes = tuple(facts.names.split("|"))
        dataset = verify_dataset(self, file, train, test, classes, sizes)
        return Dataset(self.dataset, dataset.train, dataset.test, dataset.classes)


def _read_npz(file: Path, side: int, most_bytes: int) -> tuple[Images, Images]:
    """Both parts of a file, whose arrays are plain: nothing in it is unpickled."""
    # Opened here, because numpy leaves a damaged file open.
    with (
        refuse_damage(file, "a whole .npz of MedMNIST"),
        open_regular(file) as stream,
        np.load(stream, allow_pickle=False) as arrays,
    ):
        _check_claims(arrays, most_bytes)
        train = _read_part(arrays, "train", side)
        test = _read_part(arrays, "test", side)
        return train, test


def _check_claims(arrays: np.lib.npyio.NpzFile, most_bytes: int) -> None:
    """Refuse arrays that unpack to more than the set can hold; no more than claimed is unpacked."""
    assert arrays.zip is not None, "they have just been opened"
    claimed = sum(member.file_size for member in arrays.zip.infolist())
    if claimed > most_bytes:
        raise ValueError(f"{claimed:,} bytes where {most_bytes:,} are the most")


def _read_part(
    arrays: np.lib.npyio.NpzFile,
    name: str,
    side: int,
) -> Images:
    pixels: Pixels = arrays[f"{name}_images"]
    if pixels.shape[1:3] != (side, side):
        raise ValueError(f"images of {pixels.shape[1:]} where {side}x{side} were asked for")
    if pixels.ndim == 3:
        pixels = pixels[..., None]
    return Images(pixels, _take_one_label(arrays[f"{name}_labels"]))


def _take_one_label(labels: NDArray[Any]) -> Ints:
    """(n, 1) columns as they are; of several findings an image (ChestMNIST), whether there is
    any."""
    if labels.ndim != 2 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels {labels.dtype} {labels.shape} where whole (n, findings) are due")
    whole: Ints = labels.astype(np.int64)
    if whole.shape[1] == 1:
        return whole[:, 0]
    outside = np.flatnonzero((whole != 0) & (whole != 1))
    if len(outside):
        # Any other number would count as a finding.
        found = whole.ravel()[outside[0]]
        row = int(outside[0]) // whole.shape[1]
        raise ValueError(f"findings lie in [0, 2); got {found} at row {row}")
    any_finding: Ints = whole.max(axis=1)
    return any_finding


@component
class PathMnist(MedMnist):
    """Colon tissue under the microscope, 9 kinds, in colour: 89,996 and 7,180."""

    dataset: SetName = "pathmnist"


@component
class ChestMnist(MedMnist):
    """Chest X-rays, some finding or none, grey: 78,468 and 22,433."""

    dataset: SetName = "chestmnist"


@component
class DermaMnist(MedMnist):
    """Pigmented skin, 7 conditions, in colour: 7,007 and 2,005."""

    dataset: SetName = "dermamnist"


@component
class OctMnist(MedMnist):
    """Retinas by optical coherence tomography, 4 diagnoses, grey: 97,477 and 1,000."""

    dataset: SetName = "octmnist"


@component
class PneumoniaMnist(MedMnist):
    """Children's chest X-rays, pneumonia or normal, grey: 4,708 and 624."""

    dataset: SetName = "pneumoniamnist"


@component
class RetinaMnist(MedMnist):
    """Eye fundus, 5 grades of diabetic retinopathy, in colour: 1,080 and 400."""

    dataset: SetName = "retinamnist"


@component
class BreastMnist(MedMnist):
    """Breast ultrasound, malignant or not, grey: 546 and 156."""

    dataset: SetName = "breastmnist"


@component
class BloodMnist(MedMnist):
    """Blood cells, 8 types, in colour: 11,959 and 3,421."""

    dataset: SetName = "bloodmnist"


@component
class TissueMnist(MedMnist):
    """Kidney cells, 8 types, grey: 165,466 and 47,280."""

    dataset: SetName = "tissuemnist"


@component
class OrganAMnist(MedMnist):
    """Abdominal CT, axial, 11 organs, grey: 34,561 and 17,778."""

    dataset: SetName = "organamnist"


@component
class OrganCMnist(MedMnist):
    """Abdominal CT, coronal, 11 organs, grey: 12,975 and 8,216."""

    dataset: SetName = "organcmnist"


@component
class OrganSMnist(MedMnist):
    """Abdominal CT, sagittal, 11 organs, grey: 13,932 and 8,827."""

    dataset: SetName = "organsmnist"
