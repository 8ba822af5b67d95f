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
    """The tensors of a .pt, .pth, .ckpt or .safetensors file, by name."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise DataError(
            broken(
                "a weight file must exist",
                file,
                "Check the path; relative ones start where rayfl does",
            )
        )
    return read_weight_bytes(file.read_bytes(), str(file))


def read_weight_bytes(content: bytes, where: str) -> Weights:
    """The tensors in the bytes of a weight file; `where` is what errors call it."""
    try:
        loaded = (
            _read_safetensors(content)
            if where.endswith(".safetensors")
            else _load_restricted(content)
        )
    except pickle.UnpicklingError as error:
        rule = "a weight file may hold tensors and plain values only"
        raise DataError(
            broken(rule, f"{where}, which asks for other Python objects", _CONVERT)
        ) from error
    except (
        Exception
    ) as error:  # torch, zipfile and safetensors name a damaged file each in their own way
        rule = "a weight file must be whole and in the form of PyTorch or safetensors"
        raise DataError(
            broken(rule, f"{where} ({type(error).__name__})", "Fetch it again")
        ) from error
    return _collect_tensors(loaded, where)


def _read_safetensors(content: bytes) -> Weights:
    from safetensors.torch import load

    weights: Weights = load(content)
    return weights


def _load_restricted(content: bytes) -> Any:
    """Unpickle tensors and plain containers only, with stand-ins for the classes that trainers
    leave behind."""
    with allow_stand_ins(content):
        return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def allow_stand_ins(content: bytes) -> Any:
    """A context in which the foreign names that trainers leave in a file load as OrderedDict.

    torch lets a restricted file fill no other mapping, and trainers pickle settings as classes
    derived from dict."""
    list_names = getattr(torch.serialization, "get_unsafe_globals_in_checkpoint", None)
    if list_names is None or not content.startswith(b"PK"):
        return nullcontext()
    foreign = [name for name in list_names(io.BytesIO(content)) if name.startswith(_INERT)]
    return torch.serialization.safe_globals([(OrderedDict, name) for name in foreign])


def _collect_tensors(loaded: Any, where: str) -> Weights:
    """The tensors of a loaded file, out of the mapping in which a checkpoint nests them."""
    for nest in _NESTS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(nest), Mapping):
            loaded = loaded[nest]
    found = (
        {str(k): v for k, v in loaded.items() if isinstance(v, Tensor)}
        if isinstance(loaded, Mapping)
        else {}
    )
    if not found:
        raise DataError(
            broken("a weight file must hold named tensors", f"none in {where}", _CONVERT)
        )
    return found


def fetch_imagenet_weights(network: str) -> Weights:
    """torchvision's first ImageNet weights of one of its networks, from its cache or its
    download."""
    from torchvision.models import get_model_weights

    try:
        chosen = get_model_weights(network)["IMAGENET1K_V1"]
    except (KeyError, ValueError) as error:
        raise ConfigError(
            broken("weights 'imagenet' need a network that torchvision offers them for", network)
        ) from error
    try:
        weights: Weights = chosen.get_state_dict(progress=False, check_hash=True)
    except (OSError, RuntimeError) as error:
        cache = Path(torch.hub.get_dir()) / "checkpoints" / os.path.basename(chosen.url)
        remedy = f"Put the file there by hand, or set `weights` to its path ({error})"
        raise DataError(
            broken("ImageNet weights must be in torchvision's cache or be fetched", cache, remedy)
        ) from error
    return weights


def find_weights(source: str, network: str) -> Weights:
    """The weights that a setting names: "imagenet" or a path."""
    return fetch_imagenet_weights(network) if source == "imagenet" else read_weights(source)


def strip_prefix(weights: Weights, prefix: str, where: str) -> Weights:
    """The tensors whose names start with a prefix, without it."""
    found = {
        name[len(prefix) :]: value for name, value in weights.items() if name.startswith(prefix)
    }
    if not found:
        known = ", ".join(sorted({name.split(".")[0] for name in weights})[:8])
        raise DataError(
            broken(
                f"tensors of {where} must start with '{prefix}'",
                known,
                "Set `prefix` to fit the file",
            )
        )
    return found


def load_exactly(module: nn.Module, weights: Weights, where: str, skip: Iterable[str] = ()) -> None:
    """Copy the weights into a module: every tensor finds its place and its shape, but for names
    that start with `skip`.

    Step counters of normalisation layers may be absent: older files have none, and evaluation does
    not read them."""
    skipped = tuple(skip)
    wanted = {
        name: value
        for name, value in module.state_dict().items()
        if not name.startswith(skipped or "\0")
    }
    given = {name: value for name, value in weights.items() if not name.startswith(skipped or "\0")}
    missing = [
        name for name in wanted if name not in given and not name.endswith("num_batches_tracked")
    ]
    foreign = [name for name in given if name not in wanted]
    misshapen = [
        name for name in wanted if name in given and wanted[name].shape != given[name].shape
    ]
    faults = (("missing", missing), ("unknown", foreign), ("of another shape", misshapen))
    told = "; ".join(
        f"{len(names)} {fault} ({', '.join(names[:3])})" for fault, names in faults if names
    )
    if told:
        raise DataError(broken(f"the tensors of {where} must be those of the network", told))
    module.load_state_dict(given, strict=False)
