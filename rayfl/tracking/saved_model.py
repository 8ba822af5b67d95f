"""A network in MLflow's form, with its weights beside it as numbers alone.

MLflow's form is a pickle: whoever loads it runs whatever it holds. The weights are none, and a
configuration tells what network they are of."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.arrays import Vector
from rayfl.regular_files import read_regular
from rayfl.version import __version__

WEIGHTS = "weights.safetensors"
_MOST_BYTES = 100_000_000_000


def save_model(model: Any, signature: Any, weights: Vector, folder: Path) -> None:
    """Write a network; requirements are named, not guessed by importing everything.

    Parameters
    ----------
    model : torch.nn.Module
        The network.
    signature : mlflow.models.ModelSignature
        What it takes and gives.
    weights : array
        Its weights in one vector.
    folder : Path
        Where it goes; whatever is there is replaced.
    """
    import inspect

    import mlflow
    import torch

    shutil.rmtree(folder, ignore_errors=True)
    save = mlflow.pytorch.save_model
    # A traced graph would lose training mode; older versions of MLflow know no other form and no
    # such argument.
    form = {}
    if "serialization_format" in inspect.signature(save).parameters:
        form = {"serialization_format": "pickle"}
    needed = [f"rayfl=={__version__}", f"torch=={torch.__version__.partition('+')[0]}"]
    with _spared_comparison():
        save(model, path=str(folder), signature=signature, pip_requirements=needed, **form)
    _save_weights(weights, folder / WEIGHTS)


@contextmanager
def _spared_comparison() -> Iterator[None]:
    """MLflow compares what a model needs with what is installed, and reads the list of files of
    every package there is for it: over a second, in every process. Here the needs are what is
    installed."""
    environment: Any = import_module("mlflow.utils.environment")
    name = "warn_dependency_requirement_mismatches"
    compare = getattr(environment, name, None)
    # It is not MLflow's public face: a version that compares elsewhere takes its second.
    if compare is None:
        yield
        return
    setattr(environment, name, lambda _requirements: None)
    try:
        yield
    finally:
        setattr(environment, name, compare)


def _save_weights(weights: Vector, path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"weights": np.ascontiguousarray(weights)}, path)


def read_saved_weights(folder: Path) -> Vector | None:
    """The weights beside a saved model; None beside one that has none.

    Raises
    ------
    ValueError
        They are damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        found: Vector = load(read_regular(folder / WEIGHTS, _MOST_BYTES))["weights"]
    except FileNotFoundError:
        return None
    except (SafetensorError, OSError, LookupError, TypeError) as error:
        raise ValueError(str(error)) from error
    if found.dtype != np.float32 or found.ndim != 1:
        raise ValueError(f"{found.dtype} of shape {found.shape}")
    return found
