"""Damage to the files of a run's folder, at random and aimed, and what a resume makes of it."""

from __future__ import annotations

import json
import logging
import random
import shutil
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rayfl
from rayfl.errors import RayflError
from tests.reliability.tally import write_tally

PROMISE = "A resume from a damaged folder gives the undisturbed bits, or a sentence"
ROUNDS = 4
BEFORE = 3
"""After how many rounds the run is resumed."""
SETTINGS: dict[str, Any] = {
    "data": "digits",
    "clients": 4,
    "partition": {"name": "dirichlet", "alpha": 1.0, "min_size": 10},
    "noise": {"name": "symmetric", "rate": 0.4},
    "model": {"name": "mlp", "hidden": [8]},
    # Its clients remember, so that there are files of theirs.
    "method": "scaffold",
    "fleet": "inline",
    "tracking": {"enabled": False},
    "checkpoint": {"min_seconds": 0, "every": 1},
}
SAME, REFUSED = "same bits", "refused"


class Victim:
    """A run that stopped after some rounds, damaged and resumed again and again."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.output = folder / "out"
        self.undisturbed = rayfl.run(self._settings(ROUNDS)).sha256
        self.directory = rayfl.run(self._settings(BEFORE)).directory
        note = {"run_id": "0123456789abcdef", "carried": 3}
        (self.directory / "tracking.json").write_text(json.dumps(note))
        self.kept = folder / "kept"
        shutil.copytree(self.directory, self.kept)
        self.tally: Counter[tuple[str, str]] = Counter()
        self.failures: list[str] = []

    def _settings(self, rounds: int) -> dict[str, Any]:
        training = {"rounds": rounds, "epochs": 1, "batch_size": 64, "lr": 0.1}
        return {**SETTINGS, "output": str(self.output), "training": training}

    def files(self) -> list[Path]:
        """All files of the run, by their paths in its folder."""
        paths = [path.relative_to(self.kept) for path in self.kept.rglob("*") if path.is_file()]
        return sorted(path for path in paths if path.name != "lock")

    def restore(self) -> None:
        shutil.rmtree(self.directory)
        shutil.copytree(self.kept, self.directory)

    def judge(self, kind: str, what: str) -> None:
        """Resume, and note how it ended."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                again = rayfl.run(self._settings(ROUNDS), resume=self.directory)
            rounds = [record["round"] for record in again.history]
            same = again.sha256 == self.undisturbed and rounds == list(range(1, ROUNDS + 1))
            verdict = SAME if same else "OTHER BITS"
        except RayflError:
            verdict = REFUSED
        except Exception:
            verdict = f"TRACEBACK {traceback.format_exc().strip().splitlines()[-1][:80]}"
        self.tally[kind, verdict] += 1
        if verdict not in (SAME, REFUSED):
            self.failures.append(f"{what}: {verdict}")

    # -- at random ---------------------------------------------------------------------------------

    def damage_at_random(self, times: int) -> None:
        """Bytes of any file; now and then of the newest state as well, so that only the checkpoint
        before it is left."""
        files = self.files()
        for number in range(times):
            self.restore()
            file = files[number % len(files)]
            self._spoil(self.directory / file)
            if self.rng.random() < 0.25:
                newest = self.directory / "checkpoints" / f"round-{BEFORE:06d}.state"
                if newest.exists():
                    self._spoil(newest)
            self.judge(kind_of(file), f"random damage {number} of {file}")

    def _spoil(self, path: Path) -> None:
        blob = bytearray(path.read_bytes())
        way = self.rng.random()
        if way < 0.05:
            path.unlink()
            return
        if way < 0.25 or not blob:
            blob = blob[: self.rng.randrange(len(blob) + 1)]
        elif way < 0.3:
            del blob[self.rng.randrange(len(blob))]
        elif way < 0.35:
            blob += bytes(self.rng.randrange(256) for _ in range(8))
        else:
            for _ in range(self.rng.choice([1, 1, 3])):
                blob[self.rng.randrange(len(blob))] ^= 1 << self.rng.randrange(8)
        path.write_bytes(bytes(blob))

    # -- aimed -------------------------------------------------------------------------------------

    def damage_aimed(self, times: int) -> None:
        """Files that are still what they were, but for one value that is another one; files at
        each other's places."""
        places = {file: list(self._places_in(file)) for file in self.files()}
        values = [file for file in self.files() if places[file]]
        exchanges = list(self._exchanges())
        for _ in range(times):
            self.restore()
            if self.rng.random() < 0.7:
                # The newest manifest is what a run believes most.
                file = self.rng.choice([*values, *[self.newest_manifest] * len(values)])
                kind, what = "value", (file, *self.rng.choice(places[file]))
                self.change_value(*what)
            else:
                kind, what = self.rng.choice(exchanges)
                self._exchange(kind, *what)
            self.judge(f"aimed {kind}: {kind_of(what[0])}", f"{kind} {what}")

    @property
    def newest_manifest(self) -> Path:
        return Path("checkpoints", f"round-{BEFORE:06d}.json")

    def _places_in(self, file: Path) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """Line and place of each value in a file that is JSON."""
        if file.suffix in (".json", ".jsonl"):
            for line, content in enumerate((self.kept / file).read_text().splitlines()):
                for place in places_of(json.loads(content)):
                    yield line, place

    def _exchanges(self) -> Iterator[tuple[str, Any]]:
        files = self.files()
        for one in files:
            for other in files:
                if one < other and one.suffix == other.suffix:
                    yield "exchange", (one, other)
                if one != other:
                    yield "copy", (one, other)

    def change_value(self, file: Path, line: int, place: tuple[Any, ...]) -> None:
        """Put another value, or another key, at a place."""
        path = self.directory / file
        lines = path.read_text().splitlines(keepends=True)
        end = "\n" if lines[line].endswith("\n") else ""
        lines[line] = json.dumps(self._changed(json.loads(lines[line]), place)) + end
        path.write_text("".join(lines))

    def edit_manifest(self, place: tuple[str, ...], value: Any) -> None:
        """Another value in the newest manifest; below its top, another key."""
        path = self.directory / self.newest_manifest
        manifest = json.loads(path.read_text())
        *above, last = place
        tree = manifest
        for key in above:
            tree = tree[key]
        if above:
            tree[value] = tree.pop(last)
        else:
            tree[last] = value
        path.write_text(json.dumps(manifest))

    def _exchange(self, kind: str, one: Path, other: Path) -> None:
        first, second = self.directory / one, self.directory / other
        blob = first.read_bytes()
        if kind == "exchange":
            first.write_bytes(second.read_bytes())
        second.write_bytes(blob)

    def _changed(self, tree: Any, place: tuple[Any, ...]) -> Any:
        """The tree with another value, or another key, at a place."""
        if not place:
            return self._another(tree)
        first, *rest = place
        copy = dict(tree) if isinstance(tree, dict) else list(tree)
        if not rest and isinstance(copy, dict) and self.rng.random() < 0.4:
            key = str(self._another(first))
            return {key if name == first else name: copy[name] for name in copy}
        copy[first] = self._changed(copy[first], tuple(rest))
        return copy

    def _another(self, value: Any) -> Any:
        odd = [None, [], {}, "", -1, 1e308, True, "x" * 50, [value], {"a": value}]
        if isinstance(value, bool) or self.rng.random() < 0.3:
            return self.rng.choice(odd)
        if isinstance(value, (int, float)):
            return value + self.rng.choice([-1, 1, 2, 10])
        if isinstance(value, str) and value.isdigit():
            return str(int(value) + self.rng.choice([1, 3, 10]))
        if isinstance(value, str) and value:
            at = self.rng.randrange(len(value))
            return value[:at] + self.rng.choice("abc019/.") + value[at + 1 :]
        return self.rng.choice(odd)


