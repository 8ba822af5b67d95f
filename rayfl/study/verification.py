"""Rows of the ledger made again: the same configuration and scenario must give the same model,
where code, libraries and processor are the same."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rayfl.bits import BitsError
from rayfl.config.schema import Config
from rayfl.errors import ConfigError, RayflError, broken
from rayfl.ledger.ledger import Ledger
from rayfl.ledger.rows import Row
from rayfl.run.environment import (
    code_commit,
    cpu_capability,
    describe_environment,
    is_same_code,
)
from rayfl.run.experiment import Result, run as run_experiment
from rayfl.study.order import StudyOrder

MUST_AGREE = ("python", "numpy", "torch", "capability")
"""What decides bits beside the code and the configuration."""
HERE = ("fleet=inline", "tracking.enabled=false")
"""Where a run takes place never changes what comes out."""
SHOWN = 12

Kind = Literal["equal", "differs", "cannot be compared"]
Say = Callable[[str], object]


@dataclass(frozen=True)
class RepeatVerdict:
    """How a repetition of a row compares with it."""

    row: Row
    kind: Kind
    reasons: tuple[str, ...] = ()

    @property
    def is_failure(self) -> bool:
        """Whether the same run came out differently, which it must not."""
        return self.kind == "differs"

    def __str__(self) -> str:
        why = f" ({'; '.join(self.reasons)})" if self.reasons else ""
        return f"{self.kind}: {self.row.shorten()}{why}"


def draw_rows(ledger: Ledger, count: int, seed: int, study: str | None = None) -> list[Row]:
    """So many different rows, of one study or of all; the same seed draws the same ones."""
    there = list(ledger) if study is None else ledger.of_study(study)
    if not there:
        rule = "--verify repeats rows of the ledger"
        which = "" if study is None else f" of {study}"
        raise ConfigError(broken(rule, f"none{which} in {ledger.folder}", "Write some: --record."))
    ordered = sorted(there, key=lambda row: (row.study, row.key))
    return random.Random(seed).sample(ordered, min(count, len(ordered)))


def verify_rows(
    rows: Sequence[Row],
    ledger: Ledger,
    say: Say,
    output: Path | None = None,
) -> list[RepeatVerdict]:
    """Repeat rows one after the other, in this process.

    Parameters
    ----------
    ledger
        Whose rows they are: its checkout has the studies' files.
    say
        Told of every verdict as it falls, and of their counts.
    output
        Where the runs go; by default into a folder that is gone at the end."""
    verdicts = []
    with _open_output(output) as folder:
        for number, row in enumerate(rows, start=1):
            say(f"[{number}/{len(rows)}] {row.shorten()}")
            verdicts.append(verify_row(row, ledger.root, folder))
            say(f"  {verdicts[-1]}")
    kinds = [verdict.kind for verdict in verdicts]
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    say(", ".join(f"{count} {kind}" for kind, count in counts.items()))
    return verdicts


@contextmanager
def _open_output(output: Path | None) -> Iterator[Path]:
    if output is not None:
        yield output.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="rayfl-verify-") as folder:
        yield Path(folder)


def verify_row(row: Row, root: Path, output: Path) -> RepeatVerdict:
    """Repeat one row, and compare."""
    try:
        config = _find_config(row, root, output)
        result = run_experiment(config)
    except BitsError:  # of this process, not of the row
        raise
    except RayflError as error:
        return RepeatVerdict(row, "cannot be compared", (str(error),))
    return _compare(row, result, find_differences(row))


def _find_config(row: Row, root: Path, output: Path) -> Config:
    """The configuration of a row's run, which must be what it was."""
    order = StudyOrder(
        root / row.file,
        only=tuple(f"{axis}={name}" for axis, name in row.axes.items()),
        seeds=(row.seed,),
        scale=row.scale,
        output=output,
        overrides=(*row.overrides, *HERE),
    )
    cells = [cell for cell in order.cells if dict(cell.choices) == dict(row.axes)]
    if len(cells) != 1:
        rule = "a row's cell is one of its study"
        raise ConfigError(broken(rule, row.cell, "The study has changed since."))
    config = order.configuration(cells[0], row.seed).config
    if config.digest != row.digest or config.training.rounds != row.rounds:
        rule = f"a row's configuration is what it was ({row.digest[:SHOWN]}, {row.rounds} rounds)"
        got = f"{config.digest[:SHOWN]}, {config.training.rounds} rounds"
        raise ConfigError(broken(rule, got, "The study, or a default, has changed since."))
    return config


def _compare(row: Row, result: Result, differences: Sequence[str]) -> RepeatVerdict:
    """Equal is equal, wherever it was made; what is not may have a reason."""
    if (result.scenario_sha256, result.sha256) == (row.scenario, row.model):
        return RepeatVerdict(row, "equal", tuple(differences))
    same_data = result.scenario_sha256 == row.scenario
    told = "" if same_data else f"scenario {row.scenario[:SHOWN]} there"
    hashes = f"model {row.model[:SHOWN]} there, {result.sha256[:SHOWN]} here"
    kind: Kind = "cannot be compared" if differences else "differs"
    return RepeatVerdict(row, kind, tuple(filter(None, (hashes, told, *differences))))


def find_differences(row: Row) -> list[str]:
    """What the row's run stood on that is not so here, in words."""
    here = {**describe_environment(), "capability": cpu_capability()}
    found = []
    for name in MUST_AGREE:
        there = row.environment.get(name, "")
        if there != here[name]:
            found.append(f"{name} {there or 'unknown'} there, {here[name]} here")
    commit = row.environment.get("commit", "") or "unknown"
    same = is_same_code(commit)
    if same is None:
        found.append(f"commit {commit} there, {code_commit()} here: not to be compared")
    elif not same:
        found.append(f"other code: commit {commit} there, {code_commit()} here")
    return found
