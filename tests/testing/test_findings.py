"""What is said of two runs that differ, and of a promise that raises."""

from __future__ import annotations

from typing import cast

import pytest

from rayfl.errors import ConfigError, PhaseError
from rayfl.run.engine import Outcome
from rayfl.testing import Bench, BrokenPromise, Finding, Promise, Untried
from rayfl.testing.findings import find_difference, try_promise

NO_BENCH = cast(Bench, None)


def make_outcome(*losses: float, sha256: str = "a" * 64, accuracy: float = 0.5) -> Outcome:
    history = [
        {"round": t, "metrics": {"test/loss": loss, "test/accuracy": accuracy}, "clock": {}}
        for t, loss in enumerate(losses, start=1)
    ]
    return Outcome(len(losses), history, {}, sha256, None, {})


def test_equal_runs_do_not_differ() -> None:
    assert find_difference(make_outcome(1.0, 0.5), make_outcome(1.0, 0.5)) is None


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            make_outcome(1.0, 0.25, sha256="b" * 64),
            "differs from round 2 on (test/loss 0.5 became 0.25); "
            "sha256 aaaaaaaaaaaa became bbbbbbbbbbbb",
        ),
        (
            make_outcome(2.0, 0.5, accuracy=0.25),
            "differs from round 1 on (test/loss 1 became 2 and 1 more); "
            "sha256 aaaaaaaaaaaa in both",
        ),
        (
            make_outcome(1.0, 0.5, sha256="b" * 64),
            "differs in the final model only; sha256 aaaaaaaaaaaa became bbbbbbbbbbbb",
        ),
        (make_outcome(1.0), "2 rounds became 1; sha256 aaaaaaaaaaaa in both"),
    ],
)
def test_the_first_round_that_differs_is_named(found: Outcome, said: str) -> None:
    assert find_difference(make_outcome(1.0, 0.5), found) == said


def promise_that_raises(error: Exception) -> Promise:
    def examine(_: Bench) -> str:
        raise error

    return Promise("p", "says", "remedy", examine)


@pytest.mark.parametrize(
    ("error", "status", "detail"),
    [
        (BrokenPromise("bits differ"), "broken", "bits differ"),
        (Untried("needs Ray"), "untried", "needs Ray"),
        (ConfigError("a rule; got 1"), "broken", "a rule; got 1"),
        (KeyError("w"), "broken", "KeyError: 'w'"),
    ],
)
def test_whatever_a_promise_raises_is_a_finding(error: Exception, status: str, detail: str) -> None:
    promise = promise_that_raises(error)
    assert try_promise(promise, NO_BENCH) == Finding(promise, status, detail)  # type: ignore[arg-type]


def test_of_a_traceback_the_authors_own_place_is_left() -> None:
    error = PhaseError(
        "a phase raised on client 0 in round 0:\n"
        "Traceback (most recent call last):\n"
        '  File "/somewhere/my_methods.py", line 3, in train\n'
        "    client.y[0] = 1\n"
        '  File "/env/site-packages/torch/nn/functional.py", line 9, in cross_entropy\n'
        '  File "<string>", line 4, in __setattr__\n'
        "ValueError: assignment destination is read-only"
    )
    detail = try_promise(promise_that_raises(error), NO_BENCH).detail
    assert detail.splitlines() == [
        "a phase raised on client 0 in round 0:",
        '  File "/somewhere/my_methods.py", line 3, in train',
        "ValueError: assignment destination is read-only",
    ]
