"""The desks of the drill of kills: a folder each, where one command is run, hit and run again."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rayfl.config.files import merge_settings
from rayfl.testing import TOY
from rayfl.tracking.store import open_client
from tests.algorithms.conformance import iterate_rows
from tests.mlflow_server import MlflowServer
from tests.nodes import Node, head_node, worker_node
from tests.reliability.clean_shell import Command
from tests.reliability.drills import Comparable, comparable, noted

SEED = 1
METHODS = (
    "fedavg",
    "fedprox",
    "scaffold",
    "moon",
    "fedds",
    "fedrn",
    "co_teaching",
    "fb_nll",
    "fedcorr",
    "semifl",
)
TARGETS: Mapping[str, Sequence[str]] = {
    "run": ("actor", "coordinator", "driver", "raylet", "gcs"),
    "kept run": ("keeper", "actor", "coordinator"),
    "tracked run": ("mlflow server", "driver"),
    "two nodes": ("actor", "coordinator", "driver", "worker raylet"),
    "sweep": ("trial", "driver", "raylet", "gcs"),
    "study": ("actor", "coordinator", "driver", "raylet"),
}
"""Of each kind of command, the processes that are killed."""
KILLS = 3
ROUNDS = 40
JOURNAL = "journal.jsonl"
NOT_OF_A_ROUND = ("time/", "system/", "best/", "last10/")
"""What a clock measured, and what is said of a run at its end."""


@dataclass(frozen=True)
class Kill:
    """What is killed, and when."""

    target: str
    share: float
    """Of the command's rounds, after which the process is looked for."""
    delay: float
    """Seconds after that."""


@dataclass(frozen=True)
class Sortie:
    """One command, and the kills that it meets, one after another."""

    number: int
    command: str
    method: str
    kills: tuple[Kill, ...] = ()

    @classmethod
    def draw(cls, number: int) -> Sortie:
        """The sortie of this number."""
        rng = random.Random(SEED * 1_000_003 + number)
        command = rng.choice(list(TARGETS))
        method = rng.choice(METHODS)
        shares = sorted(rng.uniform(0, 0.9) for _ in range(KILLS))
        kills = [Kill(rng.choice(TARGETS[command]), share, rng.uniform(0, 0.3)) for share in shares]
        return cls(number, command, method, tuple(kills))

    @property
    def kind(self) -> str:
        """Of the undisturbed command: all single runs come to the same."""
        return self.command if self.command in ("sweep", "study") else "run"


