"""Spoilt configurations: each is accepted, or refused with a sentence.

    python -m tests.reliability.spoilt_configs --configs 5000

tries as many, and the hostile ones besides, and writes its tally."""

from __future__ import annotations

import argparse
import copy
import json
import os
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from rayfl.config.files import read_config
from rayfl.config.schema import (
    Checkpointing,
    Config,
    Evaluation,
    Resources,
    Tracking,
    load_config,
)
from rayfl.learn.training import Training
from tests.reliability.forked import PASSED, REFUSED, Outcome, try_cases
from tests.reliability.tally import write_tally

CONFIGS = Path(__file__).parents[2] / "configs"
BATCH = 100
MOST_CPU_SECONDS = 1.0
MOST_MB = 1024.0
LONGEST_REFUSAL = 20_000
PROMISE = (
    "A configuration is accepted, or refused with a sentence within a second of one processor, in "
    "less than 1 GB"
)
ODD: list[Any] = [
    float("nan"), float("inf"), -float("inf"), 10**400, 10**4200, -1, 0, 1e308, 1e-320, 2**63,
    2**64, -(10**30), "", " ", "\u202e\U0001f4a9", "x" * 200_000, None, True, [], {}, [[[[]]]],
    {"a": {"b": {"c": 1}}}, "../../../../etc/passwd", "file:///etc/passwd", "s3://u:p@x/y",
    "os:system", "builtins:eval", "subprocess:Popen", {"name": "os:system"}, {"name": None},
    {"name": ["x"]}, {"name": "fedavg", "__class__": 1}, "a\x00b", b"bytes", {1: 2}, {None: None},
    "nan", ".inf", "!!python/object/apply:os.system [id]", "2026-01-01", 3.7, "10**9", [1, 2, 3],
    {"fraction": float("nan")}, {"per_class": 10**30}, "0x10", "~nobody/x", "~nobody",
    {"name": "dirichlet", "alpha": float("nan")}, {"name": "symmetric", "rate": float("nan")},
    {"name": "dirichlet", "alpha": 1e-320}, {"x" * 100_000: 1}, "y" * 5000 + ":Z", "a:" * 5000,
    ["x"] * 20_000, {f"k{i}": i for i in range(5000)}, [[0.1] * 300] * 300, "🦊" * 1000,
]  # fmt: skip
SECTIONS = (Training, Evaluation, Resources, Checkpointing, Tracking)
KEYS = [*Config.model_fields, "base", "encoder"]
NAMES = ["name", "alpha", "rate", "min_size", "hidden", "path", "file", "matrix", "key", "side"]
BELOW = [*NAMES, *(name for section in SECTIONS for name in section.model_fields)]
MARKS = [
    ":", "-", "{", "[", "&a ", "*a ", "!!python/object:os.x ", "\t", "\x00", "%", "@", "`", "|",
    ">", "? ", "<<: ", "\n", "!!int ", "!!binary ", "!!set ", "!!omap ", "0x", "1:",
]  # fmt: skip

Tree = dict[str, Any]


# -- at random -------------------------------------------------------------------------------------


def list_bases() -> list[Path]:
    """Configurations of runs that come with rayfl."""
    found = sorted(CONFIGS.rglob("*.yaml"))
    return [path for path in found if not {"sweeps", "paper", "results"} & set(path.parts)]


def spoil_text(seed: int, number: int) -> str:
    """The text of one spoilt configuration; a number is always the same one."""
    rng = random.Random(f"{seed}/{number}")
    tree = read_config(rng.choice(list_bases()))
    for _ in range(rng.randint(1, 3)):
        _spoil_tree(tree, rng)
    text = yaml.safe_dump(tree, allow_unicode=True)
    return _spoil_letters(text, rng) if rng.random() < 0.2 else text


def _spoil_tree(tree: Tree, rng: random.Random) -> None:
    way = rng.random()
    places = list(_places_of(tree))
    if way < 0.55 and places:
        _put(tree, rng.choice(places), copy.deepcopy(rng.choice(ODD)))
    elif way < 0.8:
        below = () if rng.random() < 0.4 else (rng.choice(BELOW),)
        _put(tree, (rng.choice(KEYS), *below), copy.deepcopy(rng.choice(ODD)))
    elif places:
        *above, last = rng.choice(places)
        inner: Any = tree
        for key in above:
            inner = inner.get(key) if isinstance(inner, dict) else None
        if isinstance(inner, dict):
            inner.pop(last, None)


