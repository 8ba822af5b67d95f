"""Values to bytes and back, without pickle: one safetensors blob whose header describes the tree.

Trees are made of None, booleans, numbers, text, arrays, tuples, lists, mappings with text or
integer keys, dataclasses, and whatever a `leaf` codec turns into one of these (references, at the
engine). What would come back as something else is refused: `check_state`, which names the field, is
quick enough to be asked after every round."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from rayfl.component import show_value
from rayfl.errors import StorageError, broken

Leaf = Callable[[Any], Any]

DTYPES = {"bool", "float16", "float32", "float64", "complex64"} | {
    f"{s}int{n}" for s in ("", "u") for n in (8, 16, 32, 64)
}
OWN = "rayfl"
"""The package whose dataclasses a state may always hold."""
_PLAIN = (bool, int, float, str)


def pack_tree(value: Any, leaf: Leaf = lambda value: value) -> bytes:
    """Bytes of a tree; `leaf` is asked first about every node."""
    from safetensors.numpy import save

    arrays: dict[str, np.ndarray[Any, Any]] = {}
    tree = _encode_node(value, leaf, arrays)
    # safetensors refuses an empty file, and wants contiguous arrays.
    blob: bytes = save({"_": np.zeros(1, np.uint8), **arrays}, metadata={"tree": json.dumps(tree)})
    return blob


def unpack_tree(
    blob: bytes, modules: Collection[str] = (), leaf: Leaf = lambda value: value
) -> Any:
    """The tree in `blob`; dataclasses only of rayfl and of the named modules; `leaf` sees what
    `pack`'s leaf had marked."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        header = json.loads(blob[8 : 8 + int.from_bytes(blob[:8], "little")])
        tree = json.loads(header["__metadata__"]["tree"])
        return _decode_node(tree, modules, leaf, load(blob))
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


# -- what may be in a state ------------------------------------------------------------------------


def check_state(
    value: Any,
    is_leaf: Callable[[Any], bool] = lambda _: False,
    modules: Collection[str] | None = None,
    path: str = "",
) -> set[str]:
    """Refuse what could not be saved, or not be read again, and say where it is.

    Parameters
    ----------
    value : object
        A method's state, or a part of it.
    is_leaf : callable, optional
        Tells what somebody else packs: references.
    modules : collection of str, optional
        Where dataclasses may come from, besides rayfl; by default from anywhere.
    path : str
        How to name the value; by default by its class.

    Returns
    -------
    set of str
        The modules of the dataclasses that were found.

    Raises
    ------
    StorageError
        With the path of the field, as in `Corrected.noisy`.
    """
    found: set[type[Any]] = set()
    _check_node(value, path or type(value).__name__, is_leaf, modules, found)
    return {cls.__module__ for cls in found}


def _check_node(
    value: Any,
    path: str,
    is_leaf: Callable[[Any], bool],
    modules: Collection[str] | None,
    found: set[type[Any]],
) -> None:
    kind = type(value)
    if value is None or kind in _PLAIN or is_leaf(value):
        return
    if isinstance(value, (np.ndarray, np.generic)) and _is_storable(value):
        return
    if kind in (list, tuple):
        for number, item in enumerate(value):
            if type(item) not in _PLAIN:  # there may be very many of these
                _check_node(item, f"{path}[{number}]", is_leaf, modules, found)
    elif kind is dict:
        for key, item in value.items():
            _check_key(key, path)
            if type(item) not in _PLAIN:
                _check_node(item, f"{path}[{key!r}]", is_leaf, modules, found)
    elif dataclasses.is_dataclass(kind):
        if kind not in found:
            _refuse_unreadable(kind, path, modules)
            found.add(kind)
        for field in dataclasses.fields(value):
            item = getattr(value, field.name)
            _check_node(item, f"{path}.{field.name}", is_leaf, modules, found)
    else:
        raise _unfit_error(value, path)


def _is_storable(value: Any) -> bool:
    # An object array would be a pickle.
    return isinstance(value, np.str_) or value.dtype.name in DTYPES


def _check_key(key: Any, path: str) -> None:
    if not isinstance(key, str) and type(key) not in (int, bool):
        remedy = f"Write int({show_value(key)})." if isinstance(key, (int, np.integer)) else ""
        rule = f"mappings in a method's state have text or integer keys ({path})"
        raise StorageError(broken(rule, show_value(key), remedy))


