"""What can go wrong, as a person should read it: the rule, the value that breaks it, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RayflError(Exception):
    """A failure that a user can act on. Its text is all that a command line prints; `exit_code` is
    what it returns."""

    exit_code = 1


class ConfigError(RayflError):
    """The configuration asks for something that does not exist or is not allowed."""

    exit_code = 2


class DataError(RayflError):
    """A dataset, a scenario or a weight file is missing, truncated or not what it says."""

    exit_code = 3


class PhaseError(RayflError):
    """A phase raised on a client; carries who, when and the remote traceback."""

    exit_code = 4


class StorageError(RayflError):
    """A checkpoint or an output could not be written or read."""

    exit_code = 5


class ResourceError(RayflError):
    """The machine or cluster cannot give what the configuration asks for."""

    exit_code = 6


class Stopped(BaseException):
    """Somebody asked for an end: no failure, and for nobody but who runs the run."""


def is_interruption(error: BaseException) -> bool:
    """Whether an error means that this process is to end, and not that its code failed."""
    # The last is how Ray has a worker of its own exit.
    return isinstance(error, (Stopped, KeyboardInterrupt)) or hasattr(error, "ray_terminate_msg")


def broken(rule: str, got: object, remedy: str = "") -> str:
    """One sentence in the house form: `rule; got value. remedy`."""
    sentence = f"{rule}; got {got}"
    return f"{sentence}. {remedy}" if remedy else sentence


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest known spelling, or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"Did you mean '{close[0]}'?" if close else ""
