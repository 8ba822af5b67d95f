"""What changes from round to round, or from step to step: ramps, learning rates, forget rates and
the stages of a method.

Rounds and steps count from 0."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rayfl.errors import ConfigError, broken


def ramp_linearly(t: float, begin: float, length: float) -> float:
    """clip((t - begin) / length, 0, 1): DivideMix's weight of guesses.

    Parameters
    ----------
    t
        The round (or step), from 0; a part of a round may be given too.
    begin
        Where the ramp leaves 0.
    length
        After so many rounds it is 1; without length it steps from 0 to 1 behind `begin`.

    Examples
    --------
    >>> [ramp_linearly(t, begin=100, length=16) for t in (100, 101, 108, 200)]
    [0.0, 0.0625, 0.5, 1.0]
    """
    if length <= 0:
        return float(t > begin)
    return min(max((t - begin) / length, 0.0), 1.0)


def ramp_exponentially(
    t: float,
    begin: float,
    end: float,
    sharpness: float = 5.0,
) -> float:
    """exp(-sharpness (1 - u)^2) with u = clip((t - begin) / (end - begin), 0, 1), the ramp of Laine
    and Aila (Temporal ensembling, ICLR 2017); FedNoRo's weight of distillation.

    Parameters
    ----------
    t
        The round, from 0.
    begin
        Until here the value is exp(-sharpness).
    end
        From here on it is 1.
    sharpness
        How late the ramp rises; 5 in most papers.

    Examples
    --------
    >>> [round(0.8 * ramp_exponentially(t, 10, 49), 6) for t in (10, 30, 49)]
    [0.00539, 0.244177, 0.8]
    """
    reached = ramp_linearly(t, begin, end - begin) if end > begin else float(t >= end)
    return math.exp(-sharpness * (1.0 - reached) ** 2)


def anneal_by_cosine(step: int, steps: int) -> float:
    """(1 + cos(pi step / steps)) / 2: from 1 down to 0 (Loshchilov and Hutter, SGDR, ICLR 2017).

    Parameters
    ----------
    step
        The step or round, from 0.
    steps
        How many there are; afterwards the factor stays 0.

    Examples
    --------
    >>> [round(anneal_by_cosine(step, 4), 4) for step in range(5)]
    [1.0, 0.8536, 0.5, 0.1464, 0.0]
    """
    reached = ramp_linearly(step, 0, steps)
    return (1.0 + math.cos(math.pi * reached)) / 2.0


def decay_by_cosine(step: int, steps: int, cycles: float = 7 / 16) -> float:
    """cos(pi cycles step / steps), FixMatch's factor, which never reaches 0 (Sohn et al., 2020).

    Parameters
    ----------
    step
        The step or round, from 0.
    steps
        How many there are.
    cycles
        The part of half a turn that is run through.

    Examples
    --------
    >>> [round(decay_by_cosine(step, 4), 4) for step in (0, 2, 4)]
    [1.0, 0.773, 0.1951]
    """
    return math.cos(math.pi * cycles * ramp_linearly(step, 0, steps))


def forget_rate(
    t: int,
    most: float,
    rounds: int,
    exponent: float = 1.0,
) -> float:
    """R_t = tau^c min(t / (T_k - 1), 1): the share of a batch that Co-teaching leaves out.

    Parameters
    ----------
    t
        The round, from 0.
    most
        tau, the rate at the end: the share of wrong labels.
    rounds
        T_k: the rate is full in round T_k - 1; at once where T_k is 0 or 1.
    exponent
        c, of the rate itself, as in the authors' code.

    Examples
    --------
    >>> [round(forget_rate(t, 0.2, 100), 6) for t in (0, 1, 50, 99, 499)]
    [0.0, 0.00202, 0.10101, 0.2, 0.2]
    """
    # The authors take `linspace(0, tau^c, T_k)`, whose last point is tau itself.
    share = 1.0 if rounds < 2 else min(t / (rounds - 1), 1.0)
    return float(most**exponent * share)


def warm_decay(step: int, most: float = 0.999) -> float:
    """min(1 - 1 / (n + 1), most): the decay of a mean teacher, which begins as a copy of its
    student (Tarvainen and Valpola, 2017).

    Parameters
    ----------
    step
        n, how many steps the teacher has followed before.
    most
        The decay at the end.

    Examples
    --------
    >>> [warm_decay(n) for n in (0, 1, 9, 999, 5000)]
    [0.0, 0.5, 0.9, 0.999, 0.999]
    """
    return min(1 - 1 / (step + 1), most)


@dataclass(frozen=True)
class StageRound:
    """Where a round stands in its method.

    Attributes
    ----------
    name
        What the stage is called.
    index
        How many rounds of this stage lie before.
    first
        Whether this is the stage's first round.
    last
        Whether it is its last round.
    """

    name: str
    index: int
    first: bool
    last: bool


@dataclass(frozen=True)
class Stages:
    """The parts of a method that follow each other, by name, with how many rounds each takes.

    A stage of 0 rounds does not occur. The last stage may take None: all the rounds that are left.
    A round behind the end belongs to the last stage that occurs.

    Parameters
    ----------
    rounds
        The length of each stage by its name, in the order in which they are run through.

    Examples
    --------
    >>> stages = Stages({"correct": 2, "finetune": 1, "usual": None})
    >>> [stages.at(t).name for t in range(5)]
    ['correct', 'correct', 'finetune', 'usual', 'usual']
    >>> stages.at(1)
    StageRound(name='correct', index=1, first=False, last=True)
    """

    rounds: Mapping[str, int | None]

    def __post_init__(self) -> None:
        lengths = list(self.rounds.values())
        known = [length for length in lengths if length is not None]
        if min(known, default=0) < 0 or not any(length != 0 for length in lengths):
            rule = "stages take 0 rounds or more, and one of them takes some"
            raise ConfigError(broken(rule, dict(self.rounds)))
        if None in lengths[:-1]:
            rule = "only the last stage takes all the rounds that are left (None)"
            raise ConfigError(broken(rule, dict(self.rounds)))

    def at(self, t: int) -> StageRound:
        """The stage of a round.

        Parameters
        ----------
        t
            The round, from 0.
        """
        # A method without one of its stages is an ablation, and needs no branch of its own.
        occurring = [(name, length) for name, length in self.rounds.items() if length != 0]
        index = t
        for name, length in occurring[:-1]:
            assert length is not None, "only the last stage is open"
            if index < length:
                return _describe_stage(name, index, length)
            index -= length
        name, length = occurring[-1]
        return _describe_stage(name, index, length)


def _describe_stage(name: str, index: int, length: int | None) -> StageRound:
    ends = length is not None and index == length - 1
    return StageRound(
        name,
        index,
        first=index == 0,
        last=ends,
    )
