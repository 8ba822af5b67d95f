"""Speed against plain PyTorch loops, one Ray call per client, and other simulators.

    python benchmarks/speed.py                                       everything: half an hour
    python benchmarks/speed.py --quick                               a first look, about 5 minutes
    python benchmarks/speed.py --workload w3 --against bare2,pfl     one workload, some opponents
    python benchmarks/speed.py --workload w6-methods --write         what every method costs
    python benchmarks/speed.py --document                            the document alone, no runs

Arrays, reference accuracies and the environments of the peers lie in ~/.cache/rayfl/bench (or
RAYFL_BENCH); the races of the last runs in outputs/speed. `--write` writes docs/performance.md from
them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import click
from speed_suite.document import kept, targets, write
from speed_suite.federation import Federation
from speed_suite.measure import SYSTEMS, Failed
from speed_suite.method_costs import KEY as METHODS_KEY, measure_rows
from speed_suite.method_rows import ROWS
from speed_suite.method_table import replace_section, show_methods
from speed_suite.methods import em_seconds, overheads
from speed_suite.race import NotTheSame, race
from speed_suite.workloads import WORKLOADS, Workload, prepared, quickened

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
KEYS = (*WORKLOADS, METHODS_KEY)


def chosen(
    workload: Workload,
    against: str | None,
    ours: str | None,
) -> list[str]:
    """The systems of one workload: its own, or those of the command line."""
    # Others do not run the methods of these.
    if workload.key == "w6" or "-" in workload.key:
        return list(workload.systems)
    mine = [name for name in workload.systems if name.startswith("rayfl")]
    others = [name for name in workload.systems if name not in mine]
    found = [*named(against, others), *named(ours, mine)]
    unknown = sorted(set(found) - set(SYSTEMS))
    if unknown:
        raise click.BadParameter(f"systems are {', '.join(SYSTEMS)}; got {unknown[0]}")
    return found


def named(text: str | None, otherwise: list[str]) -> list[str]:
    return otherwise if text is None else [name for name in text.split(",") if name]


def expand(text: str) -> list[str]:
    """The workloads of the command line; `w3` stands for its other methods too."""
    keys: list[str] = []
    for key in text.split(","):
        if key not in KEYS:
            raise click.BadParameter(f"workloads are {', '.join(KEYS)}; got {key}")
        keys += [key, *(name for name in KEYS if name.startswith(f"{key}-"))]
    return list(dict.fromkeys(keys))


def adjusted(workload: Workload, quick: bool, rounds: int | None) -> Workload:
    found = quickened(workload) if quick else workload
    return (
        found
        if rounds is None
        else replace(found, rounds={"": rounds}, warmup={"": max(rounds // 4, 1)})
    )


def with_method_costs(workload: Workload, found: dict[str, Any]) -> dict[str, Any]:
    """W6's figures are computed from the records of its runs."""
    federation = Federation.load(prepared(workload))
    iterations = median(
        record["reliability/em_iterations"] for record in found["systems"]["fedds"]["rounds_log"]
    )
    public = workload.config["split"]["public"]["total"]
    em = em_seconds(
        public, federation.cohorts.shape[1], federation.settings.classes, int(iterations)
    )
    return {**found, "overheads": overheads(found["systems"], em)}


def with_memory(found: dict[str, Any], workload: Workload) -> dict[str, Any]:
    """One more run of rayfl whose coordinator notes its memory; it is in no table of times."""
    watched = race(
        replace(workload, rounds={"": 60}, warmup={"": 0}),
        ["rayfl-watched"],
        1,
        click.echo,
    )
    return {**found, "systems": {**found["systems"], **watched["systems"]}}


def report(found: Mapping[str, Any]) -> None:
    """The aims that this workload speaks to."""
    key = str(found["key"])
    for line in targets({key: found})[4:]:
        if line and "not measured" not in line:
            click.echo("  " + line)


@click.command(help=__doc__)
@click.option(
    "--workload",
    "keys",
    default=",".join(KEYS),
    show_default=True,
)
@click.option(
    "--against",
    help="Opponents, of bare1,bare2,naive,flower,pfl; by default those of each workload.",
)
@click.option(
    "--ours",
    help="Variants of rayfl: rayfl, and with -bf16, -stacked, -inline or -tracked behind it.",
)
@click.option("--repeats", default=3, show_default=True)
@click.option(
    "--rounds", type=int, help="As many rounds for every system, in place of each workload's own."
)
@click.option("--quick", is_flag=True, help="One repetition of smaller workloads.")
@click.option("--write", "wanted", is_flag=True, help="Write docs/performance.md.")
@click.option("--document", is_flag=True, help="Write it from the last races, without any run.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=ROOT / "outputs" / "speed",
    show_default=True,
)
def main(
    keys: str,
    against: str | None,
    ours: str | None,
    repeats: int,
    rounds: int | None,
    quick: bool,
    wanted: bool,
    document: bool,
    output: Path,
) -> None:
    output.mkdir(parents=True, exist_ok=True)
    store = output / ("quick.json" if quick else "races.json")
    races = kept(store)
    command = shlex.join(["python", "benchmarks/speed.py", *sys.argv[1:]])
    for key in [] if document else expand(keys):
        counted = 1 if quick else repeats
        try:
            if key == METHODS_KEY:
                found = measure_rows(ROWS, counted, click.echo)
            else:
                workload = adjusted(WORKLOADS[key], quick, rounds)
                found = race_on(workload, chosen(workload, against, ours), counted)
        except (Failed, NotTheSame) as reason:
            raise click.ClickException(str(reason)) from reason
        races[key] = {**found, "command": command}
        store.write_text(json.dumps(races))
        report(races[key])
    if wanted or document:
        write_page(races)


def race_on(workload: Workload, systems: list[str], repeats: int) -> dict[str, Any]:
    """One workload, with what only some of them are asked."""
    click.echo(f"{workload.key}: {workload.title}")
    found = race(workload, systems, repeats, click.echo)
    if workload.key == "w6":
        return with_method_costs(workload, found)
    return with_memory(found, workload) if workload.key == "w4" else found


def write_page(races: Mapping[str, Any]) -> None:
    """The whole page, or the one section that was measured without any other."""
    if set(races) == {METHODS_KEY}:
        replace_section(PAGE, show_methods(races[METHODS_KEY]))
    else:
        write(PAGE, races)


if __name__ == "__main__":
    main()