def places_of(tree: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a tree are."""
    yield place
    if isinstance(tree, dict):
        for key, item in tree.items():
            yield from places_of(item, (*place, key))
    elif isinstance(tree, list):
        for number, item in enumerate(tree):
            yield from places_of(item, (*place, number))


def kind_of(file: Path) -> str:
    """What a file is, for the tally."""
    if file.parts[0] != "checkpoints":
        return file.name
    return "client state" if "clients" in file.parts else f"checkpoint {file.suffix}"


def quietly() -> None:
    """No warnings of the hundreds that are expected."""
    logging.getLogger("rayfl").setLevel(logging.CRITICAL)


def main() -> None:
    """`python -m tests.reliability.mutations FOLDER RANDOM AIMED SEED`: the tally, by file."""
    import sys

    folder, at_random, aimed, seed = sys.argv[1:]
    quietly()
    victim = Victim(Path(folder), int(seed))
    victim.damage_at_random(int(at_random))
    victim.damage_aimed(int(aimed))
    for (kind, verdict), count in sorted(victim.tally.items()):
        print(f"{count:5}  {kind:24} {verdict}")
    total: Counter[str] = Counter()
    for (_, verdict), count in victim.tally.items():
        total[verdict] += count
    print(dict(total), *victim.failures, sep="\n")
    drill = f"python -m tests.reliability.mutations FOLDER {at_random} {aimed} {seed}"
    good = total[SAME] + total[REFUSED]
    write_tally("mutations", PROMISE, drill, total.total(), good, {"verdicts": total})


if __name__ == "__main__":
    main()
