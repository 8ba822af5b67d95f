"""Datasets by name: each a component whose `load(root)` answers the one in-memory form."""

from __future__ import annotations

import os
from pathlib import Path

from rayfl.component import Registry
from rayfl.federation.dataset import Loader

_HERE = "rayfl.federation.datasets"

DATASETS: Registry[Loader] = Registry(
    "dataset",
    {
        "digits": f"{_HERE}.synthetic:Digits",
        "blobs": f"{_HERE}.synthetic:Blobs",
        "mnist": f"{_HERE}.idx:Mnist",
        "fashion-mnist": f"{_HERE}.idx:FashionMnist",
        "cifar10": f"{_HERE}.cifar:Cifar10",
        "cifar100": f"{_HERE}.cifar:Cifar100",
        "svhn": f"{_HERE}.svhn:Svhn",
        "medmnist": f"{_HERE}.medmnist:MedMnist",
        "pathmnist": f"{_HERE}.medmnist:PathMnist",
        "chestmnist": f"{_HERE}.medmnist:ChestMnist",
        "dermamnist": f"{_HERE}.medmnist:DermaMnist",
        "octmnist": f"{_HERE}.medmnist:OctMnist",
        "pneumoniamnist": f"{_HERE}.medmnist:PneumoniaMnist",
        "retinamnist": f"{_HERE}.medmnist:RetinaMnist",
        "breastmnist": f"{_HERE}.medmnist:BreastMnist",
        "bloodmnist": f"{_HERE}.medmnist:BloodMnist",
        "tissuemnist": f"{_HERE}.medmnist:TissueMnist",
        "organamnist": f"{_HERE}.medmnist:OrganAMnist",
        "organcmnist": f"{_HERE}.medmnist:OrganCMnist",
        "organsmnist": f"{_HERE}.medmnist:OrganSMnist",
        "mura": f"{_HERE}.mura:Mura",
        "webvision": f"{_HERE}.webvision:WebVision",
        "tiny-imagenet": f"{_HERE}.tiny_imagenet:TinyImageNet",
        "folder": f"{_HERE}.folder:Folder",
        "parquet": f"{_HERE}.parquet:Parquet",
    },
    plugins="rayfl.datasets",
)


def find_data_root() -> Path:
    """Where datasets live: the environment variable RAYFL_DATA, or the user's cache."""
    chosen = os.environ.get("RAYFL_DATA")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "rayfl" / "data"
