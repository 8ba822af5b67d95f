"""What can go wrong, as a person should read it: the rule, the value that breaks it, the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from rayfl.secrets import mask_secrets


class RayflError(Exception):
    """A failure that a user can act on. Its text is all that a command line prints; `exit_code` is
    what it returns.

    Whatever it quotes is quoted without credentials."""

    exit_code = 1

    def __init__(self, *said: object) -> None:
        super().__init__(*map(mask_secrets, said))


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


PACKAGES: Mapping[str, str] = {
    "ray": "Ray, on which `fleet: ray`, sweeps and `rayfl check` run",
    "mlflow": "MLflow, which tracks runs",
    "matplotlib": "matplotlib, which draws figures",
}
"""What an installation may lack where there is no build of it, and what of rayfl needs it."""


def explain_missing(error: ModuleNotFoundError) -> ResourceError | None:
    """One line about a package that is not installed, with the remedy; None for any other.

    Parameters
    ----------
    error : ModuleNotFoundError
        What the import ended in.
    """
    package = (error.name or "").partition(".")[0]
    if package not in PACKAGES:
        return None
    remedy = f"pip install {package}"
    if package == "ray":
        remedy += ", or set fleet=inline"
    if package == "mlflow":
        remedy += ", or set tracking.enabled=false"
    return ResourceError(f"{PACKAGES[package]}, is not installed here. {remedy}.")


_LONGEST_WORD = 100
"""Nobody misspells longer ones, and to compare them takes long."""


def suggest_nearest(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the closest known spelling, or nothing."""
    if len(word) > _LONGEST_WORD:
        return ""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"Did you mean '{close[0]}'?" if close else ""
