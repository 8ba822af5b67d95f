"""`rayfl check`: whether a method keeps the promises that every method of this package keeps."""

from __future__ import annotations

import logging
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayfl.errors import ConfigError, broken, suggest_nearest

if TYPE_CHECKING:
    from rayfl.testing.actors import ActorReserve
    from rayfl.testing.bench import Candidate
    from rayfl.testing.findings import Finding

BROKEN = 4
"""What the command returns if a promise is broken; also what a phase that raises returns."""

ROUNDS = 3
"""Of a configuration of the user's own, which may have hundreds."""


@click.command()
@click.argument("method")
@click.argument("arguments", nargs=-1, metavar="[CONFIG] [KEY=VALUE]...")
@click.option("--quick", is_flag=True, help="Only what needs no Ray: a few seconds.")
@click.option("--only", multiple=True, metavar="PROMISE", help="Only this promise; repeatable.")
@click.option(
    "--rounds",
    type=click.IntRange(2),
    help=f"Rounds of each run; by default 6 on the toy federation, at most {ROUNDS} on CONFIG.",
)
@click.option(
    "--floor",
    type=click.FloatRange(0, 1),
    default=0.5,
    show_default=True,
    help="Test accuracy that it must reach on the toy federation, whose four classes are separable "
    "and whose labels are noisy.",
)
def check(
    method: str,
    arguments: tuple[str, ...],
    quick: bool,
    only: tuple[str, ...],
    rounds: int | None,
    floor: float,
) -> None:
    """Check METHOD, a name or my_module:Name, on a toy federation (or on CONFIG).

    It must give the same bits wherever and however it runs: again, in reversed order, on one and on
    three actors of Ray, with an actor killed, and resumed after every round. It must learn, write
    to no input, and stand odd federations. Takes about 15 seconds on the toy federation. The
    exit code is 4 if a promise is broken."""
    from rayfl.testing.promises import ON_RAY, QUICK
    from rayfl.testing.toy import complete_toy

    names = _choose_promises(only, QUICK if quick else (*QUICK, *ON_RAY))
    candidate = _read_candidate(method, arguments, rounds, floor)
    # A name that does not exist is no broken promise.
    complete_toy(candidate.method, candidate.config)
    started = time.perf_counter()
    with _lend_actors(bool(set(names) - set(QUICK))) as actors:
        findings = list(_print_findings(candidate, actors, names))
    counts = Counter(finding.status for finding in findings)
    seconds = time.perf_counter() - started
    click.echo(
        f"{counts['holds']} hold, {counts['broken']} broken, {counts['untried']} untried "
        f"({seconds:.0f} s)"
    )
    if counts["broken"]:
        raise SystemExit(BROKEN)


def _choose_promises(only: Sequence[str], possible: Sequence[str]) -> Sequence[str]:
    unknown = [name for name in only if name not in possible]
    if unknown:
        rule = f"--only names a promise ({', '.join(possible)})"
        raise ConfigError(broken(rule, unknown[0], suggest_nearest(unknown[0], possible)))
    return only or possible


def _read_candidate(
    method: str, arguments: Sequence[str], rounds: int | None, floor: float
) -> Candidate:
    """The method with its settings, and the configuration that it is checked on."""
    from rayfl.config.files import apply_override
    from rayfl.testing.bench import Candidate

    paths = [argument for argument in arguments if "=" not in argument]
    overrides = [argument for argument in arguments if "=" in argument]
    if len(paths) > 1:
        raise ConfigError(broken("rayfl check takes one CONFIG", " and ".join(paths)))
    settings: dict[str, Any] = {"method": {"name": method}}
    if paths:
        settings = _read_settings(Path(paths[0]), method)
        planned = settings["training"]["rounds"]
        settings["training"]["rounds"] = rounds or min(planned, ROUNDS)
    elif rounds is not None:
        settings["training"] = {"rounds": rounds}
    for override in overrides:
        settings = apply_override(settings, override)
    own = settings.pop("method")
    # Others' images may need more rounds than a check has patience for: it learns on the toy.
    learns_on = {"split": settings.get("split") or {}} if paths else None
    return Candidate(own, settings, floor, learns_on)


def _read_settings(path: Path, method: str) -> dict[str, Any]:
    """All settings of a configuration, with hyper-parameters only if they are this method's."""
    from rayfl.config.files import read_config
    from rayfl.config.schema import validate_config

    plain = read_config(path)
    # The method of the file may be another, whose settings this one would refuse.
    if _name_of(plain.get("method")) != method:
        plain = {**plain, "method": method}
    return validate_config(plain, str(path)).resolved()


def _name_of(method: Any) -> Any:
    return method.get("name") if isinstance(method, Mapping) else method


@contextmanager
def _lend_actors(wanted: bool) -> Iterator[ActorReserve | None]:
    """Actors on a Ray of our own, or nothing."""
    if not wanted:
        yield None
        return
    from rayfl.fleet.on_ray.connection import connect_ray
    from rayfl.testing.actors import ActorReserve

    with connect_ray(None):
        pool = ActorReserve()
        try:
            yield pool
        finally:
            pool.close()


def _print_findings(
    candidate: Candidate, actors: ActorReserve | None, names: Sequence[str]
) -> Iterator[Finding]:
    """Print each finding as soon as it is known."""
    from rayfl.testing.bench import Bench
    from rayfl.testing.promises import iterate_findings

    # That an actor has died and is replaced is what one of the promises is about.
    log = logging.getLogger("rayfl")
    usual = log.level
    log.setLevel(logging.ERROR)
    try:
        with tempfile.TemporaryDirectory(prefix="rayfl-check-") as folder:
            for finding in iterate_findings(Bench(candidate, Path(folder), actors), names):
                click.echo(format_finding(finding))
                yield finding
    finally:
        log.setLevel(usual)


def format_finding(finding: Finding) -> str:
    """One line for a promise that holds; what was promised, what differed and what to do for one
    that does not."""
    promise = finding.promise
    head = f"{finding.status.upper() if finding.status == 'broken' else finding.status:8}"
    if finding.status != "broken":
        return f"{head} {promise.name:21} {finding.detail}".rstrip()
    lines = [promise.says, *finding.detail.splitlines(), f"-> {promise.remedy}"]
    indent = "\n" + " " * 31
    return f"{head} {promise.name:21} {indent.join(lines)}"
