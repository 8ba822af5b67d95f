"""Values to bytes and back, without pickle: one safetensors blob whose header describes the tree.

Trees are made of None, booleans, numbers, text, arrays, tuples, lists, mappings with text or
integer keys, frozen dataclasses, and whatever a `leaf` codec turns into one of these (references,
at the engine)."""

from __future__ import annotations

import dataclasses
import importlib
import json
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from rayfl.errors import StorageError

Leaf = Callable[[Any], Any]

DTYPES = {"bool", "float16", "float32", "float64", "complex64"} | {
    f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)
}


def pack(value: Any, leaf: Leaf = lambda value: value) -> bytes:
    """Bytes of a tree; `leaf` is asked first about every node."""
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray[Any, Any]] = {}
    tree = _encode(value, leaf, arrays)
    # safetensors refuses an empty file, and wants contiguous arrays.
    blob: bytes = save({"_": np.zeros(1, np.uint8), **arrays}, metadata={"tree": json.dumps(tree)})
    return blob


def unpack(blob: bytes, modules: Collection[str] = (), leaf: Leaf = lambda value: value) -> Any:
    """The tree in `blob`; dataclasses only from the named modules; `leaf` sees what `pack`'s leaf
    had marked."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        tree = json.loads(header["__metadata__"]["tree"])
        return _decode(tree, modules, leaf, load(blob))
    except (
        SafetensorError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise StorageError(f"not a packed value: {type(error).__name__}: {error}") from error


@dataclasses.dataclass(frozen=True)
class Marked:
    """A node that a leaf codec wrapped: restored through `unpack`'s leaf."""

    value: Any


def _encode(value: Any, leaf: Leaf, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    value = leaf(value)
    if isinstance(value, np.generic) and not isinstance(value, str):
        return {"scalar": _encode(np.asarray(value), leaf, arrays)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.ndarray) and value.dtype.name in DTYPES:
        name = str(len(arrays))
        arrays[name] = np.ascontiguousarray(value)
        return {"array": name, "shape": list(value.shape)}
    if isinstance(value, Marked):
        return {"marked": _encode(value.value, lambda item: item, arrays)}
    # Exact types: a named tuple or a defaultdict would come back as something else.
    if type(value) in (list, tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode(item, leaf, arrays) for item in value]}
    if type(value) is dict:
        return {"items": [[_key(key), _encode(item, leaf, arrays)] for key, item in value.items()]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {
            "class": f"{cls.__module__}:{cls.__qualname__}",
            "fields": _encode(fields, leaf, arrays),
        }
    raise StorageError(
        "a method's state is made of arrays, numbers, text, containers, dataclasses and Refs; "
        f"got {described(value)}. Keep anything else out of it."
    )


def described(value: Any) -> str:
    return f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__


def _key(key: Any) -> str | int:
    if isinstance(key, (str, int)):
        return key
    raise StorageError(f"mappings in a method's state have text or integer keys; got {key!r}")


def _decode(tree: Any, modules: Collection[str], leaf: Leaf, arrays: dict[str, Any]) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        array = arrays[tree["array"]].reshape(tree["shape"])
        array.flags.writeable = False
        return array
    if "scalar" in tree:
        return _decode(tree["scalar"], modules, leaf, arrays)[()]
    if "marked" in tree:
        return leaf(_decode(tree["marked"], modules, leaf, arrays))
    if "items" in tree:
        return {key: _decode(item, modules, leaf, arrays) for key, item in tree["items"]}
    if "class" in tree:
        fields = _decode(tree["fields"], modules, leaf, arrays)
        return _dataclass(tree["class"], modules)(**fields)
    ((kind, items),) = tree.items()
    return {"list": list, "tuple": tuple}[kind](
        _decode(item, modules, leaf, arrays) for item in items
    )


def _dataclass(path: str, modules: Collection[str]) -> type[Any]:
    """The class at `path`, if it is a dataclass of one of `modules`: a file must not choose what is
    imported."""
    module, _, name = path.partition(":")
    if module not in modules:
        raise StorageError(f"a packed value may hold dataclasses of {sorted(modules)}; got {path}")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise StorageError(f"a packed value names {path}, which is not a dataclass")
    return found
