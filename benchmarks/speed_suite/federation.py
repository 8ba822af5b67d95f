"""The saved arrays of a workload, as every system reads them. Needs numpy alone, for it runs in
every environment."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MARK = "RESULT "
"""What the one line of a system begins with; libraries print others."""

ARRAYS = ("x", "y", "offsets", "test_x", "test_y", "cohorts")
FEDAVG = {"name": "fedavg"}


@dataclass(frozen=True)
class Settings:
    """Local training, the same in every system: plain SGD over whole epochs, pixels divided by
    255."""

    network: str
    classes: int
    lr: float
    momentum: float
    epochs: int
    batch_size: int
    drop_last: bool
    """Whether a last batch that is not full is left out."""
    method: Mapping[str, Any] = field(default_factory=FEDAVG.copy)
    """rayfl's section of that name. Only the plain loops know others than federated averaging."""


@dataclass(frozen=True)
class Federation:
    """Client k owns rows offsets[k] : offsets[k + 1] of `x` and `y`; `cohorts` has a row of clients
    a round."""

    x: NDArray[np.uint8]
    y: NDArray[np.int64]
    offsets: NDArray[np.int64]
    test_x: NDArray[np.uint8]
    test_y: NDArray[np.int64]
    cohorts: NDArray[np.int64]
    initial: Sequence[NDArray[np.float32]]
    settings: Settings
    public_x: NDArray[np.uint8] | None = None
    """The server's unlabelled images, where the workload has some."""

    def rows(self, client: int) -> slice:
        """A client's samples, which lie together."""
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))

    def size(self, client: int) -> int:
        return int(self.offsets[client + 1] - self.offsets[client])

    @property
    def clients(self) -> int:
        return len(self.offsets) - 1

    def samples(self, first: int, last: int) -> int:
        """How many samples rounds first .. last - 1 train on, epochs included."""
        visited = self.cohorts[first:last].ravel()
        return self.settings.epochs * int((self.offsets[visited + 1] - self.offsets[visited]).sum())

    def save(self, folder: Path) -> None:
        for name in ARRAYS:
            np.save(folder / f"{name}.npy", getattr(self, name))
        if self.public_x is not None:
            np.save(folder / "public_x.npy", self.public_x)
        np.savez(folder / "initial.npz", *self.initial)
        # Last: a folder that has it is whole.
        (folder / "settings.json").write_text(json.dumps(asdict(self.settings)))

    @classmethod
    def load(cls, folder: Path) -> Federation:
        """The images are mapped, so that processes share them."""
        arrays: dict[str, Any] = {
            name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in ARRAYS
        }
        if (folder / "public_x.npy").exists():
            arrays["public_x"] = np.load(folder / "public_x.npy", mmap_mode="r")
        with np.load(folder / "initial.npz") as saved:
            initial = [saved[name] for name in saved.files]
        settings = Settings(**json.loads((folder / "settings.json").read_text()))
        return cls(**arrays, initial=initial, settings=settings)


@dataclass
class Clock:
    """Wall-clock times of one system: the command's start, the first round's, and the end of every
    round."""

    started: float
    warmup: int
    begun: float = 0.0
    ends: list[float] = field(default_factory=list)

    def begin(self) -> None:
        self.begun = time.time()

    def tick(self) -> None:
        self.ends.append(time.time())

    def facts(self) -> dict[str, float]:
        """Seconds a round after the warm-up, from the command to the first round, and in all."""
        first = self.ends[self.warmup - 1] if self.warmup else self.begun
        rounds = len(self.ends) - self.warmup
        return {
            "seconds": (self.ends[-1] - first) / rounds,
            "startup": self.begun - self.started,
            "total": self.ends[-1] - self.started,
            "rounds": float(len(self.ends)),
        }


def answer(**facts: Any) -> None:
    """The one line that the suite reads."""
    print(MARK + json.dumps(facts), flush=True)


def arguments() -> argparse.Namespace:
    """What every system is told."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--started", type=float, required=True)
    parser.add_argument("--variant", default="")
    parser.add_argument("--marks", default="")
    return parser.parse_args()


def moved(now: Iterable[NDArray[Any]], before: Iterable[NDArray[Any]]) -> float:
    """Euclidean distance of two lists of arrays: tells of steps left out or taken twice where
    accuracy cannot."""
    squares = [
        float(((a - b).astype(np.float64) ** 2).sum()) for a, b in zip(now, before, strict=True)
    ]
    return float(np.sqrt(sum(squares)))
