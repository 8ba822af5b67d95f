"""How a client trains locally: the settings that every method shares."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rayfl.component import Count, Fraction, Natural, NonNegative, neutral, slot
from rayfl.learn.augment import AUGMENTATIONS, Augmentation

Channels = Annotated[tuple[float, ...], Field(min_length=1)]


class Normalisation(BaseModel):
    """Per-channel mean and standard deviation of pixels in [0, 1]; one number serves every
    channel."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    mean: Channels = (0.0,)
    std: Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(min_length=1)] = (1.0,)


class LocalTraining(BaseModel):
    """Local optimisation of one visit. The optimiser is fresh at every visit."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    optimizer: Literal["sgd", "adam"] = "sgd"
    lr: NonNegative = 0.05
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    weight_decay: NonNegative = 0.0
    epochs: Natural = 1
    steps: Count | None = None
    """Local steps of a visit; replaces `epochs` where given."""
    batch_size: Count = 32
    drop_last: bool = False
    augment: Annotated[Augmentation, slot(AUGMENTATIONS)] = Field(
        default="none", validate_default=True
    )
    normalise: Normalisation | Literal["dataset"] | None = None
    """Applied to every pixel that a network sees; `dataset` measures the training set."""
    precision: Annotated[Literal["fp32", "bf16"], neutral("fp32")] = "fp32"
    """Arithmetic of a training step; weights, sums and evaluations are fp32 always."""
    stack: Annotated[Literal["never", "auto", "always"], neutral("never")] = "never"
    """Train many small clients of a place in lockstep; `auto` where that measures faster. Equal but
    for rounding, which may depend on who is trained together."""
    layout: Annotated[Literal["channels_last", "channels_first"], neutral("channels_last")] = (
        "channels_last"
    )
    """How images and kernels lie in memory. `channels_first` is faster on CPUs where kernels are
    larger than what they are applied to: large networks, small images, few to a batch. Equal but
    for rounding."""
    kernels: Annotated[Literal["whole", "reached"], neutral("whole")] = "whole"
    """`reached` leaves out what a convolution's kernel only ever lays on padding: much of a large
    network, where images are small. Equal but for rounding; such a network is not stacked."""
    compile: Annotated[
        Literal["never", "default", "reduce-overhead", "max-autotune"], neutral("never")
    ] = "never"
    """torch.compile's mode for the network; `reduce-overhead` records CUDA graphs."""


class Participation(BaseModel):
    """Who takes part in a round, and for how many rounds."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rounds: Natural = 10
    fraction: Fraction | None = None
    """Share of the clients in a round: max(int(fraction * clients), 1)."""
    clients_per_round: Count | None = None

    @model_validator(mode="after")
    def one_rule(self) -> Participation:
        if self.fraction is not None and self.clients_per_round is not None:
            raise ValueError("give fraction or clients_per_round, not both")
        return self

    def cohort(self, clients: int) -> int:
        """How many of `clients` take part in a round (the truncation is FedAvg's: 0.29 of 100 is
        28)."""
        if self.clients_per_round is not None:
            return min(self.clients_per_round, clients)
        return max(int((1.0 if self.fraction is None else self.fraction) * clients), 1)


class Training(Participation, LocalTraining):
    """Rounds, participation and local optimisation."""
