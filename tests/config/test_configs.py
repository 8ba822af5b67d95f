"""Every configuration of the repository resolves, and every method has one that shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfl.algorithms import METHODS
from rayfl.config.schema import load_config
from rayfl.study.cells import is_study, list_cells, load_study

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
EVERY = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))
STUDIES = [name for name in EVERY if not name.startswith("sweeps/") and is_study(CONFIGS / name)]
FILES = [name for name in EVERY if name not in STUDIES and not name.startswith("sweeps/")]


@pytest.mark.parametrize("name", FILES)
def test_a_configuration_resolves(name: str) -> None:
    config = load_config(CONFIGS / name)
    assert config.training.rounds > 0
    assert config.resolved()["method"]["name"] in METHODS.names()


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_valid_and_has_cells(name: str) -> None:
    study = load_study(CONFIGS / name)
    assert list_cells(study)
    assert study.title
    assert study.figures


@pytest.mark.parametrize("method", METHODS.names())
def test_a_method_has_a_configuration_that_names_it(method: str) -> None:
    assert (
        load_config(CONFIGS / "methods" / f"{method}.yaml").resolved()["method"]["name"] == method
    )


@pytest.mark.parametrize(
    ("name", "clients", "rounds"),
    [
        ("paper/fedds_mnist.yaml", 100, 100),
        ("paper/fedrn_cifar10.yaml", 100, 500),
        ("paper/local_k_cifar10.yaml", 100, 1000),
        ("paper/fb_nll_cifar10.yaml", 20, 80),
        ("paper/fedcr_cifar10.yaml", 100, 340),
    ],
)
def test_the_papers_own_settings(name: str, clients: int, rounds: int) -> None:
    config = load_config(CONFIGS / name)
    assert (config.clients, config.training.rounds) == (clients, rounds)
