"""Configurations of anybody's end in a sentence, soon and in little memory."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from rayfl.config.schema import load_config, validate_config
from rayfl.errors import ConfigError
from tests.reliability.forked import PASSED, REFUSED, try_cases
from tests.reliability.spoilt_configs import (
    CONFIGS,
    HOSTILE,
    LONGEST_REFUSAL,
    MOST_MB,
    PLACES,
    list_hostile,
    load_all,
    load_hostile,
    spoil_text,
    try_spoilt,
)

ACCEPTED = {"60,000 tags"}
"""Odd, and yet what they say is clear."""


def test_hostile_configurations_end_in_a_sentence() -> None:
    load_all(CONFIGS / "quickstart.yaml")
    hostile = list_hostile()
    outcomes = list(try_cases([partial(load_hostile, write) for write in hostile.values()]))
    verdicts = dict(zip(hostile, (outcome.verdict for outcome in outcomes), strict=True))
    assert verdicts == {name: PASSED if name in ACCEPTED else REFUSED for name in hostile}
    assert max(outcome.grown_mb for outcome in outcomes) < MOST_MB
    assert max(outcome.letters for outcome in outcomes) < LONGEST_REFUSAL
    assert len(hostile) == len(HOSTILE) + len(PLACES)


@pytest.mark.slow
def test_spoilt_configurations_are_accepted_or_end_in_a_sentence() -> None:
    load_all(CONFIGS / "quickstart.yaml")
    outcomes = list(try_spoilt(seed=2, first=0, number=120))
    assert {outcome.verdict for outcome in outcomes} == {PASSED, REFUSED}
    assert max(outcome.letters for outcome in outcomes) < LONGEST_REFUSAL


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("an integer of 500,000 hex digits", "a number has at most 200 letters, line 1"),
        ("an integer to base 60", "a number has at most 200 letters"),
        ("merges", "a text has at most 150,000 keys and values, with what its aliases stand for"),
        ("an alias within itself", "the alias 'a' lies within what it stands for"),
        ("10,000 lists in each other", "mappings and lists lie at most 100 deep"),
        ("60,000 unknown keys", r"k0 is not a known key.*\n(.*\n)+.*and 59992 more"),
        ("a pipe as base", "Is a pipe, a socket or a device"),
        ("bases in a circle", "`base` must not lead back to itself; got .*0.yaml -> .*0.yaml"),
        ("three hundred bases", "at most 50 files build on each other"),
        ("a billion ways through thirty bases", "nonsense is not a known key"),
    ],
)
def test_the_sentence_says_what_is_wrong(tmp_path: Path, name: str, said: str) -> None:
    path = list_hostile()[name](tmp_path)
    with pytest.raises(ConfigError, match=said):
        load_config(path)


def test_a_number_is_always_the_same_configuration() -> None:
    first = [spoil_text(3, number) for number in range(30)]
    assert [spoil_text(3, number) for number in reversed(range(30))] == first[::-1]


def test_a_rule_that_quotes_what_was_written_is_cut_short() -> None:
    with pytest.raises(ConfigError, match=r"partition\.tasks: tasks is one of") as refusal:
        validate_config({"partition": {"name": "tasks", "tasks": "x" * 200_000}})
    assert len(str(refusal.value)) < 2000
