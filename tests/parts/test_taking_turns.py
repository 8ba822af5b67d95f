"""Computations that take turns: who runs when, what is answered together, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from rayfl.algorithms.parts.taking_turns import Ask, Raised, take_turns


def count_to(number: int, told: list[str], name: str) -> Callable[[Ask], str]:
    def play(ask: Ask) -> str:
        for i in range(number):
            told.append(f"{name}{i}")
            ask(f"{name}{i}")
        return name

    return play


def test_one_runs_at_a_time_and_all_wishes_are_answered_together() -> None:
    told: list[str] = []
    asked: list[list[str]] = []

    def answer_all(wishes: list[str]) -> list[None]:
        asked.append(wishes)
        return [None] * len(wishes)

    plays = [count_to(2, told, "a"), count_to(1, told, "b"), count_to(3, told, "c")]
    assert take_turns(plays, answer_all) == ["a", "b", "c"]
    assert asked == [["a0", "b0", "c0"], ["a1", "c1"], ["c2"]]
    assert told == ["a0", "b0", "c0", "a1", "c1", "c2"]


def test_an_error_is_raised_where_it_was_asked_for() -> None:
    def play(ask: Ask) -> str:
        try:
            ask("anything")
        except ValueError as error:
            return f"caught {error}"
        return "none"

    assert take_turns([play], lambda wishes: [Raised(ValueError("it"))]) == ["caught it"]


def fail(ask: Ask) -> None:
    ask("first")
    raise KeyError("mine")


def interrupt(wishes: list[Any]) -> list[Any]:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("plays", "answer_all", "error"),
    [
        ([count_to(9, [], "a"), fail], lambda wishes: [None] * len(wishes), KeyError),
        ([count_to(9, [], "a"), count_to(9, [], "b")], interrupt, KeyboardInterrupt),
    ],
)
def test_whatever_ends_one_ends_all(
    plays: Any, answer_all: Any, error: type[BaseException]
) -> None:
    before = threading.active_count()
    with pytest.raises(error):
        take_turns(plays, answer_all)
    assert threading.active_count() == before


def test_nobody_asks() -> None:
    assert take_turns([lambda ask: 1, lambda ask: 2], interrupt) == [1, 2]
    assert take_turns([], interrupt) == []
