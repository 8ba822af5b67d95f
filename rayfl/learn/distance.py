"""How far apart two models are, tensor by tensor.

    total = sum_l || a_l - b_l ||_2        norm = || a - b ||_2

Both are called distance in papers and differ: of the differences (3, 4) and (12), total is 17 and
norm 13. FedNoRo's and RSCFed's code sum over tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from rayfl.arrays import Vector
from rayfl.errors import DataError, broken
from rayfl.learn.resident import Resident


@dataclass(frozen=True)
class Distance:
    """Between two models.

    Attributes
    ----------
    by_tensor
        The Euclidean distance of every tensor, by its name in the network.
    """

    by_tensor: Mapping[str, float]

    @property
    def total(self) -> float:
        """The sum over the tensors."""
        return math.fsum(self.by_tensor.values())

    @property
    def norm(self) -> float:
        """The Euclidean distance of all numbers."""
        return math.sqrt(math.fsum(gap**2 for gap in self.by_tensor.values()))


def measure_distance(
    network: Resident,
    a: Vector,
    b: Vector,
    statistics: bool = True,
) -> Distance:
    """The distance of two models of one network, in float64.

    Parameters
    ----------
    network
        What says which tensor lies where: `client.learner.shape_of()`.
    a
        One model's weights.
    b
        The other's.
    statistics
        Whether BatchNorm's running statistics count, as in FedNoRo's code. Counters never do.
    """
    length = len(network.flat)
    if len(a) != length or len(b) != length:
        rule = f"models of this network have {length} numbers"
        raise DataError(broken(rule, f"{len(a)} and {len(b)}"))
    gaps = {}
    for name, span in name_spans(network, statistics).items():
        # Late in a run the numbers are large beside their differences.
        difference = a[span].astype(np.float64) - b[span]
        # Not by BLAS, whose sums depend on how many threads a place has.
        gaps[name] = math.sqrt(float(np.square(difference).sum()))
    return Distance(gaps)


def name_spans(network: Resident, statistics: bool = True) -> dict[str, slice]:
    """Where every tensor of a network lies in its flat vector, by name.

    Parameters
    ----------
    network
        `client.learner.shape_of()`.
    statistics
        Whether floating-point buffers are listed too.
    """
    names = {id(parameter): name for name, parameter in network.net.named_parameters()}
    if statistics:
        names |= {id(buffer): name for name, buffer in network.net.named_buffers()}
    # Shared tensors have one home; counters have none.
    homes = [home for home in network.homes if id(home.tensor) in names]
    return {names[id(home.tensor)]: home.span for home in homes}
