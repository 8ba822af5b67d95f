"""One global model for users with different tasks: the baseline without personalisation of FB-NLL.

"FB-NLL: a feature-based approach to tackle noisy labels in personalized federated learning", Tables
IV to VI: its Algorithm 1 with a single cluster and without correction."""

from __future__ import annotations

from typing import Annotated, ClassVar

from rayfl.algorithms.fedavg import FedAvg
from rayfl.algorithms.parts.weighting import WEIGHTINGS, Equal, Weighting
from rayfl.component import component, slot


@component
class SingleGlobal(FedAvg):
    """All users train one model, each counting the same; it is scored on every user's own task."""

    citation: ClassVar[str] = "FB-NLL, baseline of Tables IV-VI"
    personal: ClassVar[bool] = True
    deviations: ClassVar[tuple[str, ...]] = (
        "Answers are the best of all classes, not of the user's task alone; the paper leaves this "
        "open.",
        "BatchNorm statistics are averaged over users with different classes and not measured "
        "again.",
        "Users that a round's draw leaves out do not train; the paper's rounds have everybody "
        "(training.fraction).",
    )

    weighting: Annotated[Weighting, slot(WEIGHTINGS)] = Equal()
    """`equal` (the paper's), `size`, or any other weighting."""
