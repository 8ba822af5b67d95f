"""What is to be said where a run ends before a stage of its method begins."""

from __future__ import annotations

from collections.abc import Iterator


def warn_of_late_stage(setting: str, begins: int, rounds: int, instead: str) -> Iterator[str]:
    """A sentence where a stage begins after the last round; nothing where it is reached.

    Parameters
    ----------
    setting
        What decides when it begins.
    begins
        The round that it begins in, counted from 0.
    rounds
        Of the whole run.
    instead
        What is not done, and what the run is without it.
    """
    if begins >= rounds:
        yield (
            f"{setting} takes the first {begins} rounds and the run has {rounds}: {instead}. "
            f"Raise training.rounds or lower {setting}."
        )
