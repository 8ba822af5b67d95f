"""docs/performance.md from the last race of every workload."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from speed_suite.method_costs import KEY as METHODS_KEY
from speed_suite.method_table import show_methods
from speed_suite.targets import STACKED, TARGETS, Races, Target, training_seconds

NAMES = {
    "bare1": "plain PyTorch, 1 process x 2 threads",
    "bare2": "plain PyTorch, 2 processes x 1 thread",
    "naive": "one Ray call per client",
    "flower": "Flower",
    "pfl": "pfl-research, 2 processes",
    "rayfl": "**rayfl**",
    "rayfl-bf16": "**rayfl**, precision bf16",
    "rayfl-stacked": "**rayfl**, stack auto",
    "rayfl-channels-first": "**rayfl**, layout channels_first",
    "rayfl-reached": "**rayfl**, kernels reached",
    "rayfl-inline": "rayfl, fleet inline, 2 threads",
    "rayfl-tracked": "rayfl with MLflow and checkpoints",
    "rayfl-watched": "rayfl, its coordinator watched",
    "fedavg": "FedAvg",
    "fedds": "FedDS",
    "fedrn": "FedRN",
}
PREAMBLE = """\
# Performance

Written by `python benchmarks/speed.py --write`. All systems of a table ran in turns (A B C A B C),
each in a process of its own, on the same saved arrays, from the same weights, with the same
cohorts, batch sizes, steps and optimiser, and without evaluation between rounds. A system whose
final accuracy, or whose distance from the initial weights, differs from the plain loop's would have
stopped the suite. Figures are medians. Only ratios within one table mean anything: absolute times
depend on who else uses the machine.

Memory is the peak of the proportional set size, summed over the process tree. "Start" is from the
command to the first round. rayfl runs on Ray with two actors of one thread, without MLflow and
checkpoints, which the others lack as well.
"""


ON_W3_NOTE = """\
W3 with another method, each raced in turns with a plain loop of two processes that runs the same
one; a test holds that both compute the same weights. A round is whole: FedProx's one step begins
where it is pulled to, and the pull is computed none the less; SCAFFOLD's includes the clients'
control variates and their way to and from the actors. FedDS's votes on 200 public images and its EM
are subtracted from both (from the end of the last client's training to the weights being known, by
the clock of the process that leads), and stand in a column of their own; `runs` have them. Local
training is a process's work on its clients, the rest of the round left out: of the plain loop's
leading process by its clock, of rayfl `train` below, in which FedDS's votes are.
"""


def write(path: Path, races: Races) -> None:
    lines = [PREAMBLE, *targets(races)]
    varied = [races[key] for key in sorted(races) if key.startswith("w3-")]
    for key in sorted(races.keys() - {METHODS_KEY, *(race["key"] for race in varied)}):
        lines += methods(races[key]) if key == "w6" else section(races[key])
        if key == "w3" and varied:
            lines += methods_on_w3(varied)
    if METHODS_KEY in races:
        lines += show_methods(races[METHODS_KEY])
    path.write_text("\n".join(lines).rstrip() + "\n")


def targets(races: Races) -> list[str]:
    """Every aim with what was measured."""
    lines = ["## Aims", "", row(["", "measured", "aim", ""]), row(["---"] * 4)]
    return [*lines, *(aimed(target, races) for target in TARGETS), ""]


def aimed(target: Target, races: Races) -> str:
    value = target.read(races)
    aim = f"{'>=' if target.more else '<='} {target.aim:g} {target.unit}"
    if value is None:
        return row([target.title, "not measured", aim, ""])
    return row(
        [
            target.title,
            f"{value:.3g} {target.unit}",
            aim,
            "met" if target.met(value) else "**missed**",
        ]
    )


def section(race: Mapping[str, Any]) -> list[str]:
    """One workload: a row a system, and where rayfl's rounds went."""
    head = [
        "system",
        "ms a round",
        "rayfl is",
        "samples/s",
        "accuracy",
        "start, s",
        "peak, MB",
        "runs, ms",
    ]
    lines = heading(race)
    lines += [row(head), row(["---"] + ["---:"] * (len(head) - 1))]
    lines += [row(cells(race["systems"], name)) for name in ordered(race["systems"])]
    lines += [""] + [f"- {NAMES.get(name, name)}: {why}" for name, why in race["absent"].items()]
    return [*lines, *splits(race["systems"]), *provenance(race)]


def heading(race: Mapping[str, Any]) -> list[str]:
    return [f"## {race['key'].upper()}", "", f"{race['title']}.", ""]


def ordered(systems: Mapping[str, Any]) -> list[str]:
    """Slowest first, without the run that was made for its memory."""
    return sorted(
        systems.keys() - {"rayfl-watched"}, key=lambda name: -float(systems[name]["seconds"])
    )


def cells(systems: Mapping[str, Any], name: str) -> list[str]:
    found = systems[name]
    ours = systems.get("rayfl")
    ratio = (
        "-"
        if ours is None or name == "rayfl"
        else f"{found['seconds'] / ours['seconds']:.2f} x as fast"
    )
    runs = " ".join(f"{1000 * seconds:.4g}" for seconds in found["all_seconds"])
    return [
        NAMES.get(name, name),
        f"{1000 * found['seconds']:.4g}",
        ratio,
        f"{found['samples_per_second']:,.0f}",
        f"{found['accuracy']:.4f}",
        f"{found['startup']:.1f}",
        f"{found['peak_mb']:.0f}",
        runs,
    ]


