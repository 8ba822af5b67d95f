"""Directories of runs: which one a run takes, and that nobody else writes into it meanwhile.

A run's directory holds `run.json` (what it is), `config.yaml` (resolved), `lock` (who is at work on
it), checkpoints, the journal of its tracking, and at the end `result.json` with what it came to."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from rayfl.config.files import parse_file
from rayfl.config.schema import Config, validate_config
from rayfl.durable import write_file
from rayfl.errors import ConfigError, RayflError, StorageError, broken
from rayfl.federation.scenario import Scenario
from rayfl.locks import FileLock, LockHeldError, take_lock
from rayfl.run.environment import describe_environment
from rayfl.run.store import Record, read_record
from rayfl.version import __version__

log = logging.getLogger("rayfl")

HANDOVER_SECONDS = 10.0
"""For how long a caller that chose the directory waits for the one before it to let go."""


@contextmanager
def claim_directory(
    config: Config, directory: Path | None, resume: str | Path | None
) -> Iterator[Path]:
    """The directory of a new run, or of the one to be taken up again, which is this run's alone.

    Parameters
    ----------
    config : Config
        What is to be run.
    directory : Path or None
        Where a caller wants it. A run that is there already is taken up again.
    resume : str or Path or None
        A run below the output folder, its directory, or `auto`: the newest unfinished one like
        this that nobody is at work on, or else a new one.

    Raises
    ------
    LockHeldError
        Somebody is at work on the run that was named.
    """
    if directory is not None:
        if (directory / "config.yaml").is_file():
            directory = _find_run(config, directory)
        folder, lock = directory, lock_directory(directory, HANDOVER_SECONDS)
    elif resume is None:
        folder, lock = _new_directory(config)
    elif str(resume) == "auto":
        folder, lock = _free_directory(config) or _begin_anew(config)
    else:
        folder = _find_run(config, resume)
        lock = lock_directory(folder)
    with lock:
        try:
            yield folder
        finally:
            if directory is None:
                _discard_unbegun(folder)


def find_finished(config: Config, resume: str | Path | None) -> Record | None:
    """The run that is to be taken up again, where it has reached its last round already.

    Parameters
    ----------
    config : Config
        What is to be run.
    resume : str or Path or None
        As for `claim_directory`.
    """
    if resume is None or str(resume) == "auto":
        return None
    found = read_record(_find_run(config, resume))
    return found if found is not None and found.rounds >= config.training.rounds else None


def lock_directory(directory: Path, patience: float = 0.0) -> FileLock:
    """Keep everybody else out of a run's directory, which is made where there is none."""
    with refuse_unwritable(directory):
        return take_lock(directory / "lock", f"the run {directory.name}", patience)


def new_name(config: Config) -> str:
    """A name that no other run has: when, which method, and chance."""
    method = config.name_of("method").rpartition(":")[2]
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return f"{stamp}-{method}-{os.urandom(3).hex()}"


def newest_unfinished(runs: Path, config: Config) -> Path | None:
    """The newest run with this configuration that has not reached its last round."""
    return next(iter(unfinished_runs(runs, config)), None)


def unfinished_runs(runs: Path, config: Config) -> list[Path]:
    """The runs with this configuration that have not reached their last round, newest first."""
    folders = {path.parent for path in (*runs.glob("*/run.json"), *runs.glob("*/config.yaml"))}
    unfinished = [folder for folder in folders if not (folder / "result.json").exists()]
    alike = [folder for folder in unfinished if read_digest(folder) == config.digest]
    return sorted(alike, key=lambda folder: folder.name, reverse=True)


def read_digest(directory: Path) -> str | None:
    """The hash of the configuration that a run began with; None where nothing there tells it.

    A damaged `run.json` is no loss: the configuration itself lies beside it."""
    facts = read_facts(directory)
    if isinstance(facts.get("digest"), str):
        return str(facts["digest"])
    try:
        return validate_config(parse_file(directory / "config.yaml")).digest
    except RayflError:
        return None


def read_facts(directory: Path) -> Mapping[str, Any]:
    """What a run says that it is; empty where that is missing or damaged."""
    try:
        facts = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def begin_directory(config: Config, directory: Path, scenario: Scenario) -> None:
    """Write what the run is, before it starts."""
    resolved = yaml.safe_dump(config.resolved(), sort_keys=False)
    write_file(directory / "config.yaml", resolved)
    facts = {
        "digest": config.digest,
        "scenario": scenario.sha256,
        "rayfl": __version__,
        "environment": _join_environment(read_facts(directory).get("environment")),
    }
    write_file(directory / "run.json", json.dumps(facts))
    # One that is taken further is not over.
    (directory / "result.json").unlink(missing_ok=True)


def _join_environment(before: object) -> dict[str, str]:
    """What the run stands on now; one that was taken up again may have begun on something else."""
    found = describe_environment()
    if not isinstance(before, dict):
        return found
    joined = {}
    for name, now in found.items():
        then = str(before.get(name) or now)
        joined[name] = then if then.split(" -> ")[-1] == now else f"{then} -> {now}"
    return joined


@contextmanager
def refuse_unwritable(directory: Path) -> Iterator[None]:
    """What cannot be written is said in a sentence."""
    try:
        yield
    except OSError as error:
        rule = "the output folder must be writable"
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "Free some space or set output." if full else "Set output to another folder."
        raise StorageError(broken(rule, f"{directory} ({error})", remedy)) from error


def _new_directory(config: Config) -> tuple[Path, FileLock]:
    folder = config.output / "runs" / new_name(config)
    return folder, lock_directory(folder)


def _begin_anew(config: Config) -> tuple[Path, FileLock]:
    runs = config.output / "runs"
    log.warning("no unfinished run like this one lies below %s: a new one begins", runs)
    return _new_directory(config)


def _discard_unbegun(folder: Path) -> None:
    """A run that was refused before it began leaves no folder."""
    if {path.name for path in folder.glob("*")} <= {"lock"}:
        with suppress(OSError):
            (folder / "lock").unlink(missing_ok=True)
            folder.rmdir()


def _free_directory(config: Config) -> tuple[Path, FileLock] | None:
    """The newest unfinished run like this one that nobody is at work on."""
    for folder in unfinished_runs(config.output / "runs", config):
        try:
            lock = lock_directory(folder)
        except LockHeldError as refusal:
            log.warning("%s is passed over: %s is at work on it", folder.name, refusal.holder)
            continue
        # Whoever had the lock a moment ago may have finished it.
        if not (folder / "result.json").exists():
            return folder, lock
        lock.release()
    return None


def _find_run(config: Config, named: str | Path) -> Path:
    """The directory of a run that is named, if it began with this configuration."""
    runs = config.output / "runs"
    candidates = [Path(named), runs / str(named), *runs.glob(f"*{named}")]
    found = next((path for path in candidates if (path / "config.yaml").is_file()), None)
    if found is None:
        last = sorted(path.name for path in runs.glob("*"))[-5:]
        rule = "--resume takes a run below the output folder, or auto"
        raise ConfigError(broken(rule, str(named), f"Last runs: {', '.join(last) or 'none'}"))
    saved = read_digest(found)
    if saved is None:
        rule = "a run is resumed with the configuration that it began with"
        remedy = f"Begin it anew, or write the configuration to {found / 'config.yaml'} again."
        raise ConfigError(broken(rule, f"{found}, whose own is damaged", remedy))
    if saved != config.digest:
        rule = f"a run is resumed with the configuration that it began with ({saved[:12]})"
        remedy = f"See {found / 'config.yaml'}."
        raise ConfigError(broken(rule, config.digest[:12], remedy))
    return found.absolute()
