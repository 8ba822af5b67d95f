"""Several computations that take turns: each runs until it asks for something.

What they ask for at the same time can then be answered in one go. A method's round is plain code
that nobody can leave in the middle, so each runs in a thread of its own; but only one at a time,
and whatever they ask for is done by the thread that called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Ask = Callable[[Any], Any]
"""Asks for something and returns the answer, or raises what came of it."""


@dataclass(frozen=True)
class Raised:
    """An answer that is raised where it was asked for."""

    error: Exception


class _Abandoned(BaseException):
    """Nobody will answer any more."""


class _Turn(Generic[T]):
    """One computation, advanced from wish to wish; what it returned is in `result` when it is
    over."""

    def __init__(self, play: Callable[[Ask], T]) -> None:
        self.wish: Any = None
        self.over = False
        self.result: T
        self._play = play
        self._error: BaseException | None = None
        self._answers: SimpleQueue[Any] = SimpleQueue()
        self._wishes: SimpleQueue[Any] = SimpleQueue()
        # A daemon: should the process end by force, it does not wait for an answer.
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def advance(self, answer: Any = None) -> None:
        """Go on with an answer, up to the next wish or the end; raises what the computation
        raised."""
        self._answers.put(answer)
        self.wish = self._wishes.get()
        if self._error is not None:
            raise self._error

    def abandon(self) -> None:
        """End it where it is, if it is not over."""
        self._answers.put(Raised(_Abandoned()))  # type: ignore[arg-type]
        self._thread.join()

    def _run(self) -> None:
        try:
            self._await_answer()
            self.result = self._play(self._ask)
        except _Abandoned:
            pass
        except BaseException as error:
            self._error = error
        self.over = True
        self._wishes.put(None)

    def _ask(self, wish: Any) -> Any:
        self._wishes.put(wish)
        return self._await_answer()

    def _await_answer(self) -> Any:
        answer = self._answers.get()
        if isinstance(answer, Raised):
            raise answer.error
        return answer


def take_turns(
    plays: Sequence[Callable[[Ask], T]], answer_all: Callable[[list[Any]], Sequence[Any]]
) -> list[T]:
    """What the computations return, in their order.

    Parameters
    ----------
    plays
        The computations; each is given what it asks with. If one raises, all others end where they
        are.
    answer_all
        Answers the wishes of all that wait, in their order; a `Raised` is raised where it was asked
        for.

    Examples
    --------
    >>> def add_answers(ask):
    ...     return ask("one") + ask("two")
    >>> def answer_all(wishes):
    ...     return [len(wishes)] * len(wishes)
    >>> take_turns([add_answers, lambda ask: ask("three")], answer_all)
    [3, 2]
    """
    turns = [_Turn(play) for play in plays]
    try:
        for turn in turns:
            turn.advance()
        while waiting := [turn for turn in turns if not turn.over]:
            answers = answer_all([turn.wish for turn in waiting])
            for turn, answer in zip(waiting, answers, strict=True):
                turn.advance(answer)
        return [turn.result for turn in turns]
    finally:
        for turn in turns:
            turn.abandon()
