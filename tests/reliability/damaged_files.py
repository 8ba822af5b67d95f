"""Damaged files of every kind that is read: each is read, or refused with a sentence.

    python -m tests.reliability.damaged_files --files 20000 --work outputs/damaged

goes on where it was stopped, and writes its tally when it is through."""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rayfl.durable import write_file
from tests.reliability.forked import REFUSED, Outcome, try_cases
from tests.reliability.specimens import SPECIMENS, Specimen
from tests.reliability.tally import write_tally

BATCH = 40
"""Cases of one child."""
MOST_CPU_SECONDS = 1.0
MOST_MB = 1024.0
PROMISE = (
    "A damaged data file is read, or refused with a sentence within a second of one processor, "
    "in less than 1 GB"
)


def damage(content: bytes, rng: random.Random, other: bytes) -> bytes:
    """Another content: cut, longer, shorter, changed in a few places, or mixed with another."""
    blob = bytearray(content)
    way = rng.random()
    if way < 0.12:
        return bytes(blob[: rng.randrange(len(blob) + 1)])
    at = rng.randrange(len(blob))
    if way < 0.2:
        return bytes(blob[:at] + rng.randbytes(rng.randint(1, 30)) + blob[at:])
    if way < 0.28:
        return bytes(blob[:at] + blob[at + rng.randint(1, 40) :])
    if way < 0.33:
        piece = blob[at : at + rng.randint(1, 4096)]
        return bytes(blob[:at] + piece * rng.randint(2, 50) + blob[at:])
    if way < 0.37:
        return bytes(blob[:at] + other[rng.randrange(len(other)) :])
    if way < 0.4:
        return other
    for _ in range(rng.choice([1, 1, 1, 2, 5])):
        _change_place(blob, rng)
    return bytes(blob)


def _change_place(blob: bytearray, rng: random.Random) -> None:
    """Another byte, or an immense number where there may be a size; most often near an end, for
    there are the headers."""
    near = min(len(blob), 400)
    places = (rng.randrange(near), len(blob) - 1 - rng.randrange(near), rng.randrange(len(blob)))
    at = rng.choice(places)
    if rng.random() < 0.25:
        width = rng.choice([2, 4, 8])
        number = rng.choice([0, 1 << 30, (1 << 31) - 1, (1 << 40) + 7, (1 << 64) - 1])
        order = rng.choice(["little", "big"])
        written = (number % (1 << 8 * width)).to_bytes(width, order)  # type: ignore[arg-type]
        blob[at : at + width] = written[: len(blob) - at]
    else:
        odd = [0, 255, 127, blob[at] ^ (1 << rng.randrange(8)), rng.randrange(256)]
        blob[at] = rng.choice(odd)


@dataclass
class Count:
    """What came of the files of one kind."""

    done: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    slowest_cpu_s: float = 0.0
    slowest_wall_s: float = 0.0
    most_grown_mb: float = 0.0
    longest_refusal: int = 0
    survived: int = 0

    def add(self, outcome: Outcome) -> None:
        self.done += 1
        self.verdicts[outcome.verdict] += 1
        self.slowest_cpu_s = max(self.slowest_cpu_s, outcome.cpu_s)
        self.slowest_wall_s = max(self.slowest_wall_s, outcome.wall_s)
        self.most_grown_mb = max(self.most_grown_mb, outcome.grown_mb)
        self.longest_refusal = max(self.longest_refusal, outcome.letters)
        within = outcome.cpu_s <= MOST_CPU_SECONDS and outcome.grown_mb <= MOST_MB
        self.survived += outcome.good and within

    @classmethod
    def read(cls, facts: dict[str, Any]) -> Count:
        return cls(**{**facts, "verdicts": Counter(facts["verdicts"])})


