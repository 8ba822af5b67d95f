"""Sentences for people."""

from __future__ import annotations

import pickle

import pytest

from rayfl import errors
from rayfl.errors import RayflError, broken, suggest_nearest
from rayfl.protocol import NobodyLeft

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, RayflError)
]


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        (("a rate lies in [0, 1]", 1.4), "a rate lies in [0, 1]; got 1.4"),
        (("a rate lies in [0, 1]", 1.4, "Lower it."), "a rate lies in [0, 1]; got 1.4. Lower it."),
        (("a name is text", None, ""), "a name is text; got None"),
    ],
)
def test_rule_then_value_then_remedy(parts: tuple[str, object, str], sentence: str) -> None:
    assert broken(*parts) == sentence


@pytest.mark.parametrize(
    ("word", "known", "hint"),
    [
        ("fedagv", ["fedavg", "fedprox"], "Did you mean 'fedavg'?"),
        ("lr", ["epochs", "batch_size"], ""),
        ("", ["fedavg"], ""),
        ("fedavg", [], ""),
    ],
)
def test_the_nearest_spelling_if_any_is_near(word: str, known: list[str], hint: str) -> None:
    assert suggest_nearest(word, known) == hint


def test_every_kind_has_an_exit_code_of_its_own() -> None:
    codes = [kind.exit_code for kind in KINDS]
    assert len(set(codes)) == len(codes)
    # 0 is success, and a shell takes 126 and above for commands and signals of its own.
    assert all(0 < code < 126 for code in codes)


@pytest.mark.parametrize("kind", [*KINDS, NobodyLeft])
def test_errors_travel_between_processes(kind: type[RayflError]) -> None:
    found = pickle.loads(pickle.dumps(kind("what to do")))
    assert type(found) is kind
    assert str(found) == "what to do"
    assert found.exit_code == kind.exit_code
