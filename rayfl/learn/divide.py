"""Dividing samples into likely clean and likely wrong ones by their losses.

A mixture of two Gaussians on the losses of all samples; those of the component with the smaller
mean are clean (Arazo et al., ICML 2019; DivideMix; FedRN). What is done where the losses do not
bear a mixture is FedRN's: losses that are not finite have no opinion, and a mask that would keep
nothing keeps everything."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rayfl.arrays import Bools, Floats
from rayfl.estimate.mixture import LossMixture


@dataclass(frozen=True)
class Division:
    """What one model's losses say of a client's labels.

    Attributes
    ----------
    clean
        How likely each label is right, (N,); all nan if some loss is not finite.
    kept
        Which samples are likely clean, (N,); all of them where none would be.
    separated
        Whether the losses hold two groups.
    inverted
        How many samples count as wrong although every clean one has a larger loss: a narrow clean
        component beside a wide one.
    """

    clean: Floats
    kept: Bools
    separated: bool
    inverted: int

    @property
    def usable(self) -> bool:
        """Whether every loss was finite."""
        return bool(np.isfinite(self.clean).all())


def divide(
    losses: ArrayLike,
    mixture: LossMixture | None = None,
    threshold: float = 0.5,
) -> Division:
    """Divide samples by their losses.

    Parameters
    ----------
    losses
        One a sample, (N,): `judge(client, w).losses`.
    mixture
        How the two Gaussians are fitted; by default FedRN's way.
    threshold
        A sample is kept if the probability of its label being right is above this.
    """
    values = np.asarray(losses, dtype=np.float64)
    if not np.isfinite(values).all():
        # The model is broken, not its losses alone: it has no say, as in FedRN.
        unknown = np.full(len(values), np.nan)
        return Division(
            unknown,
            np.ones(len(values), dtype=bool),
            separated=True,
            inverted=0,
        )
    split = (mixture or LossMixture()).fit(values)
    likely = split.clean > threshold
    least = values.min(initial=np.inf, where=likely)
    # A wide Gaussian is the likelier one on both sides of a narrow one.
    inverted = 0 if np.isinf(least) else int((values < least).sum())
    return Division(
        split.clean,
        keep_some(likely),
        split.separated,
        inverted,
    )


def keep_some(mask: Bools) -> Bools:
    """The mask, or everything where it would keep nothing.

    Parameters
    ----------
    mask
        Which samples are wanted, (N,).
    """
    return mask if mask.any() else np.ones_like(mask)
