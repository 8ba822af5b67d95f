"""A method whose state becomes odd, in a way that is told."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rayfl.algorithms.fedavg import Global
from rayfl.component import component
from rayfl.fleet.inline import InlineFleet
from rayfl.protocol import Algorithm, ClientId, Fleet, Ref
from tests.run.shared_states import Borrowed

ROUND = 1
"""In which the state becomes odd, or something odd is logged or left."""


@dataclass(frozen=True)
class Corrected:
    model: Ref
    noisy: Any = None


@dataclass
class Counted:
    """Has a field that its constructor does not take."""

    value: int
    double: int = field(init=False, default=0)


class Stage(enum.IntEnum):
    WARM = 1


def hidden() -> Any:
    """An instance of a class that has no name outside."""

    @dataclass
    class Hidden:
        value: int = 1

    return Hidden()


ODD: dict[str, Callable[[], Any]] = {
    "set": lambda: {1, 2},
    "nested": lambda: {"found": [1, (2, {3})]},
    "object array": lambda: np.array([None]),
    "enum": lambda: Stage.WARM,
    "key": lambda: {np.int64(3): 1.0},
    "foreign": Borrowed,
    "init=False": lambda: Counted(1),
    "local": hidden,
    "fleet": lambda: InlineFleet,
    "of rayfl": lambda: Global(Ref(None)),
}


@component
class Odd(Algorithm):
    """Keeps the first model; does what it is told in one round."""

    state: str = ""
    logs: str = ""
    leaves: tuple[str, ...] = ()
    borrows: bool = False
    none: bool = False

    def init(self, fleet: Fleet, model: Ref) -> Corrected:
        return Corrected(model, Borrowed() if self.borrows else None)

    def round(self, state: Corrected, fleet: Fleet, t: int) -> Any:
        if t != ROUND:
            return state
        if self.none:
            return None
        if self.logs:
            fleet.log(**{self.logs: LOGGED[self.logs]()})
        for name in self.leaves:
            fleet.leave(name, LEFT[name]())
        if self.state == "of rayfl":
            return Corrected(state.model, Global(state.model))
        return Corrected(state.model, ODD[self.state]()) if self.state else state

    def model(self, state: Corrected, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model


def tensor(*values: float) -> Any:
    import torch

    return torch.tensor(values if len(values) > 1 else values[0])


LOGGED: dict[str, Callable[[], Any]] = {
    "stage": lambda: "warm-up",
    "losses": lambda: tensor(1.0, 2.0),
    "pair": lambda: [1.0, 2.0],
    "nothing": lambda: None,
    "scalar": lambda: tensor(1.5),
    "count": lambda: np.int64(3),
    "share": lambda: float("nan"),
}
LEFT: dict[str, Callable[[], Any]] = {
    "vector": lambda: np.arange(3.0),
    "number": lambda: np.float64(2.0),
    "wide": lambda: np.ones((3, 5)),
    "cube": lambda: np.ones((2, 3, 4)),
    "empty": lambda: np.zeros((0, 0)),
    "masked": lambda: np.full((3, 3), np.nan),
    "whole": lambda: np.eye(4, dtype=np.int64),
    "true": lambda: np.eye(4, dtype=bool),
    "../escaped": lambda: np.eye(4),
    "a/b": lambda: np.eye(4),
}
