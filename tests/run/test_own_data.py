"""Runs on a folder of images with sites, and on labels of a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import rayfl
from rayfl.config.schema import validate_config
from rayfl.federation.datasets.synthetic import Digits
from rayfl.federation.scenario import open_federation
from rayfl.federation.split import Role
from tests.federation.own_images import write_table

SITES = ("bern", "oslo", "rome", "wien")
PIXELS = {"clustering_encoder": "pixels", "correction_encoder": "pixels"}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hundred digits at CLASS/SITE/number.png; half of those from Rome in the next class."""
    folder = tmp_path_factory.mktemp("own")
    digits = Digits().load(Path()).train
    for i in range(300):
        site = SITES[i % 4]
        label = (digits.y[i] + (site == "rome" and i % 8 == 2)) % 10
        file = folder / str(label) / site / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(digits.x[i, :, :, 0]).save(file)
    return folder


def config_of(images: Path, output: Path, **more: Any) -> dict[str, Any]:
    return {
        "data": {"name": "folder", "path": str(images), "sites": "parent"},
        "clients": 4,
        "partition": "sites",
        "model": {"name": "mlp", "hidden": [16]},
        "training": {"rounds": 2, "epochs": 1, "batch_size": 16, "lr": 0.1},
        "tracking": {"enabled": False},
        "fleet": "inline",
        "output": output,
        **more,
    }


@pytest.mark.parametrize(
    ("method", "split"),
    [
        ("fedds", {"public": 0.1}),
        ({"name": "fb_nll", **PIXELS}, {"validation": 0.2}),
        ("fedrn", {}),
    ],
    ids=["fedds", "fb_nll", "fedrn"],
)
def test_methods_run_on_sites_whatever_the_server_holds(
    images: Path, tmp_path: Path, method: Any, split: dict[str, float]
) -> None:
    config = config_of(images, tmp_path, method=method, split=split)
    result = rayfl.run(config)
    assert "test/accuracy" in result.metrics
    assert result.noise_rate is None
    assert not [name for name in result.metrics if name.startswith("labels/precision")]
    facts = json.loads((result.directory / "result.json").read_text())["facts"]
    assert facts["client_names"] == list(SITES)


def test_labels_of_a_table_train_another_model_and_touch_no_file(
    images: Path, tmp_path: Path
) -> None:
    config = config_of(images, tmp_path / "out", training={"rounds": 1})
    before = sorted(images.rglob("*"))
    plain = rayfl.run(config)
    _, scenario = open_federation(validate_config(config), 0)
    held = np.flatnonzero(scenario.owner >= 0)
    names = scenario.name_samples(held)
    digits = Digits().load(Path()).train.y
    rows = [
        {"file": name, "label": str(digits[int(Path(name).stem)]), "score": 0.5} for name in names
    ]
    (tmp_path / "audit").mkdir()
    write_table(tmp_path / "audit" / "labels.csv", rows)
    corrected = rayfl.run({**config, "labels": str(tmp_path / "audit")})
    assert corrected.scenario_sha256 != plain.scenario_sha256
    assert corrected.sha256 != plain.sha256
    _, mended = open_federation(corrected.config, 0)
    assert (mended.owner == scenario.owner).all()
    assert 30 <= (mended.given != scenario.given).sum() <= 38
    assert sorted(images.rglob("*")) == before


def test_a_list_of_all_images_survives_a_public_set(images: Path, tmp_path: Path) -> None:
    """The table of an owner has all images, also those that are tested on."""
    rows = [
        {"file": file.relative_to(images).as_posix(), "client": file.parent.name}
        for file in images.rglob("*.png")
    ]
    table = write_table(tmp_path / "owners.csv", rows)
    partition = {"name": "explicit", "file": str(table)}
    more = {"partition": partition, "split": {"public": 0.2}, "method": "fedds"}
    config = validate_config(config_of(images, tmp_path, **more))
    _, scenario = open_federation(config, 0)
    assert scenario.client_names == SITES
    for client, name in enumerate(SITES):
        assert set(scenario.name_sites(scenario.shard(client)) or ()) == {name}
    assert len(scenario.indices(Role.PUBLIC)) == 48
