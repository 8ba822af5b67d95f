"""The books of a run: what a real system would have sent and computed, and seconds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import Literal


@dataclass
class Costs:
    """What the real system would have sent and computed, since the last `take`."""

    participants: int = 0
    down: int = 0
    up: int = 0
    forward: int = 0
    backward: int = 0
    server_forward: int = 0
    server_backward: int = 0

    def take(self) -> dict[str, int]:
        """What was counted, and begin anew."""
        taken = asdict(self)
        for counted in fields(self):
            setattr(self, counted.name, 0)
        return taken


@dataclass
class Clock:
    """Seconds since the last `take`: of phases, over all places; of sending them off; of adding up
    what they made."""

    busy: float = 0.0
    broadcast: float = 0.0
    reduce: float = 0.0

    @contextmanager
    def running(self, hand: Literal["broadcast", "reduce"]) -> Iterator[None]:
        """Time what is done inside."""
        started = time.perf_counter()
        try:
            yield
        finally:
            setattr(self, hand, getattr(self, hand) + time.perf_counter() - started)

    def take(self) -> dict[str, float]:
        """Seconds by hand, as metrics, and begin anew."""
        taken = {f"time/{hand}_s": seconds for hand, seconds in vars(self).items()}
        self.busy = self.broadcast = self.reduce = 0.0
        return taken
