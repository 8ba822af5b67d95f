"""A public set of another dataset than the clients': drawn, stored, and given to methods without
labels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError, DataError
from rayfl.federation.public_images import fit_images, take_public_images
from rayfl.federation.scenario import Scenario, open_federation
from rayfl.federation.scenario_display import list_scenario_facts
from rayfl.federation.split import Role
from rayfl.run.assembly import build_holdings
from tests.federation.toys import Toy, build_toy

FOREIGN: dict[str, Any] = {
    "public_data": Toy(samples=300, classes=30),
    "split": {"public": {"total": 60}},
}


def configured(**more: Any) -> Config:
    """Clients with colour images of 12 pixels; the server's are grey ones of 8."""
    settings = {
        "data": {"name": "blobs", "samples": 200, "test_samples": 20, "side": 12, "channels": 3},
        "public_data": {"name": "digits"},
        "split": {"public": {"total": 40}},
        "method": "fedds",
    }
    return validate_config({**settings, **more})


def test_the_clients_keep_all_of_their_own_dataset() -> None:
    scenario = build_toy(**FOREIGN)
    assert scenario.sizes().sum() == 1000
    assert not len(scenario.indices(Role.PUBLIC))
    assert scenario.public is not None
    # Stratified by classes that the clients do not have.
    labels = Toy(samples=300, classes=30).load(Path()).train.y
    assert np.bincount(labels[scenario.public.rows]).tolist() == [2] * 30


def test_nothing_else_is_drawn_otherwise() -> None:
    """With the clients' own share fixed, they hold the same samples whatever the server sees."""
    held = {"client_samples": {"total": 900}}
    own = build_toy(split={"public": {"total": 100}, **held})
    other = build_toy(public_data=Toy(samples=300), split={"public": {"total": 100}, **held})
    for client in range(own.clients):
        assert np.array_equal(own.shard(client), other.shard(client))
    assert np.array_equal(own.given, other.given)


def test_the_hash_tells_the_public_set() -> None:
    hashes = {
        build_toy(**FOREIGN).sha256,
        build_toy(**{**FOREIGN, "split": {"public": {"total": 30}}}).sha256,
        build_toy(**{**FOREIGN, "public_data": Toy(samples=600, classes=30)}).sha256,
        build_toy().sha256,
    }
    assert len(hashes) == 4
    assert build_toy(public_data=None).sha256 == build_toy().sha256


def test_it_is_saved_with_the_scenario(tmp_path: Path) -> None:
    scenario = build_toy(**FOREIGN)
    scenario.save(tmp_path / "kept")
    found = Scenario.load(tmp_path / "kept")
    assert found.sha256 == scenario.sha256
    assert found.public is not None
    assert scenario.public is not None
    assert np.array_equal(found.public.rows, scenario.public.rows)
    assert ("public", "60 images of toy") in list_scenario_facts(found)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"split": {}}, r"public_data needs split\.public.* got none"),
        ({"public_noise": {"name": "symmetric", "rate": 0.2}}, "no public_noise; got symmetric"),
    ],
)
def test_a_plan_that_contradicts_itself_is_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        build_toy(**{**FOREIGN, **more})


def test_a_digest_without_it_is_what_it_was() -> None:
    assert (
        configured(public_data=None).digest
        == validate_config(
            {
                "data": configured().data,
                "split": {"public": {"total": 40}},
                "method": "fedds",
            }
        ).digest
    )
    assert configured().digest != configured(public_data=None).digest


def test_methods_see_its_images_at_the_clients_size_without_labels() -> None:
    config = configured()
    dataset, scenario = open_federation(config, 0)
    holdings = build_holdings(config, dataset, scenario)
    public = holdings.sets["public"]
    assert public.x.shape == (40, 12, 12, 3)
    assert public.y is None
    # Grey: every channel says the same.
    assert np.array_equal(public.x[..., 0], public.x[..., 2])
    assert holdings.fingerprints["public"] != holdings.fingerprints["test"]


def test_a_method_that_reads_public_labels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = configured()
    monkeypatch.setattr(type(config.method), "needs", {"public": "labels"})
    dataset, scenario = open_federation(config, 0)
    with pytest.raises(ConfigError, match="reads the public set's labels; got images of digits"):
        build_holdings(config, dataset, scenario)


def test_another_content_is_refused() -> None:
    config = configured()
    _, scenario = open_federation(config, 0)
    assert scenario.public is not None
    other = configured(public_data={"name": "blobs", "samples": 100, "side": 12})
    with pytest.raises(DataError, match=r"public set of this scenario is of 'digits'"):
        take_public_images(other, scenario.public, (12, 12, 3))


def test_images_are_fitted_as_pillow_scales_them() -> None:
    grey = np.random.default_rng(0).integers(0, 256, (2, 28, 28, 1), dtype=np.uint8)
    found = fit_images(grey, (32, 32, 3))
    assert found.shape == (2, 32, 32, 3)
    scaled = Image.fromarray(grey[1, ..., 0]).resize((32, 32), Image.Resampling.BILINEAR)
    assert np.array_equal(found[1, ..., 1], np.asarray(scaled))
    assert fit_images(found, (28, 28, 1)).shape == (2, 28, 28, 1)
    assert fit_images(grey, (28, 28, 1)) is grey
    with pytest.raises(ConfigError, match="grey or RGB, as the clients' are; got 4 channels"):
        fit_images(grey, (28, 28, 4))
