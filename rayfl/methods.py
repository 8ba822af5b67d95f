"""Everything that an author of methods imports, in one place.

docs/methods.md is the guide; `rayfl check my_methods:Name` tells whether a method keeps its
promises.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayfl.algorithms.fedavg import FedAvg as FedAvg
    from rayfl.algorithms.fedavg import Global as Global
    from rayfl.algorithms.fedavg import train as train
    from rayfl.algorithms.parts.aggregation import AGGREGATIONS as AGGREGATIONS
    from rayfl.algorithms.parts.aggregation import Aggregation as Aggregation
    from rayfl.algorithms.parts.aggregation import WeightedMean as WeightedMean
    from rayfl.algorithms.parts.batch_norm import find_statistics as find_statistics
    from rayfl.algorithms.parts.batch_norm import remeasure_statistics as remeasure_statistics
    from rayfl.algorithms.parts.server_training import for_epochs as for_epochs
    from rayfl.algorithms.parts.server_training import refuse_idle_server as refuse_idle_server
    from rayfl.algorithms.parts.weighting import WEIGHTINGS as WEIGHTINGS
    from rayfl.algorithms.parts.weighting import BySize as BySize
    from rayfl.algorithms.parts.weighting import Equal as Equal
    from rayfl.algorithms.parts.weighting import Weighting as Weighting
    from rayfl.component import Count as Count
    from rayfl.component import Fraction as Fraction
    from rayfl.component import Natural as Natural
    from rayfl.component import NonNegative as NonNegative
    from rayfl.component import Positive as Positive
    from rayfl.component import component as component
    from rayfl.component import neutral as neutral
    from rayfl.component import slot as slot
    from rayfl.errors import ConfigError as ConfigError
    from rayfl.errors import RayflError as RayflError
    from rayfl.errors import broken as broken
    from rayfl.estimate.gaussian_mixture import GaussianMixture as GaussianMixture
    from rayfl.estimate.lid import mean_lid as mean_lid
    from rayfl.estimate.mixture import LossMixture as LossMixture
    from rayfl.estimate.neighbour_votes import vote_labels as vote_labels
    from rayfl.estimate.probabilities import softmax as softmax
    from rayfl.learn.augment import AUGMENTATIONS as AUGMENTATIONS
    from rayfl.learn.augment import Augmentation as Augmentation
    from rayfl.learn.batches import Batch as Batch
    from rayfl.learn.batches import draw_batches as draw_batches
    from rayfl.learn.copies import Ema as Ema
    from rayfl.learn.copies import Frozen as Frozen
    from rayfl.learn.divide import Division as Division
    from rayfl.learn.divide import divide as divide
    from rayfl.learn.divide import keep_some as keep_some
    from rayfl.learn.fit import outputs as outputs
    from rayfl.learn.fit import sample_losses as sample_losses
    from rayfl.learn.judge import Judged as Judged
    from rayfl.learn.judge import judge as judge
    from rayfl.learn.local_fit import BatchLoss as BatchLoss
    from rayfl.learn.local_fit import Fit as Fit
    from rayfl.learn.local_fit import Fitting as Fitting
    from rayfl.learn.local_fit import Pull as Pull
    from rayfl.learn.local_fit import Trained as Trained
    from rayfl.learn.losses import LOSSES as LOSSES
    from rayfl.learn.losses.base import CROSS_ENTROPY as CROSS_ENTROPY
    from rayfl.learn.losses.base import CrossEntropy as CrossEntropy
    from rayfl.learn.losses.base import SampleLoss as SampleLoss
    from rayfl.learn.losses.distillation import distillation as distillation
    from rayfl.learn.losses.distillation import kl_divergence as kl_divergence
    from rayfl.learn.losses.distillation import soften as soften
    from rayfl.learn.losses.small_loss import select_small_losses as select_small_losses
    from rayfl.learn.mixing import average_guesses as average_guesses
    from rayfl.learn.mixing import blend_losses as blend_losses
    from rayfl.learn.mixing import draw_share as draw_share
    from rayfl.learn.mixing import encode_labels as encode_labels
    from rayfl.learn.mixing import mix_batch as mix_batch
    from rayfl.learn.mixing import mix_inputs as mix_inputs
    from rayfl.learn.mixing import mix_rows as mix_rows
    from rayfl.learn.mixing import refine_labels as refine_labels
    from rayfl.learn.mixing import sharpen as sharpen
    from rayfl.learn.mixing import trust_guesses as trust_guesses
    from rayfl.learn.relabel import relabel as relabel
    from rayfl.learn.relabel import relabel_confident as relabel_confident
    from rayfl.learn.sample_stream import SampleStream as SampleStream
    from rayfl.learn.sample_stream import pair_batches as pair_batches
    from rayfl.learn.schedules import Stages as Stages
    from rayfl.learn.schedules import anneal_by_cosine as anneal_by_cosine
    from rayfl.learn.schedules import forget_rate as forget_rate
    from rayfl.learn.schedules import ramp_exponentially as ramp_exponentially
    from rayfl.learn.schedules import ramp_linearly as ramp_linearly
    from rayfl.learn.schedules import warm_decay as warm_decay
    from rayfl.models.pair import Pair as Pair
    from rayfl.protocol import SERVER as SERVER
    from rayfl.protocol import Algorithm as Algorithm
    from rayfl.protocol import Blueprint as Blueprint
    from rayfl.protocol import Client as Client
    from rayfl.protocol import ClientId as ClientId
    from rayfl.protocol import DataRef as DataRef
    from rayfl.protocol import Fleet as Fleet
    from rayfl.protocol import Images as Images
    from rayfl.protocol import Labels as Labels
    from rayfl.protocol import NobodyLeft as NobodyLeft
    from rayfl.protocol import Out as Out
    from rayfl.protocol import Phase as Phase
    from rayfl.protocol import Ref as Ref
    from rayfl.protocol import Replies as Replies
    from rayfl.protocol import Report as Report
    from rayfl.protocol import Served as Served
    from rayfl.protocol import Shard as Shard
    from rayfl.protocol import State as State
    from rayfl.protocol import Vector as Vector

_HOMES: dict[str, tuple[str, ...]] = {
    "rayfl.algorithms.fedavg": (
        "FedAvg",
        "Global",
        "train",
    ),
    "rayfl.algorithms.parts.aggregation": (
        "AGGREGATIONS",
        "Aggregation",
        "WeightedMean",
    ),
    "rayfl.algorithms.parts.batch_norm": (
        "find_statistics",
        "remeasure_statistics",
    ),
    "rayfl.algorithms.parts.server_training": (
        "for_epochs",
        "refuse_idle_server",
    ),
    "rayfl.algorithms.parts.weighting": (
        "BySize",
        "Equal",
        "WEIGHTINGS",
        "Weighting",
    ),
    "rayfl.component": (
        "Count",
        "Fraction",
        "Natural",
        "NonNegative",
        "Positive",
        "component",
        "neutral",
        "slot",
    ),
    "rayfl.errors": (
        "ConfigError",
        "RayflError",
        "broken",
    ),
    "rayfl.estimate.gaussian_mixture": ("GaussianMixture",),
    "rayfl.estimate.lid": ("mean_lid",),
    "rayfl.estimate.mixture": ("LossMixture",),
    "rayfl.estimate.neighbour_votes": ("vote_labels",),
    "rayfl.estimate.probabilities": ("softmax",),
    "rayfl.learn.augment": (
        "AUGMENTATIONS",
        "Augmentation",
    ),
    "rayfl.learn.batches": (
        "Batch",
        "draw_batches",
    ),
    "rayfl.learn.copies": (
        "Ema",
        "Frozen",
    ),
    "rayfl.learn.divide": (
        "Division",
        "divide",
        "keep_some",
    ),
    "rayfl.learn.fit": (
        "outputs",
        "sample_losses",
    ),
    "rayfl.learn.judge": (
        "Judged",
        "judge",
    ),
    "rayfl.learn.local_fit": (
        "BatchLoss",
        "Fit",
        "Fitting",
        "Pull",
        "Trained",
    ),
    "rayfl.learn.losses": ("LOSSES",),
    "rayfl.learn.losses.base": (
        "CROSS_ENTROPY",
        "CrossEntropy",
        "SampleLoss",
    ),
    "rayfl.learn.losses.distillation": (
        "distillation",
        "kl_divergence",
        "soften",
    ),
    "rayfl.learn.losses.small_loss": ("select_small_losses",),
    "rayfl.learn.mixing": (
        "average_guesses",
        "blend_losses",
        "draw_share",
        "encode_labels",
        "mix_batch",
        "mix_inputs",
        "mix_rows",
        "refine_labels",
        "sharpen",
        "trust_guesses",
    ),
    "rayfl.learn.relabel": (
        "relabel",
        "relabel_confident",
    ),
    "rayfl.learn.sample_stream": (
        "SampleStream",
        "pair_batches",
    ),
    "rayfl.learn.schedules": (
        "Stages",
        "anneal_by_cosine",
        "forget_rate",
        "ramp_exponentially",
        "ramp_linearly",
        "warm_decay",
    ),
    "rayfl.models.pair": ("Pair",),
    "rayfl.protocol": (
        "Algorithm",
        "Blueprint",
        "Client",
        "ClientId",
        "DataRef",
        "Fleet",
        "Images",
        "Labels",
        "NobodyLeft",
        "Out",
        "Phase",
        "Ref",
        "Replies",
        "Report",
        "SERVER",
        "Served",
        "Shard",
        "State",
        "Vector",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

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


def __getattr__(name: str) -> Any:
    """Import on first use: a method without a loss of its own does without torch at the
    coordinator."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rayfl.methods' has no attribute '{name}'")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
