"""Further networks beside the one that is trained: frozen copies, and teachers that follow.

A place keeps its networks from client to client; what is made here is always loaded with weights
first, so that nothing of one client reaches the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from rayfl.arrays import Vector
from rayfl.errors import ConfigError, RayflError, broken
from rayfl.learn.fit import LONE
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Trainee
from rayfl.learn.resident import Resident

Decay = float | Callable[[int], float]


class Frozen:
    """A network that only answers: evaluation mode, no gradients.

    Parameters
    ----------
    client
        Whose visit it serves.
    w
        Its weights.
    name
        What it is called at this place; two that are asked in one visit have two names.

    Examples
    --------
    >>> teacher = Frozen(client, w, "teacher")  # doctest: +SKIP
    >>> targets = soften(teacher(batch.x), 0.8)  # doctest: +SKIP
    """

    def __init__(self, client: Trainee, w: Vector, name: str = "frozen") -> None:
        self._name = _check_name(name)
        self._loads = _loads_of(client.learner)
        # A second copy of this name would take the first one's network without a word.
        self._load = self._loads.get(name, 0) + 1
        self._loads[name] = self._load
        self.resident = client.learner.resident(w, name)
        self._set_mode(training=False)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Its logits.

        Parameters
        ----------
        x
            Network input: `batch.x`, or a `batch.view(...)`.
        """
        self._check_own()
        answer: Tensor = self.resident.net(x)
        return answer

    def dump(self) -> Vector:
        """A copy of its weights."""
        self._check_own()
        return self.resident.dump()

    def _set_mode(self, training: bool) -> None:
        self._training = training
        self.resident.net.train(training)

    def _check_own(self) -> None:
        if self._loads[self._name] != self._load:
            rule = "networks that are used in one visit have a name each"
            remedy = "Say Frozen(client, w, name) with different names."
            raise RayflError(broken(rule, f"'{self._name}' twice", remedy))
        # A Fit of several networks sets those that it trains to training mode.
        if self.resident.net.training != self._training:
            rule = "a copy is called otherwise than the networks that a Fit trains"
            remedy = "Choose another name for the copy."
            raise RayflError(broken(rule, f"'{self._name}' for both", remedy))


class Ema(Frozen):
    """A teacher: theta' <- decay theta' + (1 - decay) theta after every step of its student
    (Tarvainen and Valpola, Mean teachers, NIPS 2017).

    Parameters
    ----------
    client
        Whose visit it serves.
    start
        Its weights: those of an earlier visit, or what the student begins with.
    decay
        The share that a step leaves, or a function of how many steps were taken before.
    name
        What it is called at this place.
    steps
        Steps that it has followed in earlier visits.
    statistics
        Where its BatchNorm statistics come from: `student` copies them (and the teacher answers in
        evaluation mode); `own` leaves them to its own passes, in training mode.

    Examples
    --------
    >>> teacher = Ema(client, client.state.get("teacher", w), 0.999)  # doctest: +SKIP
    >>> trained = yield Fit(w, loss=loss, after_step=teacher.follow)  # doctest: +SKIP
    >>> return Out(update=trained.weights, state={"teacher": teacher.dump()})  # doctest: +SKIP
    """

    def __init__(
        self,
        client: Trainee,
        start: Vector,
        decay: Decay,
        name: str = "teacher",
        steps: int = 0,
        statistics: Literal["student", "own"] = "student",
    ) -> None:
        super().__init__(client, start, name)
        if not callable(decay) and not 0 <= decay <= 1:
            raise ConfigError(broken("the decay of a teacher lies in [0, 1]", decay))
        self.decay = decay
        self.steps = steps
        self.statistics = statistics
        self._set_mode(training=statistics == "own")

    @torch.no_grad()
    def follow(self, student: Resident) -> None:
        """Take over a part of the student; `Fit(after_step=teacher.follow)`.

        Parameters
        ----------
        student
            The resident network that was just trained by a step.
        """
        self._check_own()
        own = self.resident
        if len(student.flat) != len(own.flat):
            rule = f"a teacher has as many numbers as its student ({len(student.flat)})"
            raise RayflError(broken(rule, len(own.flat)))
        decay = self.decay(self.steps) if callable(self.decay) else self.decay
        own.parameters.lerp_(student.parameters, 1 - decay)
        if self.statistics == "student":
            # Behind the parameters lie what is frozen and the floating-point buffers.
            rest = slice(own.n_parameters, None)
            own.flat[rest] = student.flat[rest]
        self.steps += 1


def _check_name(name: str) -> str:
    if name == LONE:
        rule = f"a copy is not called '{LONE}', which is the network that a Fit trains"
        raise RayflError(broken(rule, f"'{name}'", "Choose another name."))
    return name


def _loads_of(learner: Learner) -> dict[str, int]:
    """How often each name was loaded at this place."""
    loads: dict[str, int] = learner.keep("loads of copies", dict)
    return loads
