"""A driver for phases that train, where a test has a client and no fleet."""

from __future__ import annotations

from types import GeneratorType
from typing import Any, TypeVar

from rayfl.learn.fit import carry_out
from rayfl.learn.local_fit import Fitting
from rayfl.protocol import Client, Out, Phase

T = TypeVar("T")


def run_phase(phase: Phase, client: Client, **inputs: Any) -> Out:
    """One visit: what the phase wishes for is carried out here and now, as a place does it."""
    client.learner.forget_loaded()
    called = phase(client, **inputs)
    return called if isinstance(called, Out) else drive(client, called)


def drive(client: Client, fitting: Fitting[T]) -> T:
    """What a generator, or a part of a phase, comes to."""
    assert isinstance(fitting, GeneratorType)
    try:
        wish = next(fitting)
        while True:
            wish = fitting.send(carry_out(client, wish))
    except StopIteration as over:
        found: T = over.value
        return found
