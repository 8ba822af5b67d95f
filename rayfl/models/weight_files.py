"""Weight files, read without running any code that they may contain."""

from __future__ import annotations

import io
import os
import pickle
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rayfl.errors import ConfigError, DataError, broken

Weights = dict[str, Tensor]

_NESTS = ("state_dict", "teacher", "model")
"""Keys under which training scripts put the weights of a checkpoint, beside optimisers and
settings."""

_INERT = (
    "pytorch_lightning.",
    "lightning.",
    "lightning_fabric.",
    "pl_bolts.",
    "argparse.Namespace",
)
"""Classes that trainers pickle beside the weights. They are read as plain mappings, never
imported."""

_CONVERT = (
    "Where it was made, save the weights alone: torch.save(checkpoint['state_dict'], 'weights.pt')"
)


def read_weights(path: str | Path) -> Weights:
    """The tensors, by name, of the .pt, .pth, .ckpt or .safetensors file at `path`."""
    file = Path(path).expanduser()
    if not file.is_file():
        remedy = "Check the path; relative ones start where rayfl does"
        raise DataError(broken("a weight file must exist", file, remedy))
    return read_weight_bytes(file.read_bytes(), str(file))


def read_weight_bytes(content: bytes, where: str) -> Weights:
    """The tensors in the bytes of a weight file.

    Parameters
    ----------
    content
        The bytes.
    where
        What errors call the file; its suffix says which kind it is.
    """
    read = _read_safetensors if where.endswith(".safetensors") else _load_restricted
    try:
        loaded = read(content)
    except pickle.UnpicklingError as error:
        rule = "a weight file may hold tensors and plain values only"
        found = f"{where}, which asks for other Python objects"
        raise DataError(broken(rule, found, _CONVERT)) from error
    # torch, zipfile and safetensors name a damaged file each in their own way.
    except Exception as error:
        rule = "a weight file must be whole and in the form of PyTorch or safetensors"
        found = f"{where} ({type(error).__name__})"
        raise DataError(broken(rule, found, "Fetch it again")) from error
    return _collect_tensors(loaded, where)


def _read_safetensors(content: bytes) -> Weights:
    from safetensors.torch import load

    weights: Weights = load(content)
    return weights


def _load_restricted(content: bytes) -> Any:
    """Unpickle tensors and plain containers only, with stand-ins for the classes that trainers
    leave behind."""
    stream = io.BytesIO(content)
    with allow_stand_ins(content):
        return torch.load(stream, map_location="cpu", weights_only=True)


def allow_stand_ins(content: bytes) -> Any:
    """A context in which the foreign names that trainers leave in a file of this `content` load as
    OrderedDict.

    torch lets a restricted file fill no other mapping, and trainers pickle settings as classes
    derived from dict."""
    list_names = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    # Older versions of torch cannot tell the names; neither can any about files of the old form.
    if list_names is None or not content.startswith(b"PK"):
        return nullcontext()
    names = list_names(io.BytesIO(content))
    foreign: list[Any] = [(OrderedDict, name) for name in names if name.startswith(_INERT)]
    return torch.serialization.safe_globals(foreign)


def _collect_tensors(loaded: Any, where: str) -> Weights:
    """The tensors of a loaded file, out of the mapping in which a checkpoint nests them."""
    for nest in _NESTS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(nest), Mapping):
            loaded = loaded[nest]
    found: Weights = {}
    if isinstance(loaded, Mapping):
        for name, value in loaded.items():
            if isinstance(value, Tensor):
                found[str(name)] = value
    if not found:
        rule = "a weight file must hold named tensors"
        raise DataError(broken(rule, f"none in {where}", _CONVERT))
    return found


def fetch_imagenet_weights(network: str) -> Weights:
    """torchvision's first ImageNet weights of its `network`, from its cache or its download."""
    from torchvision.models import get_model_weights

    try:
        chosen = get_model_weights(network)["IMAGENET1K_V1"]
    except (KeyError, ValueError) as error:
        rule = "weights 'imagenet' need a network that torchvision offers them for"
        raise ConfigError(broken(rule, network)) from error
    try:
        weights: Weights = chosen.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        cache = Path(torch.hub.get_dir()) / "checkpoints"
        file = cache / os.path.basename(chosen.url)
        rule = "ImageNet weights must be in torchvision's cache or be fetched"
        remedy = f"Put the file there by hand, or set `weights` to its path ({error})"
        raise DataError(broken(rule, file, remedy)) from error
    return weights


def find_weights(source: str, network: str) -> Weights:
    """The weights that a setting names.

    Parameters
    ----------
    source
        "imagenet" or a path.
    network
        What torchvision calls the network.
    """
    if source == "imagenet":
        return fetch_imagenet_weights(network)
    return read_weights(source)


def strip_prefix(
    weights: Weights,
    prefix: str,
    where: str,
) -> Weights:
    """The tensors whose names start with a prefix, without it.

    Parameters
    ----------
    weights
        All tensors of a file.
    prefix
        What the wanted names start with.
    where
        What errors call the file.
    """
    found = {}
    for name, value in weights.items():
        if name.startswith(prefix):
            found[name.removeprefix(prefix)] = value
    if not found:
        beginnings = {name.split(".")[0] for name in weights}
        known = ", ".join(sorted(beginnings)[:8])
        rule = f"tensors of {where} must start with '{prefix}'"
        raise DataError(broken(rule, known, "Set `prefix` to fit the file"))
    return found


def load_exactly(
    module: nn.Module,
    weights: Weights,
    where: str,
    skip: Iterable[str] = (),
) -> None:
    """Copy weights into a module: every tensor finds its place and its shape.

    Step counters of normalisation layers may be absent: older files have none, and evaluation does
    not read them.

    Parameters
    ----------
    module
        What they are copied into.
    weights
        Tensors by name.
    where
        What errors call their file.
    skip
        Beginnings of names that are left alone on both sides.
    """
    wanted = _leave_out(module.state_dict(), skip)
    given = _leave_out(weights, skip)
    missing = []
    misshapen = []
    for name, value in wanted.items():
        if name not in given:
            if not name.endswith("num_batches_tracked"):
                missing.append(name)
        elif given[name].shape != value.shape:
            misshapen.append(name)
    unknown = [name for name in given if name not in wanted]
    faults = {
        "missing": missing,
        "unknown": unknown,
        "of another shape": misshapen,
    }
    found = []
    for fault, names in faults.items():
        if names:
            found.append(f"{len(names)} {fault} ({', '.join(names[:3])})")
    if found:
        rule = f"the tensors of {where} must be those of the network"
        raise DataError(broken(rule, "; ".join(found)))
    module.load_state_dict(given, strict=False)


def _leave_out(tensors: Mapping[str, Tensor], skip: Iterable[str]) -> Weights:
    beginnings = tuple(skip)
    return {name: value for name, value in tensors.items() if not name.startswith(beginnings)}