class Desk:
    """A folder in which one command is run, killed, and run again.

    Parameters
    ----------
    folder : Path
        Where everything of it lies.
    sortie : Sortie
        Says which command of which method.
    """

    def __init__(self, folder: Path, sortie: Sortie) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.sortie = sortie
        self.starts = 0
        self.address: str | None = None
        self.worker: Node | None = None
        self.server: MlflowServer | None = None

    @contextmanager
    def opened(self, fleet: str) -> Iterator[Desk]:
        """With the servers and nodes that the command wants; `inline` for the undisturbed one."""
        if self.sortie.command == "tracked run" and fleet == "ray":
            with self._serve():
                yield self._lay_out(fleet)
        elif self.sortie.command == "two nodes" and fleet == "ray":
            # The head has no room for actors.
            with (
                head_node("--num-cpus", "1") as (_, self.address, folder),
                worker_node(self.address, folder, "--num-cpus", "1") as self.worker,
            ):
                yield self._lay_out(fleet)
        else:
            yield self._lay_out(fleet)

    @contextmanager
    def _serve(self) -> Iterator[None]:
        self.server = MlflowServer(self.folder / "server")
        self.server.start()
        try:
            yield
        finally:
            self.server.kill()

    def _lay_out(self, fleet: str) -> Desk:
        for name, content in _list_files(self.sortie, fleet, self.server).items():
            (self.folder / name).write_text(yaml.safe_dump(content))
        return self

    def start(self) -> Command:
        """The command, for the first time or once more."""
        words = {
            "sweep": ["sweep", "sweep.yaml", *(["--resume"] if self._has_begun() else [])],
            "study": ["study", "study.yaml", "-o", "out", "--ledger", "none", "--yes"],
        }.get(self.sortie.command, ["run", "run.yaml", "--resume", "auto"])
        self.starts += 1
        there = [] if self.address is None else ["--address", self.address]
        return Command(self.folder, *words, *there)

    def _has_begun(self) -> bool:
        return any(self.folder.glob("out/sweeps/*/sweep.yaml"))

    def count_rounds(self) -> int:
        """How many rounds all runs of the command have noted."""
        # Unlike a pattern, a walk bears that folders go meanwhile: Tune drops old checkpoints.
        places = os.walk(self.folder / "out")
        journals = [Path(top) / JOURNAL for top, _, files in places if JOURNAL in files]
        kinds = [entry["kind"] for journal in journals for entry in noted(journal)]
        return kinds.count("metrics")

    def gather(self) -> list[Comparable]:
        """What all runs of the command came to."""
        return gather_runs(self.folder)

    def is_tracked_whole(self) -> bool:
        """Whether the server, if there is one, has every metric of every round once, after `sync`
        if it was away."""
        if self.server is None:
            return True
        if self.server.process is None:
            self.server.start()
        synced = Command(self.folder, "sync", "-o", "out", "--uri", self.server.uri)
        return synced.process.wait() == 0 and self._list_tracked() == self._list_expected()

    def _list_expected(self) -> list[tuple[str, int, float]]:
        ((_, history),) = self.gather()
        return sorted(
            (key, row["round"], value)
            for row in history
            for key, value in row.items()
            if key != "round"
        )

    def _list_tracked(self) -> list[tuple[str, int, float]]:
        """As the server has it, whatever is there twice twice."""
        assert self.server is not None
        client = open_client(self.server.uri)
        experiments = [one.experiment_id for one in client.search_experiments()]
        (run,) = client.search_runs(experiments)
        return sorted(
            (key, point.step, point.value)
            for key in run.data.metrics
            if not key.startswith(NOT_OF_A_ROUND)
            for point in client.get_metric_history(run.info.run_id, key)
        )


def gather_runs(folder: Path) -> list[Comparable]:
    """Models and metrics of all runs of a desk, in an order that does not depend on when they
    ran."""
    found = [comparable(path.parent) for path in folder.glob("out/**/result.json")]
    return sorted(found, key=lambda one: one[0])


def _list_files(sortie: Sortie, fleet: str, server: MlflowServer | None) -> dict[str, Any]:
    """The configurations of a desk."""
    row = next(row for row in iterate_rows() if row.name == sortie.method)
    run = merge_settings(merge_settings(TOY, row.config), {"method": dict(row.method)})
    resources = {"actors": 2, "cpus_per_client": 0.5, "keepers": int(sortie.command == "kept run")}
    places = {"resources": resources, "device": "cpu", "fleet": fleet}
    own = {"training": {"rounds": ROUNDS}, "output": "out", "data_root": "."}
    tracking = {} if server is None else {"tracking": {"enabled": True, "uri": server.uri}}
    run = merge_settings(run, {**places, **own, **tracking})
    sweep = {
        "name": "kills",
        "set": run,
        "search": {"training.lr": {"grid": [0.1, 0.2]}},
        "over": "final",
        "at_once": 2,
    }
    study = {
        "title": "Kills",
        "set": run,
        "axes": {
            "lr": {f"lr{lr}": {"title": f"{lr}", "set": {"training.lr": lr}} for lr in (0.1, 0.2)}
        },
        "scores": {"s": {"title": "S", "metric": "test/accuracy"}},
        "table": {"rows": ["lr"], "columns": ["score"]},
        "seeds": [0],
    }
    return {"run.yaml": run, "sweep.yaml": sweep, "study.yaml": study}