def splits(systems: Mapping[str, Any]) -> list[str]:
    """Where an average round of each rayfl variant went, in milliseconds."""
    shown = {
        name: found
        for name, found in systems.items()
        if "split" in found and name != "rayfl-watched"
    }
    ours = {name: {**found["split"], "evaluate": tested(found)} for name, found in shown.items()}
    if not ours:
        return []
    first = ["train", "idle", "between"]
    known = {"train_s", "busy_s"}
    more = sorted({name for part in ours.values() for name in part} - known - set(first))
    head = ["ms of a round", *first, *(name.removesuffix("_s") for name in more)]
    lines = [row(head), row(["---"] + ["---:"] * (len(head) - 1))]
    for name, part in ours.items():
        lines.append(
            row(
                [
                    NAMES.get(name, name),
                    *(f"{1000 * part.get(key, 0.0):.3g}" for key in [*first, *more]),
                ]
            )
        )
    note = (
        "`train` is the work of the phases over the actors, `idle` the rest of the method's round, "
        "`between` what lies between two rounds; `evaluate`, the work of the only test over the "
        "actors, comes after the last round and is not timed."
    )
    return [*lines, "", note, ""]


def tested(found: Mapping[str, Any]) -> float:
    """Seconds of the test after the last round, divided by the actors as those of the training
    are."""
    busy = found["split"]["busy_s"]
    actors = busy / found["split"]["train"] if busy else 1.0
    return float(found["rounds_log"][-1].get("time/evaluate_s", 0.0) / actors)


def methods(race: Mapping[str, Any]) -> list[str]:
    """W6: methods over their cost models."""
    found = race["overheads"]
    base = found["fedavg"]
    head = ["method", "ms a round", "over FedAvg", "its cost model, ms", "over its cost model"]
    lines = [*heading(race), row(head), row(["---"] + ["---:"] * (len(head) - 1))]
    lines.append(row(["FedAvg", f"{1000 * base['measured']:.4g}", "1", "-", "-"]))
    for name in ("fedds", "fedrn"):
        own = found[name]
        ratios = [
            f"{own['measured'] / base['measured']:.2f}",
            f"{1000 * own['predicted']:.4g}",
            f"{own['ratio']:.2f}",
        ]
        lines.append(row([NAMES[name], f"{1000 * own['measured']:.4g}", *ratios]))
    passes = (
        f"{1e6 * base['forward']:.1f} and {1e6 * base['backward']:.1f} microseconds of an actor"
    )
    note = (
        "From FedAvg's rounds in the same race: a forward and a backward pass of one sample take "
        f"{passes}; one EM takes {1000 * base['em']:.1f} ms."
    )
    return [*lines, "", note, "", *provenance(race)]


def methods_on_w3(races: Sequence[Mapping[str, Any]]) -> list[str]:
    """W3 with other methods: stacked rayfl against the plain loop that runs the same one."""
    head = [
        "method",
        "bare2, ms a round",
        "rayfl, stack auto, ms",
        "votes and EM, ms",
        "times as fast",
        "local training, ms",
        "times as fast",
        "accuracy",
        "runs, ms",
    ]
    lines = ["### Other methods on W3", "", ON_W3_NOTE, row(head)]
    lines.append(row(["---"] + ["---:"] * (len(head) - 1)))
    lines += [row(method_cells(race)) for race in races]
    splits_of = {race["title"]: race["systems"][STACKED] for race in races}
    return [*lines, "", *splits(splits_of), *provenance(races[0])]


def method_cells(race: Mapping[str, Any]) -> list[str]:
    both = [race["systems"][name] for name in ("bare2", STACKED)]
    theirs, ours = map(training_seconds, both)
    return [
        race["title"],
        f"{1000 * theirs:.4g}",
        f"{1000 * ours:.4g}",
        in_pairs(both, lambda found: f"{1000 * found['apart']:.4g}" if "apart" in found else "-"),
        f"{theirs / ours:.2f}",
        *visit_cells(*both),
        in_pairs(both, lambda found: f"{found['accuracy']:.4f}"),
        in_pairs(both, lambda found: " ".join(f"{1000 * s:.4g}" for s in found["all_seconds"])),
    ]


def visit_cells(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Local training of both, and how many times as fast ours is; a race of before has none."""
    if "trained" not in theirs:
        return ["-", "-"]
    trained, own = theirs["trained"], ours["split"]["train"]
    return [f"{1000 * trained:.4g} / {1000 * own:.4g}", f"{trained / own:.2f}"]


def in_pairs(both: Sequence[Mapping[str, Any]], show: Callable[[Mapping[str, Any]], str]) -> str:
    """A figure of the plain loop and of rayfl, one behind the other."""
    return " / ".join(map(show, both))


def provenance(race: Mapping[str, Any]) -> list[str]:
    """When, where, with what, by which command."""
    libraries: dict[str, str] = {}
    for found in race["systems"].values():
        libraries |= found["versions"]
    rays = {
        name: found["versions"]["ray"]
        for name, found in race["systems"].items()
        if "ray" in found["versions"]
    }
    libraries |= {"ray": ", ".join(sorted(set(rays.values())))} if rays else {}
    versions = ", ".join(f"{name} {version}" for name, version in sorted(libraries.items()))
    machine = f"{race['machine']}; load before {race['load']:.1f}"
    where = f"{race['date']}; {machine}; Python {race['python']}; {versions}."
    return [where, "", f"    {race['command']}", ""]


def row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def kept(path: Path) -> dict[str, Any]:
    """The races that are known from before."""
    return dict(json.loads(path.read_text())) if path.exists() else {}
