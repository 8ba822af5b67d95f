"""What a promise is, and what was found of it."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rayfl.errors import RayflError

if TYPE_CHECKING:
    from rayfl.run.engine import Outcome
    from rayfl.testing.bench import Bench

Status = Literal["holds", "broken", "untried"]

_LIBRARIES = ("site-packages", sysconfig.get_paths()["stdlib"], 'File "<')
"""Parts of a traceback's places that are not in an author's file."""


class BrokenPromise(Exception):
    """A promise does not hold; the text says what differed."""


class Untried(Exception):
    """A promise could not be tried; the text says why."""


@dataclass(frozen=True)
class Promise:
    """One line of the table.

    Parameters
    ----------
    name
        A word or two, by which findings are known.
    says
        What is promised, as a sentence.
    remedy
        What to look for when it is broken.
    examine
        Tries it: returns a remark, or raises `BrokenPromise` or `Untried`.
    on_ray
        Whether it needs actors.
    after
        Promises that it builds on: if one of them is broken, it is not tried.
    """

    name: str
    says: str
    remedy: str
    examine: Callable[[Bench], str]
    on_ray: bool = False
    after: Sequence[str] = ()


@dataclass(frozen=True)
class Finding:
    """What was found of one promise; `detail` is a remark, what differed, or why it was not
    tried."""

    promise: Promise
    status: Status
    detail: str = ""


def try_promise(promise: Promise, bench: Bench) -> Finding:
    """Try one promise. Whatever it raises is a finding: the table goes on."""
    try:
        return Finding(promise, "holds", promise.examine(bench))
    except Untried as why:
        return Finding(promise, "untried", str(why))
    except BrokenPromise as found:
        return Finding(promise, "broken", str(found))
    except RayflError as error:
        return Finding(promise, "broken", _cut_traceback(str(error)))
    except Exception as error:
        return Finding(promise, "broken", f"{type(error).__name__}: {error}")


def facts_of(outcome: Outcome) -> tuple[str, list[tuple[int, dict[str, float]]]]:
    """What must be equal wherever a run happened: the model's hash and every deterministic
    metric."""
    return outcome.sha256, [(record["round"], record["metrics"]) for record in outcome.history]


def find_difference(expected: Outcome, found: Outcome) -> str | None:
    """The first round whose metrics differ, and both hashes; None where there is no difference.

    Parameters
    ----------
    expected, found
        Two runs of one configuration.
    """
    if facts_of(expected) == facts_of(found):
        return None
    hashes = f"sha256 {expected.sha256[:12]} became {found.sha256[:12]}"
    if expected.sha256 == found.sha256:
        hashes = f"sha256 {expected.sha256[:12]} in both"
    for before, after in zip(expected.history, found.history, strict=False):
        changed = _changed_metrics(before["metrics"], after["metrics"])
        if changed:
            return f"differs from round {before['round']} on ({changed}); {hashes}"
    if len(expected.history) != len(found.history):
        return f"{len(expected.history)} rounds became {len(found.history)}; {hashes}"
    return f"differs in the final model only; {hashes}"


def require_equal(expected: Outcome, found: Outcome) -> str:
    """A remark, if both are the same to the last bit."""
    difference = find_difference(expected, found)
    if difference is not None:
        raise BrokenPromise(difference)
    return f"sha256 {found.sha256[:12]}"


def _changed_metrics(before: dict[str, float], after: dict[str, float]) -> str:
    """The first metric that differs, and how many others do."""
    names = [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    if not names:
        return ""
    # Of all metrics the loss shows the least difference, and says the most.
    first = "test/loss" if "test/loss" in names else names[0]
    was, became = (_format_value(side.get(first)) for side in (before, after))
    others = f" and {len(names) - 1} more" if len(names) > 1 else ""
    return f"{first} {was} became {became}{others}"


def _format_value(value: float | None) -> str:
    return "nothing" if value is None else f"{value:.9g}"


def _cut_traceback(text: str) -> str:
    """Of a message with a traceback: its first line, the last place in the author's own files, and
    what was raised."""
    lines = text.splitlines()
    if not any(line.startswith("Traceback") for line in lines):
        return text
    package = str(Path(__file__).parents[1])
    places = [line for line in lines if line.lstrip().startswith("File ") and package not in line]
    own = [line for line in places if not any(part in line for part in _LIBRARIES)]
    return "\n".join([lines[0], *(own or places)[-1:], lines[-1]])