def _refuse_unreadable(cls: type[Any], path: str, modules: Collection[str] | None) -> None:
    """Whatever is written must be found again by its name, where it may be looked for."""
    module, name = cls.__module__, cls.__qualname__
    if modules is not None and not _is_known(module, modules):
        known = ", ".join(sorted(modules))
        rule = f"dataclasses in a method's state are those of rayfl, of {known}, or in init's state"
        remedy = "Let the state that `init` returns hold one, or define it beside the method."
        raise StorageError(broken(rule, f"{module}:{name} at {path}", remedy))
    if any(not field.init for field in dataclasses.fields(cls)):
        rule = "dataclasses in a method's state are made from all of their fields"
        raise StorageError(broken(rule, f"{name}, which has one with init=False, at {path}"))
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if found is not cls:
        rule = "dataclasses in a method's state are defined at the top of a module"
        raise StorageError(broken(rule, f"{module}:{name} at {path}"))


def _is_known(module: str, modules: Collection[str]) -> bool:
    return module in modules or module.partition(".")[0] == OWN


def _unfit_error(value: Any, path: str) -> StorageError:
    is_array = isinstance(value, (np.ndarray, np.generic))
    what = f"an array of {value.dtype}" if is_array else type(value).__name__
    where = f"{what} at {path}" if path else what
    rule = "a method's state is made of arrays, numbers, text, containers, dataclasses and Refs"
    return StorageError(broken(rule, where, "Keep anything else out of it."))


# -- encoding --------------------------------------------------------------------------------------


def _encode_node(value: Any, leaf: Leaf, arrays: dict[str, np.ndarray[Any, Any]]) -> Any:
    value = leaf(value)
    if isinstance(value, np.generic) and not isinstance(value, str):
        return {"scalar": _encode_node(np.asarray(value), leaf, arrays)}
    if value is None or type(value) in _PLAIN or isinstance(value, np.str_):
        return value
    if isinstance(value, np.ndarray) and value.dtype.name in DTYPES:
        name = str(len(arrays))
        arrays[name] = np.ascontiguousarray(value)
        return {"array": name, "shape": list(value.shape)}
    if isinstance(value, Marked):
        return {"marked": _encode_node(value.value, lambda item: item, arrays)}
    # Exact types: a named tuple or a defaultdict would come back as something else.
    if type(value) in (list, tuple):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_encode_node(item, leaf, arrays) for item in value]}
    if type(value) is dict:
        for key in value:
            _check_key(key, type(value).__name__)
        return {"items": [[key, _encode_node(item, leaf, arrays)] for key, item in value.items()]}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        cls = type(value)
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        path = f"{cls.__module__}:{cls.__qualname__}"
        return {"class": path, "fields": _encode_node(fields, leaf, arrays)}
    raise _unfit_error(value, "")


def _decode_node(tree: Any, modules: Collection[str], leaf: Leaf, arrays: dict[str, Any]) -> Any:
    if not isinstance(tree, dict):
        return tree
    if "array" in tree:
        array = arrays[tree["array"]].reshape(tree["shape"])
        array.flags.writeable = False
        return array
    if "scalar" in tree:
        return _decode_node(tree["scalar"], modules, leaf, arrays)[()]
    if "marked" in tree:
        return leaf(_decode_node(tree["marked"], modules, leaf, arrays))
    if "items" in tree:
        return {key: _decode_node(item, modules, leaf, arrays) for key, item in tree["items"]}
    if "class" in tree:
        fields = _decode_node(tree["fields"], modules, leaf, arrays)
        return _find_dataclass(tree["class"], modules)(**fields)
    ((kind, items),) = tree.items()
    container = {"list": list, "tuple": tuple}[kind]
    return container(_decode_node(item, modules, leaf, arrays) for item in items)


def _find_dataclass(path: str, modules: Collection[str]) -> type[Any]:
    """The class at `path`, if it is a dataclass of rayfl or of one of `modules`: a file must not
    choose what is imported."""
    module, _, name = path.partition(":")
    if not _is_known(module, modules):
        known = sorted(modules)
        rule = f"a packed value may hold dataclasses of rayfl and of {known}"
        raise StorageError(broken(rule, path))
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and dataclasses.is_dataclass(found)):
        raise StorageError(f"a packed value names {path}, which is not a dataclass")
    return found
