"""Two thousand spoilt configurations: each is either valid or refused with a message that a person
can read."""

from __future__ import annotations

import copy
import datetime
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfl.config.schema import Config, load_config
from rayfl.errors import ConfigError, DataError

CONFIGS = Path(__file__).parents[2] / "configs"
QUICKSTART = yaml.safe_load((CONFIGS / "quickstart.yaml").read_text())
EVERYTHING = {
    "base": "quickstart.yaml",
    "seeds": {"data": 1, "training": 2},
    "split": {"public": 0.1, "validation": {"per_class": 5}},
    "model": {"name": "mlp", "hidden": [8, 8]},
    "method": {"name": "fedavg", "weighting": {"name": "equal"}},
    "training": {
        "fraction": 0.5,
        "optimizer": "adam",
        "normalise": {"mean": [0.5], "std": [0.5]},
        "steps": 3,
    },
    "evaluation": {"every": 2, "batch_size": 64},
    "resources": {"cpus_per_client": 1, "gpus_per_client": 0.25, "actors": "auto"},
    "checkpoint": {"every": 3, "min_seconds": 0.5, "uri": "/tmp/x"},
    "tracking": {
        "enabled": False,
        "uri": "http://me:hunter2@h",
        "experiment": "e",
        "tags": {"a": "b"},
    },
}
RUNS, CHUNKS = 2000, 8
LONGEST = 8000

Tree = Any
Step = str | int


def nested(depth: int, *, lists: bool) -> Tree:
    tree: Tree = 1
    for _ in range(depth):
        tree = [tree] if lists else {"name": tree}
    return tree


ODD: list[Tree] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    10**400,
    -(10**30),
    1 << 63,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e308,
    5e-324,
    "",
    " ",
    "fedavg",
    "no_such",
    ":",
    "a:b:c",
    "..:x",
    "os:system",
    "builtins:dict",
    "rayfl.config.schema:Config",
    "rayfl.errors:broken",
    "rayfl.nowhere:X",
    "rayfl.algorithms.fedavg:FedAvg",
    "\u202e\u0007",
    "é🦊\u2028",
    "x" * 900,
    "null",
    "1e5",
    "0x1F",
    "../..",
    "/dev/null",
    "sqlite:///x",
    "http://me:hunter2@host",
    "nowhere.yaml",
    "run.yaml",
    [],
    [[]],
    [1, "a"],
    {},
    {"name": None},
    {"name": "fedavg", "mu": 1},
    {"name": 3},
    {"name": "dirichlet", "alpha": []},
    {1: 2},
    {None: 1},
    {"": 1},
    {(1, 2): 3},
    {"a.b": {"c": [{"d": 2}]}},
    b"\xff\x00",
    {1, 2},
    datetime.date(2020, 1, 1),
    nested(60, lists=True),
    nested(60, lists=False),
]
KEYS = [
    "training",
    "noise",
    "method",
    "data",
    "data_root",
    "labelled_noise",
    "split",
    "scenario",
    "seeds",
    "seed",
    "output",
    "evaluation",
    "resources",
    "checkpoint",
    "tracking",
    "device",
    "fleet",
    "labels",
    "clients",
    "partition",
    "model",
    "base",
    "rate",
    "alpha",
    "lr",
    "rounds",
    "hidden",
    "name",
    "uri",
    "tags",
    "normalise",
    "augment",
    "public",
    "mean",
    "traning",
    "",
    "ключ",
    "x" * 300,
    "a-b",
    "Big",
    "weighting",
]
NOISE = [
    "",
    ":",
    "{",
    "}",
    "[",
    "]",
    "\t",
    "\n",
    "- ",
    "&a ",
    "*a",
    "&b [*b]",
    "&c {name: *c}",
    "%",
    "'",
    '"',
    "\x00",
    "\ufeff",
    "🦊",
    "<<: ",
    "? ",
    "|",
    ">",
    "---\n",
    "...",
    "#",
    "@",
    "~",
    "1e999",
    ".nan",
    "!!python/object:os.system ",
    "!!int x",
    "!!float x",
    "!!map x",
    "!!seq 3",
    "!!set x",
    "!!bool x",
    "!!binary 🦊",
    "!!omap 3",
    "!!pairs 1",
    "!!timestamp 9",
    "2020-99-99",
    "0b2",
    "190:20:30",
]


