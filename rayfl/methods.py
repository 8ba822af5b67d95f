"""Everything that an author of methods imports, in one place.

docs/methods.md is the guide; `rayfl check my_methods:Name` tells whether a method keeps its
promises.
"""

from __future__ import annotations

from rayfl.algorithms.fedavg import FedAvg, Global, train
from rayfl.algorithms.parts.aggregation import AGGREGATIONS, Aggregation, WeightedMean
from rayfl.algorithms.parts.batch_norm import find_statistics, remeasure_statistics
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
from rayfl.estimate.gaussian_mixture import GaussianMixture
from rayfl.estimate.lid import mean_lid
from rayfl.estimate.mixture import LossMixture
from rayfl.estimate.neighbour_votes import vote_labels
from rayfl.estimate.probabilities import softmax
from rayfl.learn.augment import AUGMENTATIONS, Augmentation
from rayfl.learn.batches import Batch, draw_batches
from rayfl.learn.copies import Ema, Frozen
from rayfl.learn.divide import Division, divide, keep_some
from rayfl.learn.fit import outputs, sample_losses
from rayfl.learn.judge import Judged, judge
from rayfl.learn.local_fit import BatchLoss, Fit, Fitting, Pull, Trained
from rayfl.learn.losses import LOSSES
from rayfl.learn.losses.base import CROSS_ENTROPY, CrossEntropy, SampleLoss
from rayfl.learn.losses.distillation import distillation, kl_divergence, soften
from rayfl.learn.losses.small_loss import select_small_losses
from rayfl.learn.mixing import (
    average_guesses,
    blend_losses,
    draw_share,
    encode_labels,
    mix_batch,
    mix_inputs,
    mix_rows,
    refine_labels,
    sharpen,
    trust_guesses,
)
from rayfl.learn.relabel import relabel, relabel_confident
from rayfl.learn.sample_stream import SampleStream, pair_batches
from rayfl.learn.schedules import (
    Stages,
    anneal_by_cosine,
    forget_rate,
    ramp_exponentially,
    ramp_linearly,
    warm_decay,
)
from rayfl.models.pair import Pair
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
    "BatchLoss",
    "Blueprint",
    "BySize",
    "Client",
    "ClientId",
    "ConfigError",
    "Count",
    "CrossEntropy",
    "DataRef",
    "Division",
    "Ema",
    "Equal",
    "FedAvg",
    "Fit",
    "Fitting",
    "Fleet",
    "Fraction",
    "Frozen",
    "GaussianMixture",
    "Global",
    "Images",
    "Judged",
    "Labels",
    "LossMixture",
    "Natural",
    "NobodyLeft",
    "NonNegative",
    "Out",
    "Pair",
    "Phase",
    "Positive",
    "Pull",
    "RayflError",
    "Ref",
    "Replies",
    "Report",
    "SampleLoss",
    "SampleStream",
    "Served",
    "Shard",
    "Stages",
    "State",
    "Trained",
    "Vector",
    "WeightedMean",
    "Weighting",
    "anneal_by_cosine",
    "average_guesses",
    "blend_losses",
    "broken",
    "component",
    "distillation",
    "divide",
    "draw_batches",
    "draw_share",
    "encode_labels",
    "find_statistics",
    "for_epochs",
    "forget_rate",
    "judge",
    "keep_some",
    "kl_divergence",
    "mean_lid",
    "mix_batch",
    "mix_inputs",
    "mix_rows",
    "neutral",
    "outputs",
    "pair_batches",
    "ramp_exponentially",
    "ramp_linearly",
    "refine_labels",
    "refuse_idle_server",
    "relabel",
    "relabel_confident",
    "remeasure_statistics",
    "sample_losses",
    "select_small_losses",
    "sharpen",
    "slot",
    "soften",
    "softmax",
    "train",
    "trust_guesses",
    "vote_labels",
    "warm_decay",
]
