"""An audit as something that a place can run, in this process or at a coordinator on Ray."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rayfl.audit.course import AuditCourse, Evidence
from rayfl.audit.duplicates import gather_prints
from rayfl.audit.plan import AuditPlan
from rayfl.fleet.base import BaseFleet
from rayfl.run.features import share_features

Emit = Callable[[dict[str, Any]], object]


@dataclass
class AuditEngine:
    """One audit.

    Parameters
    ----------
    plan
        Its settings.
    dataset
        The sha256 of the images, under which features are kept.
    shape
        (height, width, channels) of an image.
    features
        Where features of frozen encoders are kept.
    prints
        Whether clients may send a print of every image, for duplicates across sites.
    """

    plan: AuditPlan
    dataset: str
    shape: tuple[int, int, int]
    features: Path
    prints: bool = True

    def run(self, fleet: BaseFleet, emit: Emit) -> Evidence:
        """The evidence, with the seconds that encoding and the rest took."""

        def say(text: str) -> None:
            emit({"note": text})

        fleet.round = 0
        started = time.perf_counter()
        share_features(self.plan, fleet, self.dataset, self.shape, self.features, say)
        encoded = time.perf_counter()
        evidence = AuditCourse(fleet, self.plan, say).run()
        if self.prints:
            gather_prints(fleet, evidence)
        evidence.seconds = {
            "encoding": encoded - started,
            "judging": time.perf_counter() - encoded,
        }
        return evidence

    def save(self) -> int:
        """An audit is short and begins anew: there is nothing to take up again."""
        return -1