def places(tree: Tree, above: tuple[Step, ...] = ()) -> Iterator[tuple[Step, ...]]:
    """The path of every value below the root."""
    inner = (
        tree.items()
        if isinstance(tree, dict)
        else enumerate(tree)
        if isinstance(tree, list)
        else ()
    )
    for step, value in inner:
        yield (*above, step)
        yield from places(value, (*above, step))


def holder(tree: Tree, path: tuple[Step, ...]) -> Tree:
    """The container that a path's last step is a key of."""
    for step in path[:-1]:
        tree = tree[step]
    return tree


def replaced(rng: random.Random, at: Tree, key: Step) -> None:
    at[key] = copy.deepcopy(rng.choice(ODD))


def added(rng: random.Random, at: Tree, key: Step) -> None:
    if isinstance(at, dict):
        at[rng.choice(KEYS)] = copy.deepcopy(rng.choice([at[key], *ODD]))
    else:
        at.append(rng.choice(ODD))


def misspelt(rng: random.Random, at: Tree, key: Step) -> None:
    if isinstance(at, dict) and isinstance(key, str) and key:
        cut = rng.randrange(len(key))
        at[key[:cut] + rng.choice("aZ_-.é ") + key[cut + 1 :]] = at.pop(key)


def wrapped(rng: random.Random, at: Tree, key: Step) -> None:
    at[key] = rng.choice([[at[key]], {"name": at[key]}, str(at[key]), [at[key]] * 3])


SPOILERS: list[Callable[[random.Random, Tree, Step], None]] = [
    replaced,
    replaced,
    added,
    misspelt,
    wrapped,
]


def spoilt_values(rng: random.Random) -> str:
    """A configuration with one to three values or keys changed."""
    tree = copy.deepcopy(rng.choice([QUICKSTART, EVERYTHING]))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        path = rng.choice(list(places(tree)))
        rng.choice(SPOILERS)(rng, holder(tree, path), path[-1])
    return yaml.dump(tree, allow_unicode=True)


def spoilt_text(rng: random.Random) -> str:
    """A configuration with pieces of its text overwritten."""
    text = yaml.dump(rng.choice([QUICKSTART, EVERYTHING]))
    for _ in range(rng.randrange(1, 5)):
        start = rng.randrange(len(text) + 1)
        text = text[:start] + rng.choice(NOISE) + text[start + rng.randrange(6) :]
    return text


def verdict(path: Path, *overrides: str) -> str:
    """`valid` or the message of the refusal; whatever else is raised is this test's failure."""
    try:
        found = load_config(path, overrides)
    except (ConfigError, DataError) as refusal:
        return str(refusal)
    assert isinstance(found, Config)
    return "valid"


def readable(message: str, path: Path) -> bool:
    """Short, one that names the file or the value, free of tracebacks, of pydantic's own form and
    of addresses."""
    foreign = re.search(
        r"Traceback|validation error|errors\.pydantic\.dev|For further information|object at 0x",
        message,
    )
    return (
        10 < len(message) < LONGEST
        and foreign is None
        and (str(path.parent) in message or "; got " in message)
    )


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_spoilt_configuration_is_valid_or_refused_clearly(tmp_path: Path, chunk: int) -> None:
    rng = random.Random(chunk)
    path = tmp_path / "run.yaml"
    (tmp_path / "quickstart.yaml").write_text((CONFIGS / "quickstart.yaml").read_text())
    verdicts = []
    for i in range(RUNS // CHUNKS):
        text = spoilt_text(rng) if i % 3 == 0 else spoilt_values(rng)
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            verdicts.append(verdict(path))
        except Exception as error:
            pytest.fail(f"{type(error).__name__}: {error}\nfor\n{text}")
        assert verdicts[-1] == "valid" or readable(verdicts[-1], path), (
            f"{verdicts[-1]}\nfor\n{text}"
        )
    valid = verdicts.count("valid")
    assert 0.02 < valid / len(verdicts) < 0.5, "the spoiling spoils hardly anything, or everything"


@pytest.mark.parametrize("chunk", range(2))
def test_a_spoilt_override_is_valid_or_refused_clearly(chunk: int) -> None:
    rng = random.Random(100 + chunk)
    for _ in range(150):
        key = ".".join(rng.choice(KEYS) for _ in range(rng.choice([1, 2, 2, 3])))
        equals = rng.choice(["=", "=", "=", "", "=="])
        override = f"{key}{equals}{rng.choice(NOISE + [repr(value) for value in ODD])}"
        said = verdict(CONFIGS / "quickstart.yaml", override)
        assert said == "valid" or 10 < len(said) < LONGEST, override
