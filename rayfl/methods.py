"""Everything that an author of methods imports, in one place.

docs/methods.md is the guide; `rayfl check my_methods:Name` tells whether a method keeps its
promises.
"""

from __future__ import annotations

from rayfl.algorithms.fedavg import FedAvg, Global, train
from rayfl.algorithms.parts.aggregation import AGGREGATIONS, Aggregation, WeightedMean
from rayfl.algorithms.parts.server_training import for_epochs, refuse_idle_server
from rayfl.algorithms.parts.weighting import WEIGHTINGS, BySize, Equal, Weighting
from rayfl.component import (
    Count,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    component,
    neutral,
    slot,
)
from rayfl.errors import ConfigError, RayflError, broken
from rayfl.learn.augment import AUGMENTATIONS, Augmentation
from rayfl.learn.batches import Batch, draw_batches
from rayfl.learn.fit import outputs, sample_losses
from rayfl.learn.local_fit import Fit, Fitting, Pull, Trained
from rayfl.learn.losses import LOSSES
from rayfl.learn.losses.base import CROSS_ENTROPY, CrossEntropy, SampleLoss
from rayfl.protocol import (
    SERVER,
    Algorithm,
    Blueprint,
    Client,
    ClientId,
    DataRef,
    Fleet,
    Images,
    Labels,
    NobodyLeft,
    Out,
    Phase,
    Ref,
    Replies,
    Report,
    Served,
    Shard,
    State,
    Vector,
)

__all__ = [
    "AGGREGATIONS",
    "AUGMENTATIONS",
    "CROSS_ENTROPY",
    "LOSSES",
    "SERVER",
    "WEIGHTINGS",
    "Aggregation",
    "Algorithm",
    "Augmentation",
    "Batch",
    "Blueprint",
    "BySize",
    "Client",
    "ClientId",
    "ConfigError",
    "Count",
    "CrossEntropy",
    "DataRef",
    "Equal",
    "FedAvg",
    "Fit",
    "Fitting",
    "Fleet",
    "Fraction",
    "Global",
    "Images",
    "Labels",
    "Natural",
    "NobodyLeft",
    "NonNegative",
    "Out",
    "Phase",
    "Positive",
    "Pull",
    "RayflError",
    "Ref",
    "Replies",
    "Report",
    "SampleLoss",
    "Served",
    "Shard",
    "State",
    "Trained",
    "Vector",
    "WeightedMean",
    "Weighting",
    "broken",
    "component",
    "draw_batches",
    "for_epochs",
    "neutral",
    "outputs",
    "refuse_idle_server",
    "sample_losses",
    "slot",
    "train",
]
