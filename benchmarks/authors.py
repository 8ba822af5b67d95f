"""Runs made again with the functions that a method's authors published, round by round beside ours.

Their code is not here: what it gave is, in results/authors, one file a run."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import click
import numpy as np
import yaml

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "results" / "authors"
PAGE = ROOT / "docs" / "authors.md"
LAST = 10
EVERY = 5

INTRODUCTION = """# Beside the authors' code

A method of ours can be wrong in the same way in its code and in its tests. So runs of the ledger
were made again with the functions that the methods' authors published: on the same saved
federation with the same wrong labels, from the same initial weights, with the same cohorts where
both draw them in the same way. What is random besides (batches, augmentation, mixing, starts of
mixtures) each draws for itself, so that no two accuracies are equal; what counts is where the
curves end, and whether they move together: the correlation of their changes from round to round
says how much, from the first round on whose cohorts are alike. None of their code is in this
repository, nor is the program that called their functions in the order of
theirs: the curves cannot be made again from a clone alone. What is said below a curve besides is
from the logs of both runs. Each is one seed.

Written by `python benchmarks/authors.py --write` from [results/authors](../results/authors).
"""

Run = Mapping[str, Any]
Curve = Mapping[str, Sequence[float]]


@click.command(help=__doc__)
@click.option(
    "--record",
    nargs=3,
    metavar="NAME RUN THEIRS",
    help="Keep a run: its name in runs.yaml, the folder of ours, a JSON list of their accuracies.",
)
@click.option("--write", is_flag=True, help="Write docs/authors.md from what is kept.")
def main(record: tuple[str, str, str] | None, write: bool) -> None:
    if record:
        name, run, theirs = record
        keep_run(name, Path(run), Path(theirs))
    if write:
        runs: dict[str, Run] = yaml.safe_load((KEPT / "runs.yaml").read_text())
        parts = [show_run(run, read_curve(name)) for name, run in runs.items()]
        PAGE.write_text("\n".join([INTRODUCTION, *parts]))


def keep_run(name: str, run: Path, theirs: Path) -> None:
    """One row a round: their accuracy and ours."""
    history = json.loads((run / "result.json").read_text())["history"]
    ours = [record["metrics"].get("test/accuracy") for record in history]
    with (KEPT / f"{name}.csv").open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["round", "theirs", "ours"])
        pairs = zip(json.loads(theirs.read_text()), ours, strict=True)
        for number, (their, our) in enumerate(pairs, 1):
            rows.writerow([number, f"{their:.4f}", "" if our is None else f"{our:.4f}"])


def read_curve(name: str) -> Curve:
    with (KEPT / f"{name}.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["ours"]]
    return {
        "round": [int(row["round"]) for row in rows],
        **{whose: [100 * float(row[whose]) for row in rows] for whose in ("theirs", "ours")},
    }


def show_run(run: Run, curve: Curve) -> str:
    """A section: what was run, the curves, and what they say."""
    both = curve["theirs"], curve["ours"]
    facts = [
        f"- theirs: {run['repository']}, commit `{run['commit']}`, {run['functions']}",
        f"- ours: {run['cell']} of `{run['study']}`, seed {run['seed']}",
        f"- the federation: scenario `{run['scenario']}`",
        f"- alike: {run['alike']}",
        f"- unlike: {run['unlike']}",
    ]
    shown = [
        f"| {number} | {their:.2f} | {our:.2f} |"
        for number, their, our in zip(curve["round"], *both, strict=True)
        if number % EVERY == 0
    ]
    ends = [f"{fmean(values[-LAST:]):.2f}" for values in both]
    apart = fmean(abs(their - our) for their, our in zip(*both, strict=True))
    alike = [values[run["alike_from"] - 1 :] for values in both]
    together = np.corrcoef(np.diff(alike, axis=1))[0, 1]
    said = [
        f"Mean of the last {LAST} rounds: theirs {ends[0]}, ours {ends[1]}; best round: theirs "
        f"{max(both[0]):.2f}, ours {max(both[1]):.2f}; on average a round's two differ by "
        f"{apart:.2f} points; the correlation of changes from round {run['alike_from']} on is "
        f"{together:.2f}.",
        run["says"],
    ]
    head = ["| round | theirs, % | ours, % |", "| ---: | ---: | ---: |"]
    title = f"## {run['title']}"
    return "\n".join([title, "", *facts, "", *head, *shown, "", *said, ""])


if __name__ == "__main__":
    main()
