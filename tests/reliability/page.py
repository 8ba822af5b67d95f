"""Writes docs/reliability.md from what the drills have left in docs/reliability.

python -m tests.reliability.page"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rayfl.durable import write_file
from tests.reliability.tally import FOLDER

PAGE = FOLDER.with_suffix(".md")
INTRODUCTION = """# Reliability

What is promised of a run that something happens to, and how often it was tried. Every line is
written by its drill, into a file of `docs/reliability`; `python -m tests.reliability.page` makes
this page of them. A drill of each kind is among the tests (`make test`, `make long`), longer ones
are in `make alone`, and `make drill` kills on. How each promise was broken before, and what is not
promised: [Promises](promises.md)."""

Facts = Mapping[str, Any]


def read_tallies(folder: Path = FOLDER) -> dict[str, Facts]:
    """What each drill has left, by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}


def write_page(tallies: Mapping[str, Facts]) -> str:
    """The page, whole."""
    sections = [INTRODUCTION, "\n".join(_list_promises(tallies))]
    for name, section in SECTIONS.items():
        if name in tallies:
            sections.append("\n".join(section(tallies[name])))
    return "\n\n".join(sections) + "\n"


def _list_promises(tallies: Mapping[str, Facts]) -> Iterator[str]:
    yield from _rule_table(("promise", "drill", "tried", "kept", "day", "commit", "machine"))
    for facts in tallies.values():
        machine = facts["machine"]
        yield _join_cells(
            facts["promise"],
            f"`{facts['drill']}`",
            f"{facts['tried']:,}",
            f"{facts['survived']:,}",
            facts["day"],
            machine["commit"],
            f"{machine['machine']}; Python {machine['python']}, torch {machine['torch']}, "
            f"Ray {machine['ray']}",
        )


def _describe_kills(facts: Facts) -> Iterator[str]:
    """By process, command and method; what a kill changed, if one ever did."""
    kills = facts["details"]["kills"]
    landed = [kill for kill in kills if kill["landed"]]
    yield "## Kills"
    yield ""
    yield (
        f"{len(landed):,} of {len(kills):,} kills landed: the process was alive and the command "
        "not over. Command, method, process and moment are drawn by number. What a death ends is "
        "started again, as a user would (`--resume`); then the sha256 of every model and the "
        "history of every metric are compared with those of an undisturbed command in one process, "
        "and, where MLflow is told, with what MLflow has. The moments are in "
        "[kills.json](reliability/kills.json)."
    )
    for key, title in (("target", "process"), ("command", "command"), ("method", "method")):
        yield ""
        yield from _count_kills(landed, key, title)


def _describe_bits(facts: Facts) -> Iterator[str]:
    """Where the words are that go with the figures."""
    yield "## Bits on other machines"
    yield ""
    yield (
        "Which operators part company when the processor, the number of threads or the version of "
        "torch is another, what `bits: portable` sets, and what it costs: "
        "[The same bits on other machines](reliability_bits.md). Every comparison is in "
        "[portable_bits.json](reliability/portable_bits.json)."
    )


def _count_kills(landed: Sequence[Facts], key: str, title: str) -> Iterator[str]:
    yield from _rule_table((title, "kills", "same bits", "started again, at most"))
    for value in sorted({kill[key] for kill in landed}):
        these = [kill for kill in landed if kill[key] == value]
        same = sum(kill["outcome"] == "same" for kill in these)
        again = max(kill["starts"] for kill in these) - 1
        yield _join_cells(value, str(len(these)), str(same), str(again))


def _rule_table(titles: Sequence[str]) -> Iterator[str]:
    yield _join_cells(*titles)
    yield "|" + "---|" * len(titles)


def _join_cells(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


SECTIONS = {"kills": _describe_kills, "portable_bits": _describe_bits}
"""What is said of a drill besides its line, by its name."""


def main() -> None:
    """Write the page."""
    write_file(PAGE, write_page(read_tallies()))


if __name__ == "__main__":
    main()
