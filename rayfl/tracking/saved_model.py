"""A network in MLflow's form."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rayfl.version import __version__


def save_model(model: Any, signature: Any, folder: Path) -> None:
    """Write a network; requirements are named, not guessed by importing everything.

    Parameters
    ----------
    model : torch.nn.Module
        The network.
    signature : mlflow.models.ModelSignature
        What it takes and gives.
    folder : Path
        Where it goes; whatever is there is replaced.
    """
    import inspect

    import mlflow

    shutil.rmtree(folder, ignore_errors=True)
    save = mlflow.pytorch.save_model
    # A traced graph would lose training mode; older versions of MLflow know no other form and no
    # such argument.
    form = {}
    if "serialization_format" in inspect.signature(save).parameters:
        form = {"serialization_format": "pickle"}
    import torch

    needed = [f"rayfl=={__version__}", f"torch=={torch.__version__.partition('+')[0]}"]
    save(model, path=str(folder), signature=signature, pip_requirements=needed, **form)


def load_model(folder: Path) -> Any:
    """The network that was written into a folder.

    Parameters
    ----------
    folder : Path
        A run's `model`, of one's own: what lies there is executed.
    """
    import mlflow

    return mlflow.pytorch.load_model(str(folder), map_location="cpu")
