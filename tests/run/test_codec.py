"""Values to bytes and back, and nothing else."""

from __future__ import annotations

import ast
import collections
import enum
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as npst

from rayfl.errors import StorageError
from rayfl.run import checkpoint, codec
from rayfl.run.codec import DTYPES, Marked, pack_tree, unpack_tree

HERE = {__name__}


@dataclass(frozen=True)
class Point:
    x: Any
    y: Any = None

    @dataclass(frozen=True)
    class Inner:
        z: int


class Named(NamedTuple):
    a: int


class Colour(enum.Enum):
    RED = 1


class Plain:
    def __repr__(self) -> str:
        return "Plain()"


def same(one: Any, other: Any) -> bool:
    """Equal in type and content, to the bit."""
    if type(one) is not type(other):
        return False
    if isinstance(one, (np.ndarray, np.generic)):
        return bool(
            one.dtype == other.dtype
            and one.shape == other.shape
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Point):
        return same(one.x, other.x) and same(one.y, other.y)
    return bool(one == other or (one != one and other != other))


ARRAYS = npst.arrays(
    st.sampled_from(sorted(DTYPES)).map(np.dtype),
    npst.array_shapes(min_dims=0, min_side=0, max_side=4),
)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | ARRAYS
    | ARRAYS.filter(np.size).map(np.ravel).map(lambda a: a[0])
)
TREES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text() | st.integers() | st.booleans(), inner, max_size=3)
        | st.builds(Point, inner, inner)
    ),
    max_leaves=8,
)


@given(TREES)
@settings(deadline=None, max_examples=150)
def test_what_is_packed_is_unpacked(tree: Any) -> None:
    assert same(unpack_tree(pack_tree(tree), HERE), tree)


@pytest.mark.parametrize(
    "order", [lambda a: a.T, lambda a: a[::-1, ::2], np.asfortranarray], ids=["T", "steps", "F"]
)
def test_memory_order_does_not_matter(order: Callable[[Any], Any]) -> None:
    array = order(np.arange(12.0).reshape(3, 4))
    assert np.array_equal(unpack_tree(pack_tree(array)), array)


def test_unpacked_arrays_are_read_only() -> None:
    found = unpack_tree(pack_tree({"a": [np.ones(3)]}))
    with pytest.raises(ValueError, match="read-only"):
        found["a"][0][0] = 2


def test_nested_dataclasses() -> None:
    assert unpack_tree(pack_tree(Point(Point.Inner(3), (1,))), HERE) == Point(Point.Inner(3), (1,))


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ({1, 2}, "set"),
        (b"raw", "bytes"),
        (1j, "complex"),
        (Plain(), "Plain"),
        (Plain, "type"),
        (Point, "type"),
        (len, "builtin_function_or_method"),
        (Named(1), "Named"),
        (Colour.RED, "Colour"),
        (collections.OrderedDict(a=1), "OrderedDict"),
        (collections.defaultdict(int), "defaultdict"),
        (np.array(["text"]), "an array of <U4"),
        (np.array([None]), "an array of object"),
        (np.datetime64("2020-01-01"), "an array of datetime64"),
        (Path("/"), "PosixPath"),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    "wrap", [lambda v: v, lambda v: {"a": [v]}, Point], ids=["bare", "nested", "field"]
)
def test_anything_else_is_refused(value: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    with pytest.raises(StorageError, match=f"a method's state is made of arrays.*; got {name}"):
        pack_tree(wrap(value))


@pytest.mark.parametrize("key", [1.5, (1, 2), None, np.int64(3)])
def test_keys_are_text_or_whole_numbers(key: Any) -> None:
    with pytest.raises(StorageError, match="text or integer keys"):
        pack_tree({key: 1})


@pytest.mark.parametrize("modules", [(), {"tests"}, {"numpy", "rayfl.run.codec"}])
def test_dataclasses_come_only_from_the_modules_allowed(modules: Any) -> None:
    with pytest.raises(
        StorageError, match=r"may hold dataclasses of .*; got tests.run.test_codec:Point"
    ):
        unpack_tree(pack_tree(Point(1)), modules)


@pytest.mark.parametrize(
    "path",
    [f"{__name__}:Plain", f"{__name__}:HERE", f"{__name__}:missing", f"{__name__}:", "os:system"],
)
def test_a_file_cannot_name_anything_but_a_dataclass(path: str) -> None:
    forged = forge({"class": path, "fields": {"items": []}})
    with pytest.raises(StorageError, match=r"which is not a dataclass|may hold dataclasses of"):
        unpack_tree(forged, HERE)


@pytest.mark.parametrize(
    "tree",
    [
        {},
        {"array": "99", "shape": [1]},
        {"array": "_", "shape": [7]},
        {"set": [1]},
        {"list": 3},
        {"list": [], "tuple": []},
        {"items": [[1]]},
        {"items": [[[], 1]]},
        {"scalar": 3},
        {"class": f"{__name__}:Point", "fields": {"items": [["wrong", 1]]}},
        {"class": 5, "fields": {}},
    ],
    ids=str,
)
def test_trees_that_make_no_sense_are_refused(tree: Any) -> None:
    with pytest.raises(StorageError, match="not a packed value"):
        unpack_tree(forge(tree), HERE)


def forge(tree: Any) -> bytes:
    from safetensors.numpy import save

    blob: bytes = save({"_": np.zeros(1, np.uint8)}, metadata={"tree": json.dumps(tree)})
    return blob


GOOD = pack_tree({"w": np.arange(20.0), "list": [Point(1, "text"), (None, 2.5)]})


@pytest.mark.parametrize(
    "blob",
    [b"", b"x", b"\0" * 8, b"\xff" * 40, b"\x80\x04K\x01.", GOOD[:-1], GOOD[:20], GOOD + b"x"],
)
def test_damaged_bytes_are_refused(blob: bytes) -> None:
    with pytest.raises(StorageError, match="not a packed value"):
        unpack_tree(blob, HERE)


@given(st.integers(0, len(GOOD) - 1), st.integers(0, 255))
@settings(deadline=None, max_examples=300)
def test_any_changed_byte_gives_a_value_or_a_storage_error(position: int, byte: int) -> None:
    blob = GOOD[:position] + bytes([byte]) + GOOD[position + 1 :]
    assert readable(blob) in (True, False)


def readable(blob: bytes) -> bool:
    try:
        unpack_tree(blob, HERE)
    except StorageError:
        return False
    return True


def test_leaves_are_marked_and_restored() -> None:
    blob = pack_tree(
        [1, 2.5, {"a": 7}], leaf=lambda value: Marked([value]) if isinstance(value, int) else value
    )
    assert unpack_tree(blob, leaf=lambda value: -value[0]) == [-1, 2.5, {"a": -7}]


@pytest.mark.parametrize("module", [codec, checkpoint])
def test_nothing_is_a_pickle(module: Any) -> None:
    names = {
        name
        for node in ast.walk(ast.parse(Path(module.__file__).read_text()))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
    }
    assert not {
        name
        for name in names
        if name.split(".")[0] in {"pickle", "cloudpickle", "dill", "marshal", "shelve"}
    }
    assert b"pickle" not in GOOD
