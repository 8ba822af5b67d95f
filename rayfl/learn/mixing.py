"""mixup and MixMatch: pure functions that mix inputs and what they are to be called.

mixup (Zhang et al., ICLR 2018), with one share lambda ~ Beta(alpha, alpha) a batch:

    x~ = lambda x_i + (1 - lambda) x_j,   L = lambda l(x~, y_i) + (1 - lambda) l(x~, y_j)

MixMatch (Berthelot et al., NeurIPS 2019) mixes rows of probabilities in place of losses, takes
max(lambda, 1 - lambda), so that the mixture stays nearer to the first, guesses labels by the mean
answer to several views, and sharpens the guess:

    sharpen(p, T)_c = p_c^(1/T) / sum_k p_k^(1/T)

Everything that is drawn comes from the generator that is given, commonly the batch's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rayfl.errors import ConfigError, DataError, broken

Losses = Callable[[Tensor, Tensor], Tensor]
"""One loss a sample, from logits and labels: a `SampleLoss`, say."""


def draw_share(alpha: float, generator: torch.Generator, at_least_half: bool = False) -> float:
    """lambda, one draw from Beta(alpha, alpha); 1, which mixes nothing, at alpha = 0.

    Parameters
    ----------
    alpha
        Both parameters of the beta distribution. mixup: 1; DivideMix: 4; SemiFL: 0.75.
    generator
        What the draw comes from; at alpha = 0 nothing is drawn.
    at_least_half
        Take max(lambda, 1 - lambda), as MixMatch does.
    """
    if not 0 <= alpha < float("inf"):
        raise ConfigError(
            broken("mixup's alpha must be finite and at least 0", alpha, "0 switches mixup off.")
        )
    if alpha == 0:
        return 1.0
    # torch draws no beta variate from a given generator; numpy does, seeded by one draw from it
    seed = torch.randint(
        2**63 - 1,
        (),
        generator=generator,
        device=generator.device,
    )
    share = float(np.random.default_rng(int(seed)).beta(alpha, alpha))
    return max(share, 1 - share) if at_least_half else share


def mix_inputs(x: Tensor, other: Tensor, share: float) -> Tensor:
    """share * x + (1 - share) * other; `x` itself at 1.

    Parameters
    ----------
    x
        Network input, or rows of probabilities.
    other
        What it is mixed with, of the same shape.
    share
        lambda, the part of `x`.
    """
    if not (x.is_floating_point() and other.is_floating_point()):
        rule, remedy = "mixup takes float inputs", "Normalise the images first."
        raise DataError(broken(rule, x.dtype if other.is_floating_point() else other.dtype, remedy))
    if x.shape != other.shape:
        rule = "what is mixed has one shape"
        raise DataError(broken(rule, f"{tuple(x.shape)} and {tuple(other.shape)}"))
    return x if share == 1 else torch.lerp(other, x, share)


@dataclass(frozen=True)
class MixedBatch:
    """A batch mixed with a permutation of itself.

    Attributes
    ----------
    x
        The mixed input.
    share
        lambda, the part of each image's own in it.
    other
        Which image each one is mixed with: positions in the batch.
    """

    x: Tensor
    share: float
    other: Tensor

    def blend_losses(self, loss: Losses, logits: Tensor, y: Tensor) -> Tensor:
        """lambda l(z, y_i) + (1 - lambda) l(z, y_j), one value a sample.

        Parameters
        ----------
        loss
            One loss a sample, from logits and targets.
        logits
            What the network answers to `x`.
        y
            The labels (or rows) of the batch before it was mixed.
        """
        return blend_losses(
            loss,
            logits,
            y,
            y[self.other],
            self.share,
        )


def blend_losses(
    loss: Losses,
    logits: Tensor,
    y: Tensor,
    other: Tensor,
    share: float,
) -> Tensor:
    """The losses of mixed input with both of its labels, one value a sample.

    For cross-entropy this equals the loss with rows that are mixed alike, without one-hot rows.

    Parameters
    ----------
    loss
        One loss a sample, from logits and targets.
    logits
        What the network answers to the mixture.
    y
        Labels of the first part.
    other
        Labels of the second part.
    share
        lambda, the part of the first.
    """
    # Two losses of integers cost less than one of rows, and ask for no number of classes.
    own = loss(logits, y)
    return own if share == 1 else share * own + (1 - share) * loss(logits, other)


def mix_batch(
    x: Tensor,
    alpha: float,
    generator: torch.Generator,
    at_least_half: bool = False,
) -> MixedBatch:
    """A batch, mixed with a permutation of itself by one share.

    Parameters
    ----------
    x
        Network input, (N, ...).
    alpha
        Of the beta distribution; 0 mixes nothing and draws nothing.
    generator
        What share and permutation are drawn from.
    at_least_half
        Whether each image keeps the larger part.
    """
    share = draw_share(alpha, generator, at_least_half)
    if share == 1:
        return MixedBatch(mix_inputs(x, x, share), share, torch.arange(len(x), device=x.device))
    other = torch.randperm(len(x), generator=generator, device=generator.device).to(x.device)
    return MixedBatch(mix_inputs(x, x[other], share), share, other)


def mix_rows(
    x: Tensor,
    rows: Tensor,
    alpha: float,
    generator: torch.Generator,
    at_least_half: bool = False,
) -> tuple[Tensor, Tensor]:
    """A batch and its rows of probabilities, both mixed with the same permutation of themselves.

    This is MixMatch's step on all views of labelled and guessed samples, one behind the other.

    Parameters
    ----------
    x
        Network input, (N, ...).
    rows
        Targets, one row of probabilities a sample (N, C); see `encode_labels`.
    alpha
        Of the beta distribution; 0 mixes nothing and draws nothing.
    generator
        What share and permutation are drawn from.
    at_least_half
        Whether each image keeps the larger part, as in MixMatch.
    """
    if rows.ndim != 2 or not rows.is_floating_point() or len(rows) != len(x):
        rule = f"mixup takes labels as rows of probabilities, one for each of {len(x)} inputs"
        got, remedy = f"{rows.dtype} {tuple(rows.shape)}", "Use rayfl.learn.mixing.encode_labels."
        raise DataError(broken(rule, got, remedy))
    mixed = mix_batch(
        x,
        alpha,
        generator,
        at_least_half,
    )
    return mixed.x, mix_inputs(rows, rows[mixed.other], mixed.share)


def encode_labels(y: Tensor, classes: int) -> Tensor:
    """Labels (N,) as one-hot rows (N, C) in float32.

    Parameters
    ----------
    y
        Labels in 0..classes-1.
    classes
        C, how many there are.
    """
    return torch.nn.functional.one_hot(y, classes).float()


def sharpen(p: Tensor, temperature: float) -> Tensor:
    """p^(1/T), each row scaled to sum 1; p itself at T = 1.

    Parameters
    ----------
    p
        Rows of probabilities, (N, C).
    temperature
        T: towards 0 a row becomes its largest class alone. DivideMix, MixMatch: 0.5; UDA: 0.4.
    """
    if not temperature > 0:
        raise ConfigError(broken("the temperature of sharpening must be positive", temperature))
    if temperature == 1:
        return p
    # Of the largest alone, which leaves the ratio and keeps small powers from vanishing.
    powers = (p / p.amax(-1, keepdim=True)) ** (1 / temperature)
    return powers / powers.sum(-1, keepdim=True)


def average_guesses(answers: Sequence[Tensor]) -> Tensor:
    """The mean of the class probabilities of several answers to the same images, without gradient.

    Parameters
    ----------
    answers
        Logits (N, C) of every view, and of every network that is asked.
    """
    guesses = [logits.detach().softmax(-1) for logits in answers]
    # Of probabilities, not of logits: a view that is sure of itself must not outvote the others.
    return torch.stack(guesses).mean(0)


def refine_labels(rows: Tensor, guess: Tensor, trust: Tensor) -> Tensor:
    """w t + (1 - w) p, DivideMix's co-refinement.

    Parameters
    ----------
    rows
        t, what the labels say, (N, C).
    guess
        p, what the networks say, (N, C).
    trust
        w, how likely each label is right, (N,).
    """
    w = trust[:, None]
    return w * rows + (1 - w) * guess


def trust_guesses(p: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """FixMatch's pseudo-labels: the likeliest class of every row, and whether its probability
    reaches the threshold.

    Parameters
    ----------
    p
        Rows of probabilities, (N, C).
    threshold
        The least probability. FixMatch: 0.95; above 1 nothing reaches it.
    """
    surest, labels = p.detach().max(-1)
    return labels, surest >= threshold
