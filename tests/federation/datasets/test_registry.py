"""Names of datasets: each imports, builds and describes itself; a user's own comes by import
path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rayfl.component import component
from rayfl.errors import ConfigError
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets import DATASETS, find_data_root
from rayfl.federation.datasets.on_disk import OnDisk


@component
class OwnLoader:
    """What a user would write."""

    images: int = 2

    def load(self, root: Path) -> Dataset:
        part = Images(np.zeros((self.images, 2, 2, 1), np.uint8), np.zeros(self.images, np.int64))
        return Dataset("own", part, part, ("only",))


@pytest.mark.parametrize("name", DATASETS.names())
def test_every_name_builds_and_describes_itself(name: str) -> None:
    spec = {"name": name, **({"dataset": "octmnist"} if name == "medmnist" else {})}
    part = DATASETS.build(spec)
    assert DATASETS.describe(part)["name"] == name
    assert DATASETS.build(DATASETS.describe(part)) == part


@pytest.mark.parametrize(
    "name", [name for name in DATASETS.names() if issubclass(DATASETS.find(name), OnDisk)]
)
def test_every_dataset_on_disk_says_what_it_needs(name: str) -> None:
    found = DATASETS.find(name)
    assert issubclass(found, OnDisk)
    assert found.folder
    assert found.form


def test_a_users_loader_comes_by_import_path() -> None:
    part = DATASETS.build({"name": f"{__name__}:OwnLoader", "images": 3})
    assert len(part.load(Path()).train) == 3


def test_an_unknown_name_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"unknown dataset 'cifar11'\. Did you mean 'cifar10'"):
        DATASETS.build("cifar11")


def test_the_root_is_the_environments_or_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYFL_DATA", "~/my-data")
    assert find_data_root() == Path.home() / "my-data"
    monkeypatch.delenv("RAYFL_DATA")
    assert find_data_root() == Path.home() / ".cache" / "rayfl" / "data"