def _places_of(tree: Tree, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, value in tree.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _places_of(value, (*above, key))


def _put(tree: Tree, place: tuple[Any, ...], value: Any) -> None:
    for key in place[:-1]:
        if not isinstance(tree.get(key), dict):
            tree[key] = {"name": tree[key]} if isinstance(tree.get(key), str) else {}
        tree = tree[key]
    tree[place[-1]] = value


def _spoil_letters(text: str, rng: random.Random) -> str:
    letters = list(text)
    for _ in range(rng.randint(1, 5)):
        letters[rng.randrange(len(letters))] = rng.choice(MARKS)
    return "".join(letters)


# -- on purpose ------------------------------------------------------------------------------------


def _laughs(levels: int, width: int, form: str) -> str:
    lines = ["l0: &l0 {k: v}" if form == "{}" else "l0: &l0 [x]"]
    for level in range(1, levels):
        inside = [f"*l{level - 1}"] * width
        if form == "{}":
            inside = [f"k{at}: {alias}" for at, alias in enumerate(inside)]
        lines.append(f"l{level}: &l{level} {form[0]}{', '.join(inside)}{form[1]}")
    return "\n".join([*lines, f"training: *l{levels - 1}"])


def _merges(levels: int) -> str:
    lines = ["m0: &m0 {k: v}"]
    lines += [f"m{at}: &m{at} {{<<: [*m{at - 1}, *m{at - 1}]}}" for at in range(1, levels)]
    return "\n".join([*lines, f"training: *m{levels - 1}"])


HOSTILE: Mapping[str, str] = {
    "an integer of 500,000 hex digits": "seed: 0x" + "f" * 500_000,
    "an integer of 500,000 digits": "seed: " + "9" * 500_000,
    "an integer of 500,000 binary digits": "seed: 0b" + "1" * 500_000,
    "an integer to base 60": "seed: " + "1:" + ":".join(["59"] * 100_000),
    "a float to base 60": "training: {lr: " + "1:" + ":".join(["59"] * 100_000) + ".5}",
    "60,000 unknown keys": "\n".join(f"k{at}: {at}" for at in range(60_000)),
    "60,000 tags": "tracking: {tags: {" + ", ".join(f"k{at}: v" for at in range(60_000)) + "}}",
    "60,000 equal keys": "\n".join(["same: 1"] * 60_000),
    "60,000 numbers that collide": "\n".join(f"{at * ((1 << 61) - 1)}: 1" for at in range(60_000)),
    "10,000 lists in each other": "seed: " + "[" * 10_000 + "]" * 10_000,
    "140,000 lists in each other": "seed: " + "[" * 140_000,
    "140,000 lists below each other": "seed:\n " + "- " * 140_000,
    "10,000 mappings in each other": "seed: " + "{a: " * 10_000 + "1" + "}" * 10_000,
    "10,000 lists below each other": "seed:\n" + "".join("- " * at + "\n" for at in (10_000,)),
    "laughs of lists": _laughs(12, 9, "[]"),
    "laughs of mappings": _laughs(12, 9, "{}"),
    "merges": _merges(24),
    "100,000 aliases": "a: &a [1]\nseed: [" + ", ".join(["*a"] * 100_000) + "]",
    "100,000 anchors": "seed: [" + ", ".join(f"&a{at} 1" for at in range(100_000)) + "]",
    "an alias within itself": "training: &a {x: *a}",
    "an alias that merges itself": "training: &a {<<: *a}",
    "code": "seed: !!python/object/apply:os.system [id]",
    "a tag that does not fit": "seed: !!timestamp nine",
    "three megabytes of text": "output: " + "x" * 3_000_000,
    "eleven megabytes": "output: " + "x" * 11_000_000,
    "a name of 200,000 letters": "method: " + "x" * 200_000,
    "a key of 200,000 letters": "training: {" + "x" * 200_000 + ": 1}",
    "immense nested values": "data: [" + ", ".join(["[1, 2, 3]"] * 50_000) + "]",
    "a hundred wrong sections": "\n".join(f"{key}: [[[1]]]" for key in KEYS),
    "bytes that are no text": "\udcff\udcfe",
}


def _write_hostile(text: str, folder: Path) -> Path:
    path = folder / "hostile.yaml"
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
    return path


def _base_of_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.yaml")
    return _write_hostile("base: pipe.yaml", folder)


def _base_of_device(folder: Path) -> Path:
    return _write_hostile("base: /dev/zero", folder)


def _pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe.yaml")
    return folder / "pipe.yaml"


def _folder(folder: Path) -> Path:
    return folder


def _circle(folder: Path) -> Path:
    for at in range(3):
        (folder / f"{at}.yaml").write_text(f"base: {(at + 1) % 3}.yaml")
    return folder / "0.yaml"


def _chain(folder: Path) -> Path:
    for at in range(300):
        (folder / f"{at}.yaml").write_text(f"base: {at + 1}.yaml")
    return folder / "0.yaml"


def _diamonds(folder: Path) -> Path:
    """Thirty files, each of which names the next one twice: a billion ways through them."""
    for at in range(30):
        (folder / f"{at}.yaml").write_text(f"base: [{at + 1}.yaml, {at + 1}.yaml]")
    (folder / "30.yaml").write_text("nonsense: 1")
    return folder / "0.yaml"


PLACES: Mapping[str, Callable[[Path], Path]] = {
    "a pipe as base": _base_of_pipe,
    "a device as base": _base_of_device,
    "a pipe": _pipe,
    "a folder": _folder,
    "bases in a circle": _circle,
    "three hundred bases": _chain,
    "a billion ways through thirty bases": _diamonds,
}
"""Files that are none, or lead nowhere."""


def list_hostile() -> dict[str, Callable[[Path], Path]]:
    """What is written into an empty folder to be loaded."""
    texts = {name: partial(_write_hostile, text) for name, text in HOSTILE.items()}
    return {**texts, **PLACES}


# -- the drill -------------------------------------------------------------------------------------


def load_all(path: Path) -> object:
    """What every command does with a configuration, from the text to its digest."""
    config = load_config(path)
    return config.resolved(), config.digest


def load_hostile(write: Callable[[Path], Path]) -> object:
    with tempfile.TemporaryDirectory() as folder:
        return load_all(write(Path(folder)))


def load_spoilt(seed: int, number: int) -> object:
    with tempfile.TemporaryDirectory() as folder:
        return load_all(_write_hostile(spoil_text(seed, number), Path(folder)))


def try_spoilt(seed: int, first: int, number: int) -> Iterator[Outcome]:
    """The outcomes of spoilt configurations from one on."""
    yield from try_cases([partial(load_spoilt, seed, first + at) for at in range(number)])


def try_hostile() -> dict[str, Outcome]:
    """The outcomes of all that is made to do harm."""
    hostile = list_hostile()
    outcomes = try_cases([partial(load_hostile, write) for write in hostile.values()])
    return dict(zip(hostile, outcomes, strict=True))


def is_kept(outcome: Outcome) -> bool:
    """Whether an outcome keeps the promise."""
    quick = outcome.cpu_s <= MOST_CPU_SECONDS and outcome.grown_mb <= MOST_MB
    return outcome.good and quick and outcome.letters <= LONGEST_REFUSAL


def run_drill(configs: int, seed: int) -> tuple[list[Outcome], dict[str, Outcome]]:
    """So many spoilt configurations, and all hostile ones."""
    load_all(CONFIGS / "quickstart.yaml")
    for path in list_bases():
        load_all(path)  # whatever a configuration imports, a child has from here
    hostile = try_hostile()
    spoilt: list[Outcome] = []
    for first in range(0, configs, BATCH):
        spoilt += try_spoilt(seed, first, min(BATCH, configs - first))
    return spoilt, hostile


def main() -> None:
    """The drill as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--configs", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-tally", action="store_true", help="print it, and write nothing")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    spoilt, hostile = run_drill(chosen.configs, chosen.seed)
    both = [*spoilt, *hostile.values()]
    verdicts = Counter(outcome.verdict for outcome in both)
    tracebacks = [outcome for outcome in both if outcome.verdict.startswith("TRACEBACK")]
    details = {
        "configurations": len(spoilt),
        "hostile": {name: outcome.verdict for name, outcome in hostile.items()},
        "accepted": verdicts[PASSED],
        "refused": verdicts[REFUSED],
        "tracebacks": len(tracebacks),
        "faults": {v: n for v, n in verdicts.items() if v not in (PASSED, REFUSED)},
        "slowest_cpu_s": max(outcome.cpu_s for outcome in both),
        "slowest_wall_s": max(outcome.wall_s for outcome in both),
        "most_grown_mb": max(outcome.grown_mb for outcome in both),
        "longest_refusal": max(outcome.letters for outcome in both),
        "beyond": {name: vars(each) for name, each in hostile.items() if not is_kept(each)},
    }
    print(json.dumps(details, indent=1))
    if not chosen.no_tally:
        words = f"--configs {chosen.configs} --seed {chosen.seed}"
        drill = f"python -m tests.reliability.spoilt_configs {words}"
        kept = sum(map(is_kept, both))
        write_tally("spoilt_configurations", PROMISE, drill, len(both), kept, details)


if __name__ == "__main__":
    main()