class Workshop:
    """Whole specimens in a folder, which are damaged one after the other."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.files: dict[str, Path] = {}
        self.contents: dict[str, bytes] = {}
        for name, specimen in SPECIMENS.items():
            place = folder / name.replace("/", "-")
            place.mkdir(parents=True)
            self.files[name] = specimen.make(place)
            self.contents[name] = self.files[name].read_bytes()
            # Whatever a reader imports, a child has from here.
            self.read_whole(name)

    def read_whole(self, name: str) -> object:
        return self._specimen(name).read(self._place(name))

    def _specimen(self, name: str) -> Specimen:
        return SPECIMENS[name]

    def _place(self, name: str) -> Path:
        return self.folder / name.replace("/", "-")

    def try_damaged(self, name: str, first: int, count: int) -> Iterator[Outcome]:
        """How the damaged files of these numbers end; each number is one damage, always the
        same."""
        numbers = range(first, first + count)
        cases = [partial(self._read_damaged, name, number) for number in numbers]
        yield from try_cases(cases)
        self.files[name].write_bytes(self.contents[name])

    def _read_damaged(self, name: str, number: int) -> object:
        rng = random.Random(f"{self.seed}/{name}/{number}")
        other = self.contents[rng.choice(sorted(self.contents))]
        self.files[name].write_bytes(damage(self.contents[name], rng, other))
        return self.read_whole(name)


def run_drill(
    work: Path, files: int, seed: int, tell: Callable[[dict[str, Count]], object]
) -> dict[str, Count]:
    """Damage so many files in all, and note after each round how far it came."""
    work.mkdir(parents=True, exist_ok=True)
    note = work / f"damaged-{seed}.json"
    noted = json.loads(note.read_text()) if note.exists() else {}
    counts = {name: Count.read(noted[name]) if name in noted else Count() for name in SPECIMENS}
    each = -(-files // len(SPECIMENS))
    with tempfile.TemporaryDirectory(dir=work) as folder:
        workshop = Workshop(Path(folder), seed)
        # Round by round, so that a drill that is stopped early has seen something of each.
        for goal in range(BATCH, each + BATCH, BATCH):
            for name, count in counts.items():
                for outcome in workshop.try_damaged(name, count.done, min(goal, each) - count.done):
                    count.add(outcome)
            write_file(note, json.dumps({name: vars(count) for name, count in counts.items()}))
            tell(counts)
    return counts


def summarise(counts: dict[str, Count]) -> dict[str, Any]:
    """The figures of all kinds together, and of each."""
    verdicts: Counter[str] = sum((count.verdicts for count in counts.values()), Counter())
    faults = {verdict: n for verdict, n in verdicts.items() if verdict not in ("passed", REFUSED)}
    return {
        "files": sum(verdicts.values()),
        "read": verdicts["passed"],
        "refused": verdicts[REFUSED],
        "tracebacks": sum(n for verdict, n in faults.items() if verdict.startswith("TRACEBACK")),
        "faults": faults,
        "slowest_cpu_s": max(count.slowest_cpu_s for count in counts.values()),
        "slowest_wall_s": max(count.slowest_wall_s for count in counts.values()),
        "most_grown_mb": max(count.most_grown_mb for count in counts.values()),
        "longest_refusal": max(count.longest_refusal for count in counts.values()),
        "kinds": {name: dict(count.verdicts) for name, count in counts.items()},
    }


def main() -> None:
    """The drill as a command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--work", type=Path, default=Path("outputs/damaged"))
    parser.add_argument("--no-tally", action="store_true", help="print it, and write nothing")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    words = f"--files {chosen.files} --seed {chosen.seed}"

    def tell(counts: dict[str, Count]) -> None:
        details = summarise(counts)
        survived = sum(count.survived for count in counts.values())
        print(json.dumps({key: details[key] for key in details if key != "kinds"}), flush=True)
        if not chosen.no_tally:
            drill = f"python -m tests.reliability.damaged_files {words}"
            write_tally("damaged_files", PROMISE, drill, details["files"], survived, details)

    tell(run_drill(chosen.work, chosen.files, chosen.seed, tell))


if __name__ == "__main__":
    main()
