"""What a row of the conformance table says, and how its toy federation is run.

The promises themselves are `rayfl.testing`'s: methods outside the package keep them too."""

from __future__ import annotations

import importlib
import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.config.files import merge_settings
from rayfl.config.schema import Config, validate_config
from rayfl.fleet.base import BaseFleet
from rayfl.run.engine import Outcome
from rayfl.testing import TOY, Bench, Candidate, Finding
from rayfl.testing.findings import facts_of as facts
from rayfl.testing.places import INLINE_PLACES, run_in, shorten as shortened
from rayfl.testing.promises import iterate_findings
from tests.lent_actors import ACTORS


@dataclass(frozen=True)
class Row:
    """One method (or variant) of the table.

    method    its settings, as in a configuration
    config    what else of the toy configuration it needs (sets, partition, network, rounds ...)
    floor     test accuracy that it must pass on the toy federation, under label noise
    neutral   settings that must give the same bits as `same_as`
    refused   overrides of `method` that must be refused, each with a part of the message
    brief     what makes it quicker where it need not learn
    untried   promises that cannot be tried on it, each with a part of the reason
    """

    name: str
    method: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    floor: float = 0.8
    neutral: Mapping[str, Any] | None = None
    same_as: Mapping[str, Any] | None = None
    refused: Sequence[tuple[Mapping[str, Any], str]] = ()
    brief: Mapping[str, Any] = field(default_factory=dict)
    untried: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    @property
    def candidate(self) -> Candidate:
        learns_on = self.config if self.brief else None
        return Candidate(
            self.method, merge_settings(self.config, self.brief), self.floor, learns_on
        )


def iterate_rows() -> Iterator[Row]:
    """All rows: every method's own test file has some, as `ROWS`."""
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        # Whoever asks for the rows has none itself, and may be half imported.
        if "iterate_rows" not in path.read_text():
            module = importlib.import_module(f"tests.algorithms.{path.stem}")
            yield from getattr(module, "ROWS", [])


def toy_config(
    row: Row, output: Path, method: Mapping[str, Any] | None = None, **more: Any
) -> Config:
    """The toy configuration of a row."""
    own = {"method": dict(method or row.method), "output": str(output), "data_root": str(output)}
    return validate_config(merge_settings(merge_settings(TOY, row.config), {**own, **more}))


def run_toy(
    config: Config, place: str = "inline", directory: str = "checkpoints"
) -> tuple[Outcome, BaseFleet]:
    """Run in one place: `inline`, `reversed`, `late` or `ray1`. Runs of one output folder and
    `directory` are one run, taken up again."""
    uri = str(config.output / directory)
    checkpoint = config.checkpoint.model_copy(update={"uri": uri})
    make_fleet = ACTORS.fleet_maker(1) if place == "ray1" else INLINE_PLACES[place]
    apart = config.model_copy(update={"checkpoint": checkpoint})
    return run_in(apart, make_fleet, config.output / "features")


class Benches:
    """The benches of the table's rows. Runs that several tests need are made once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._benches: dict[str, Bench] = {}

    def find_unkept(self, row: Row, names: Sequence[str]) -> dict[str, str]:
        """Promises of a row that do not hold, with what was found instead."""
        if row.name not in self._benches:
            folder = Path(tempfile.mkdtemp(dir=self.folder))
            self._benches[row.name] = Bench(row.candidate, folder, ACTORS)
        findings = iterate_findings(self._benches[row.name], names)
        return {
            finding.promise.name: f"{finding.status}: {finding.detail}"
            for finding in findings
            if not _is_as_expected(row, finding)
        }


def _is_as_expected(row: Row, finding: Finding) -> bool:
    reason = row.untried.get(finding.promise.name)
    if reason is None:
        return finding.status == "holds"
    return finding.status == "untried" and reason in finding.detail


def model_norms(outcome: Outcome) -> list[float]:
    """One number a model, for golden files."""
    # Rounded once: a BLAS adds up in an order of its own, which differs from processor to
    # processor even where torch computes the same.
    squares = [vector.astype(np.float64) ** 2 for vector in outcome.models.values()]
    return [math.sqrt(math.fsum(each.tolist())) for each in squares]


__all__ = [
    "TOY",
    "Benches",
    "Row",
    "facts",
    "iterate_rows",
    "model_norms",
    "run_toy",
    "shortened",
    "toy_config",
]
