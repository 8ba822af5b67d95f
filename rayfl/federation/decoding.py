"""Bytes of anybody's: whatever a decoder makes of damaged ones, a person gets one sentence."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from rayfl.errors import DataError, RayflError, broken

_LONGEST = 200


@contextmanager
def refuse_undecodable(rule: str, remedy: str = "") -> Iterator[None]:
    """Turn what a decoder raises into a DataError.

    Damaged bytes can fail at any step, so with any exception; only decoders stand inside, and no
    code whose mistakes it would hide. A claim of more memory than there is counts as damage.

    Parameters
    ----------
    rule
        What must hold of the bytes, as the beginning of the refusal.
    remedy
        What the reader can do about it.
    """
    try:
        yield
    except RayflError:
        raise
    except Exception as error:
        raise DataError(broken(rule, describe_damage(error), remedy)) from error


@contextmanager
def silence_warnings() -> Iterator[None]:
    """Decoders that guess say so in warnings; for the main thread only."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def describe_damage(error: Exception) -> str:
    """The first line of what a decoder says, or what kind of error it is."""
    if isinstance(error, MemoryError):
        return "a claim of more memory than there is"
    lines = str(error).strip().splitlines()
    return lines[0][:_LONGEST] if lines else type(error).__name__
