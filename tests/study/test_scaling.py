"""`--scale`: what shrinks, what stays, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfl.config.files import merge_settings
from rayfl.config.schema import Config
from rayfl.errors import ConfigError
from rayfl.study.scaling import (
    count_images,
    find_known_sizes,
    find_sizes,
    scale_config,
    shrink_count,
)
from tests.study.tiny import study

FULL: dict[str, Any] = {
    "data": "cifar10",
    "clients": 100,
    "training": {"rounds": 500, "clients_per_round": 10},
    "method": {"name": "fedrn", "warmup": 100},
}


def shrink(
    tmp_path: Path, scale: float, changes: dict[str, Any] | None = None, **least: float
) -> tuple[Config, str]:
    found = study(tmp_path, {"scaling": {"least": least}} if least else None)
    result = scale_config(merge_settings(FULL, changes or {}), found, scale, "here")
    return result.config, result.note


def test_full_size_is_what_is_written(tmp_path: Path) -> None:
    config, note = shrink(tmp_path, 1.0)
    assert (config.clients, config.training.rounds, note) == (100, 500, "")


def test_a_tenth(tmp_path: Path) -> None:
    config, note = shrink(tmp_path, 0.1)
    assert (config.clients, config.training.rounds, config.training.clients_per_round) == (
        10,
        50,
        4,
    )
    assert config.resolved()["method"]["warmup"] == 10
    split = config.resolved()["split"]
    assert (split["train_samples"]["total"], split["test_samples"]["total"]) == (5000, 1000)
    assert note == (
        "rounds 500 -> 50, clients 100 -> 10, method.warmup 100 -> 10, clients a round 10 -> 4, "
        "training images 50000 -> 5000, test images 10000 -> 1000"
    )


def test_a_fifth_keeps_the_share_of_participants_and_the_size_of_clients(tmp_path: Path) -> None:
    config, _ = shrink(tmp_path, 0.4)
    assert config.training.cohort(config.clients) / config.clients == 0.1
    assert config.resolved()["split"]["train_samples"]["total"] / config.clients == 500


@pytest.mark.parametrize("scale", [0.1, 0.02, 0.001])
def test_nothing_falls_below_its_least(tmp_path: Path, scale: float) -> None:
    config, _ = shrink(tmp_path, scale)
    split = config.resolved()["split"]
    assert config.clients == 10
    assert config.training.rounds >= 5
    assert config.training.cohort(config.clients) == 4
    assert split["train_samples"]["total"] >= 1000
    assert split["test_samples"]["total"] == 1000
    assert config.resolved()["method"]["warmup"] >= 1


def test_a_study_may_set_least_values(tmp_path: Path) -> None:
    config, _ = shrink(tmp_path, 0.01, None, **{"clients": 25, "training.rounds": 40})
    assert (config.clients, config.training.rounds) == (25, 40)


def test_what_is_small_already_stays(tmp_path: Path) -> None:
    small = {
        "clients": 3,
        "training": {"rounds": 2, "clients_per_round": None},
        "split": {"train_samples": {"total": 300}},
    }
    config, note = shrink(tmp_path, 0.1, small)
    assert (config.clients, config.training.rounds, config.training.cohort(3)) == (3, 2, 3)
    assert config.resolved()["split"]["train_samples"]["total"] == 300
    assert "rounds" not in note
    assert "training images" not in note


def test_a_share_of_participants_becomes_a_number(tmp_path: Path) -> None:
    part = {"training": {"clients_per_round": None, "fraction": 0.1}, "clients": 40}
    config, note = shrink(tmp_path, 0.25, part)
    # A tenth of ten clients would be one, where four took part before.
    assert config.training.cohort(config.clients) == 4
    assert config.training.fraction is None
    assert "clients a round" not in note


def test_everybody_stays_everybody(tmp_path: Path) -> None:
    config, _ = shrink(tmp_path, 0.5, {"training": {"clients_per_round": None}})
    assert config.training.cohort(config.clients) == config.clients == 50


def test_the_servers_sets_shrink_with_the_images(tmp_path: Path) -> None:
    split = {
        "public": {"total": 2500},
        "client_samples": {"total": 40000},
        "labelled": {"per_class": 50},
    }
    config, note = shrink(tmp_path, 0.1, {"split": split})
    written = config.resolved()["split"]
    assert (written["public"]["total"], written["client_samples"]["total"]) == (250, 4000)
    assert written["labelled"]["per_class"] == 5
    assert "split.public.total 2500 -> 250" in note


def test_shares_of_the_split_stay(tmp_path: Path) -> None:
    config, _ = shrink(
        tmp_path, 0.1, {"split": {"public": {"fraction": 0.1}, "train_samples": {"fraction": 0.5}}}
    )
    written = config.resolved()["split"]
    assert written["public"]["fraction"] == 0.1
    assert written["train_samples"]["total"] == 2500


def test_pretraining_keeps_its_share(tmp_path: Path) -> None:
    changes = {"method": {"name": "fedcr", "pretraining": 700}, "training": {"rounds": 340}}
    config, _ = shrink(tmp_path, 0.1, changes)
    assert (config.training.rounds, config.resolved()["method"]["pretraining"]) == (34, 70)


@pytest.mark.parametrize("scale", [0.0, -1.0, 1.5])
def test_a_scale_shrinks(tmp_path: Path, scale: float) -> None:
    with pytest.raises(ConfigError, match=r"--scale lies in \(0, 1\]; got"):
        shrink(tmp_path, scale)


@pytest.mark.parametrize(
    ("value", "factor", "least", "expected"),
    [
        (100, 0.1, 5, 10),
        (100, 0.01, 5, 5),
        (3, 0.1, 5, 3),
        (0, 0.5, 5, 0),
        (7, 0.1, 0, 1),
        (15, 0.1, 1, 2),
    ],
)
def test_smaller(value: int, factor: float, least: float, expected: int) -> None:
    assert shrink_count(value, factor, least) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [(None, 50), ({"fraction": 0.5}, 25), ({"total": 7}, 7), ({"first": 9}, 9)],
)
def test_amounts_of_a_cap(written: dict[str, Any] | None, expected: int) -> None:
    assert count_images(written, 50) == expected


def test_a_cap_by_class_cannot_be_scaled(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="caps images by total, fraction or first; got per_class"):
        shrink(tmp_path, 0.5, {"split": {"train_samples": {"per_class": 10}}})


def test_sizes_of_joined_datasets_add_up() -> None:
    parts = {"name": "rayfl.study.joined:Joined", "parts": [{"name": "mnist"}, {"name": "cifar10"}]}
    assert find_known_sizes(parts) == (110_000, 20_000)
    assert find_known_sizes({**parts, "parts": [{"name": "mnist"}, {"name": "folder"}]}) is None


def test_an_unknown_dataset_is_counted() -> None:
    assert sum(find_sizes(Config())) == 1797
