"""Everything that an author of methods imports, in one place.

docs/methods.md is the guide; `rayfl check my_methods:Name` tells whether a method keeps its
promises.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rayfl.algorithms.fedavg import (
        FedAvg as FedAvg,
        Global as Global,
        train as train,
    )
    from rayfl.algorithms.parts.aggregation import (
        AGGREGATIONS as AGGREGATIONS,
        Aggregation as Aggregation,
        WeightedMean as WeightedMean,
    )
    from rayfl.algorithms.parts.batch_norm import (
        find_statistics as find_statistics,
        measure_statistics as measure_statistics,
        remeasure_statistics as remeasure_statistics,
    )
    from rayfl.algorithms.parts.distance_weighting import (
        ByDistance as ByDistance,
        dampen_by_largest as dampen_by_largest,
        dampen_by_size as dampen_by_size,
        find_distances as find_distances,
    )
    from rayfl.algorithms.parts.labels_at_server import (
        LabelsAtServer as LabelsAtServer,
    )
    from rayfl.algorithms.parts.report_weighting import (
        ByReport as ByReport,
    )
    from rayfl.algorithms.parts.server_training import (
        for_epochs as for_epochs,
        refuse_idle_server as refuse_idle_server,
        refuse_unfit_labels as refuse_unfit_labels,
        train_on_labels as train_on_labels,
    )
    from rayfl.algorithms.parts.weighting import (
        WEIGHTINGS as WEIGHTINGS,
        BySize as BySize,
        Equal as Equal,
        Weighting as Weighting,
    )
    from rayfl.component import (
        Count as Count,
        Fraction as Fraction,
        Natural as Natural,
        NonNegative as NonNegative,
        Positive as Positive,
        component as component,
        neutral as neutral,
        slot as slot,
    )
    from rayfl.errors import (
        ConfigError as ConfigError,
        RayflError as RayflError,
        broken as broken,
    )
    from rayfl.estimate.gaussian_mixture import (
        GaussianMixture as GaussianMixture,
    )
    from rayfl.estimate.lid import (
        local_intrinsic_dimensionality as local_intrinsic_dimensionality,
        mean_lid as mean_lid,
    )
    from rayfl.estimate.mixture import (
        LossMixture as LossMixture,
    )
    from rayfl.estimate.neighbour_votes import (
        measure_disagreement as measure_disagreement,
        vote_labels as vote_labels,
    )
    from rayfl.estimate.probabilities import (
        measure_confidence as measure_confidence,
        measure_entropy as measure_entropy,
        softmax as softmax,
    )
    from rayfl.estimate.scaling import (
        average_by_class as average_by_class,
        fill_and_scale as fill_and_scale,
    )
    from rayfl.learn.answer_history import (
        AnswerHistory as AnswerHistory,
    )
    from rayfl.learn.augment import (
        AUGMENTATIONS as AUGMENTATIONS,
        Augmentation as Augmentation,
    )
    from rayfl.learn.augment.strong import (
        Strong as Strong,
    )
    from rayfl.learn.augment.views import (
        Weak as Weak,
    )
    from rayfl.learn.batches import (
        Batch as Batch,
        draw_batches as draw_batches,
    )
    from rayfl.learn.copies import (
        Ema as Ema,
        Frozen as Frozen,
    )
    from rayfl.learn.distance import (
        Distance as Distance,
        measure_distance as measure_distance,
    )
    from rayfl.learn.divide import (
        Division as Division,
        divide as divide,
        keep_some as keep_some,
    )
    from rayfl.learn.fit import (
        compute_losses as compute_losses,
        compute_outputs as compute_outputs,
    )
    from rayfl.learn.judge import (
        Judged as Judged,
        judge as judge,
    )
    from rayfl.learn.local_fit import (
        BatchLoss as BatchLoss,
        Fit as Fit,
        Fitting as Fitting,
        Pull as Pull,
        Trained as Trained,
    )
    from rayfl.learn.losses import (
        LOSSES as LOSSES,
    )
    from rayfl.learn.losses.base import (
        CROSS_ENTROPY as CROSS_ENTROPY,
        CrossEntropy as CrossEntropy,
        SampleLoss as SampleLoss,
    )
    from rayfl.learn.losses.distillation import (
        distillation as distillation,
        kl_divergence as kl_divergence,
        soften as soften,
    )
    from rayfl.learn.losses.entropy import (
        entropy as entropy,
        negative_entropy as negative_entropy,
        prior_cross_entropy as prior_cross_entropy,
        prior_divergence as prior_divergence,
    )
    from rayfl.learn.losses.logit_adjustment import (
        adjust_logits as adjust_logits,
        log_prior as log_prior,
    )
    from rayfl.learn.losses.small_loss import (
        select_small_losses as select_small_losses,
    )
    from rayfl.learn.losses.soft_cross_entropy import (
        soft_cross_entropy as soft_cross_entropy,
    )
    from rayfl.learn.losses.squared_error import (
        squared_error as squared_error,
    )
    from rayfl.learn.losses.unlabelled import (
        UNLABELLED as UNLABELLED,
        UnlabelledLoss as UnlabelledLoss,
    )
    from rayfl.learn.mixing import (
        average_guesses as average_guesses,
        blend_losses as blend_losses,
        draw_share as draw_share,
        encode_labels as encode_labels,
        mix_batch as mix_batch,
        mix_inputs as mix_inputs,
        mix_rows as mix_rows,
        refine_labels as refine_labels,
        sharpen as sharpen,
        trust_guesses as trust_guesses,
    )
    from rayfl.learn.relabel import (
        relabel as relabel,
        relabel_confident as relabel_confident,
    )
    from rayfl.learn.sample_stream import (
        SampleStream as SampleStream,
        draw_endless_batches as draw_endless_batches,
        pair_batches as pair_batches,
    )
    from rayfl.learn.schedules import (
        Stages as Stages,
        anneal_by_cosine as anneal_by_cosine,
        decay_by_cosine as decay_by_cosine,
        forget_rate as forget_rate,
        ramp_exponentially as ramp_exponentially,
        ramp_linearly as ramp_linearly,
        warm_decay as warm_decay,
    )
    from rayfl.learn.selection import (
        Selection as Selection,
    )
    from rayfl.models import (
        ENCODERS as ENCODERS,
    )
    from rayfl.models.encoders.base import (
        EncoderSpec as EncoderSpec,
    )
    from rayfl.models.pair import (
        Pair as Pair,
    )
    from rayfl.protocol import (
        SERVER as SERVER,
        Algorithm as Algorithm,
        Blueprint as Blueprint,
        Client as Client,
        ClientId as ClientId,
        DataRef as DataRef,
        Fleet as Fleet,
        Images as Images,
        Labels as Labels,
        Model as Model,
        NobodyLeft as NobodyLeft,
        Out as Out,
        Phase as Phase,
        Ref as Ref,
        Replies as Replies,
        Report as Report,
        Served as Served,
        Shard as Shard,
        State as State,
        Vector as Vector,
    )

_HOMES = {
    "rayfl.algorithms.fedavg": "FedAvg Global train",
    "rayfl.algorithms.parts.aggregation": "AGGREGATIONS Aggregation WeightedMean",
    "rayfl.algorithms.parts.batch_norm": "find_statistics measure_statistics remeasure_statistics",
    "rayfl.algorithms.parts.distance_weighting": (
        "ByDistance dampen_by_largest dampen_by_size find_distances"
    ),
    "rayfl.algorithms.parts.labels_at_server": "LabelsAtServer",
    "rayfl.algorithms.parts.report_weighting": "ByReport",
    "rayfl.algorithms.parts.server_training": (
        "for_epochs refuse_idle_server refuse_unfit_labels train_on_labels"
    ),
    "rayfl.algorithms.parts.weighting": "BySize Equal WEIGHTINGS Weighting",
    "rayfl.component": "Count Fraction Natural NonNegative Positive component neutral slot",
    "rayfl.errors": "ConfigError RayflError broken",
    "rayfl.estimate.gaussian_mixture": "GaussianMixture",
    "rayfl.estimate.lid": "local_intrinsic_dimensionality mean_lid",
    "rayfl.estimate.mixture": "LossMixture",
    "rayfl.estimate.neighbour_votes": "measure_disagreement vote_labels",
    "rayfl.estimate.probabilities": "measure_confidence measure_entropy softmax",
    "rayfl.estimate.scaling": "average_by_class fill_and_scale",
    "rayfl.learn.answer_history": "AnswerHistory",
    "rayfl.learn.augment": "AUGMENTATIONS Augmentation",
    "rayfl.learn.augment.strong": "Strong",
    "rayfl.learn.augment.views": "Weak",
    "rayfl.learn.batches": "Batch draw_batches",
    "rayfl.learn.copies": "Ema Frozen",
    "rayfl.learn.distance": "Distance measure_distance",
    "rayfl.learn.divide": "Division divide keep_some",
    "rayfl.learn.fit": "compute_losses compute_outputs",
    "rayfl.learn.judge": "Judged judge",
    "rayfl.learn.local_fit": "BatchLoss Fit Fitting Pull Trained",
    "rayfl.learn.losses": "LOSSES",
    "rayfl.learn.losses.base": "CROSS_ENTROPY CrossEntropy SampleLoss",
    "rayfl.learn.losses.distillation": "distillation kl_divergence soften",
    "rayfl.learn.losses.entropy": "entropy negative_entropy prior_cross_entropy prior_divergence",
    "rayfl.learn.losses.logit_adjustment": "adjust_logits log_prior",
    "rayfl.learn.losses.small_loss": "select_small_losses",
    "rayfl.learn.losses.soft_cross_entropy": "soft_cross_entropy",
    "rayfl.learn.losses.squared_error": "squared_error",
    "rayfl.learn.losses.unlabelled": "UNLABELLED UnlabelledLoss",
    "rayfl.learn.mixing": (
        "average_guesses blend_losses draw_share encode_labels mix_batch mix_inputs "
        "mix_rows refine_labels sharpen trust_guesses"
    ),
    "rayfl.learn.relabel": "relabel relabel_confident",
    "rayfl.learn.sample_stream": "SampleStream draw_endless_batches pair_batches",
    "rayfl.learn.schedules": (
        "Stages anneal_by_cosine decay_by_cosine forget_rate ramp_exponentially "
        "ramp_linearly warm_decay"
    ),
    "rayfl.learn.selection": "Selection",
    "rayfl.models": "ENCODERS",
    "rayfl.models.encoders.base": "EncoderSpec",
    "rayfl.models.pair": "Pair",
    "rayfl.protocol": (
        "Algorithm Blueprint Client ClientId DataRef Fleet Images Labels Model NobodyLeft Out "
        "Phase Ref Replies Report SERVER Served Shard State Vector"
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names.split()}

__all__ = sorted(_HOME_OF)


def __getattr__(name: str) -> Any:
    """Import on first use: a method without a loss of its own does without torch at the
    coordinator."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'rayfl.methods' has no attribute '{name}'")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(_HOME_OF)
