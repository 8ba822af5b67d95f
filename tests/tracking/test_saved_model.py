"""A network in MLflow's form: it can be loaded, says what it needs, and is quickly written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from rayfl.tracking.saved_model import read_saved_weights, save_model
from rayfl.version import __version__

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]


def save(folder: Path) -> torch.nn.Linear:
    import mlflow

    numbers = np.dtype(np.float32)
    schemas = [
        mlflow.types.Schema([mlflow.types.TensorSpec(numbers, (-1, size))]) for size in (3, 2)
    ]
    network = torch.nn.Linear(3, 2)
    weights = np.arange(8, dtype=np.float32)
    save_model(network, mlflow.models.ModelSignature(*schemas), weights, folder)
    return network


def test_it_comes_back_and_names_what_it_needs(tmp_path: Path) -> None:
    import mlflow

    network = save(tmp_path / "model")
    loaded = mlflow.pytorch.load_model(str(tmp_path / "model"))
    assert torch.equal(loaded.weight, network.weight)
    weights = read_saved_weights(tmp_path / "model")
    assert weights is not None
    assert weights.tolist() == list(range(8))
    needs = (tmp_path / "model" / "requirements.txt").read_text().splitlines()
    assert f"rayfl=={__version__}" in needs


def test_no_package_s_list_of_files_is_read_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That takes over a second, in every process that leaves a model."""
    import mlflow.utils.environment as environment
    import mlflow.utils.requirements_utils as requirements

    read: list[int] = []
    monkeypatch.setattr(requirements, "_init_packages_to_modules_map", lambda: read.append(1))
    compare = environment.warn_dependency_requirement_mismatches
    save(tmp_path / "model")
    assert read == []
    # Models that others save are compared as ever.
    assert environment.warn_dependency_requirement_mismatches is compare
