"""The training loop and the passes without gradients, written once for every method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rayfl.errors import RayflError, broken
from rayfl.learn.batch_order import restore_order, split_evaluation
from rayfl.learn.batches import Batch, Notes, draw_batches, resolve_settings
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import BatchLoss, Fit, Pull, Trained, Trainee, refuse_misfits
from rayfl.learn.losses.base import SampleLoss
from rayfl.learn.optimisers import Descent, LooseSgd, Optimiser, keep_whole, make_optimiser
from rayfl.learn.resident import Resident, Vector
from rayfl.learn.training import LocalTraining

LONE = "first"
"""The name of the resident of a wish for one network."""


def carry_out(client: Trainee, wish: Fit) -> Trained:
    """The training of one client by itself.

    Parameters
    ----------
    client
        The visited one; `wish.client` may stand in for it.
    wish
        What is to be trained.
    """
    trainee = client if wish.client is None else wish.client
    learner = trainee.learner
    if not len(trainee.x):
        rule = "training needs images"
        remedy = "The server owns none itself: Fit(..., client=client.on(data))."
        raise RayflError(broken(rule, f"none (client {trainee.id})", remedy))
    refuse_misfits(wish, len(trainee.x))
    settings = resolve_settings(learner.training, wish.settings)
    notes = Notes()
    steps = samples = 0
    with ExitStack() as opened:
        course = Course(trainee, wish, settings, opened)
        for batch in draw_batches(trainee, settings, wish.keep, wish.targets, notes):
            if course.step(batch):
                steps += 1
                samples += len(batch.index)
        memory = course.dump_memory() if wish.remember else None
    trained = Trained(course.give_weights(), steps, samples, notes.means(), memory)
    # Whoever trains next at this place uses the same networks.
    learner.forget_loaded()
    # Else the last step's samples went back once more with the phase's own next gradient.
    learner.passes.open = 0
    return trained


class Course:
    """The networks and optimisers of one wish while it is carried out."""

    def __init__(
        self, client: Trainee, wish: Fit, settings: LocalTraining, opened: ExitStack
    ) -> None:
        self.wish = wish
        self.learner = client.learner
        named = wish.weights if isinstance(wish.weights, Mapping) else {LONE: wish.weights}
        self.residents = {
            name: self.learner.resident(weights, name) for name, weights in named.items()
        }
        for resident in self.residents.values():
            # Setting the mode visits every module, which at small clients shows.
            if not resident.net.training:
                resident.net.train()
        self.changes = {name: Change(wish, resident) for name, resident in self.residents.items()}
        self.descents: dict[str, Descent] = {
            name: opened.enter_context(self._open_descent(name, settings))
            for name in self.residents
        }
        self.loss = _as_batch_loss(wish, client)
        lone = list(self.residents) == [LONE] and not isinstance(wish.weights, Mapping)
        nets = {name: resident.net for name, resident in self.residents.items()}
        self.subject: Any = nets[LONE] if lone else nets
        self.trained: Any = self.residents[LONE] if lone else self.residents

    def _open_descent(self, name: str, settings: LocalTraining) -> Any:
        memory = self.wish.memory
        own = memory.get(name) if isinstance(memory, Mapping) else memory
        resident = self.residents[name]
        plain = not self.changes[name].any and own is None and not self.wish.remember
        return open_descent(resident, settings, plain, own)

    def step(self, batch: Batch) -> bool:
        """One step on one batch; whether there was one."""
        passes = self.learner.passes
        for descent in self.descents.values():
            descent.clear()
        passes.open = 0
        with self.learner.precision():
            value = self.loss(self.subject, batch)
        if value is None:
            return False
        value.backward()  # type: ignore[no-untyped-call]
        # At least the batch goes back, if only through a part of the network.
        passes.backward += max(passes.open, len(batch.index))
        factor = 1.0 if self.wish.schedule is None else self.wish.schedule(batch.step)
        for name, descent in self.descents.items():
            if self.changes[name].any:
                self.changes[name].apply()
            descent.step(factor)
        if self.wish.after_step is not None:
            self.wish.after_step(self.trained)
        return True

    def dump_memory(self) -> Any:
        memories = {
            name: cast(Optimiser, descent).dump() for name, descent in self.descents.items()
        }
        return memories if isinstance(self.wish.weights, Mapping) else memories[LONE]

    def give_weights(self) -> Any:
        given = {
            name: resident.give(self.learner.fresh) for name, resident in self.residents.items()
        }
        return given if isinstance(self.wish.weights, Mapping) else given[LONE]


class Change:
    """What a wish does to the flat gradient of one network before a step."""

    def __init__(self, wish: Fit, resident: Resident) -> None:
        self.resident = resident
        self.adjust = wish.adjust
        self.clip = wish.clip
        self.drift = None if wish.drift is None else resident.tensor_of(wish.drift)
        self.strength = 0.0
        self.anchor: Tensor | None = None
        if wish.pull is not None:
            self.strength = wish.pull.strength
            self.anchor = _pull_anchor(wish.pull, resident)
        self.any = any(
            part is not None for part in (self.adjust, self.clip, self.drift, self.anchor)
        )

    @torch.no_grad()
    def apply(self) -> None:
        parameters = self.resident.parameters
        gradient = self.resident.gradient
        if self.anchor is not None:
            gradient.add_(parameters - self.anchor, alpha=self.strength)
        if self.drift is not None:
            gradient.add_(self.drift)
        if self.adjust is not None:
            self.adjust(parameters, gradient)
        if self.clip is not None:
            clip_rows(gradient[None], self.clip)


def _pull_anchor(pull: Pull, resident: Resident) -> Tensor:
    """The parameters that a proximal term pulls to."""
    return resident.tensor_of(pull.anchor[: resident.n_parameters])


def clip_rows(gradients: Tensor, limit: float) -> None:
    """Scale rows of gradients down to a Euclidean norm, as torch's clip_grad_norm_ does."""
    norms = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    gradients.mul_((limit / (norms + 1e-6)).clamp(max=1.0))


def _as_batch_loss(wish: Fit, client: Trainee) -> BatchLoss:
    """The loss of a batch, whichever way it was given."""
    loss = wish.loss
    if not isinstance(loss, SampleLoss):
        return loss
    if client.labels is None and wish.targets is None:
        who = "the server" if client.id < 0 else f"client {client.id}"
        rule = f"training with {type(loss).__name__} needs labels"
        remedy = (
            "Declare the set in the method's `needs` as `labels`, give targets, or train with a "
            "loss of your own that reads none."
        )
        raise RayflError(broken(rule, f"{who}, whose labels are out of bounds", remedy))
    if wish.sample_weights is None:
        return lambda net, batch: loss.mean(net(batch.x), batch.y)
    factors = np.asarray(wish.sample_weights, np.float32)
    return lambda net, batch: (loss(net(batch.x), batch.y) * batch.take(factors)).mean()


@contextmanager
def open_descent(
    resident: Resident, settings: LocalTraining, plain: bool, memory: Vector | None
) -> Iterator[Descent]:
    """An optimiser for one visit, on the gradients that are the least work."""
    if resident.large and not resident.narrowed and plain and settings.optimizer == "sgd":
        with resident.loose() as tensors:
            yield LooseSgd(tensors, settings)
    else:
        # Decay, and whatever changes a gradient, may reach numbers that no loss depends on.
        all_moves = settings.weight_decay or not plain or not resident.narrowed
        live = keep_whole if all_moves else resident.live
        yield make_optimiser(resident, settings, memory, live)


@torch.no_grad()
def compute_outputs(
    learner: Learner,
    weights: Vector | None,
    x: NDArray[np.uint8],
    read: Callable[[nn.Module, Tensor], Tensor] | None = None,
    name: str = LONE,
    batch_size: int | None = None,
) -> NDArray[np.float32]:
    """What the network answers, in evaluation mode and in the order of `x`: logits, or whatever
    `read` takes from it.

    Batches are of a fixed size in a fixed order, so that networks with batch statistics answer the
    same anywhere; theirs is an order that does not hang on the order of `x` (`batch_order`).

    Parameters
    ----------
    learner
        The place.
    weights
        The network's; None where this visit has loaded the resident already.
    x
        Raw images.
    read
        Takes something else than the answer from (network, input).
    name
        The resident that is used.
    batch_size
        Images in a batch; None for the run's `evaluation.batch_size`.
    """
    net = learner.resident(weights, name).net.eval()
    batches = split_evaluation(net, x, batch_size or learner.evaluation_batch)
    parts = []
    for rows in batches:
        part = learner.normalise(learner.pixels(x[rows]))
        answer = net(part) if read is None else read(net, part)
        parts.append(answer.float().cpu().numpy())
    if not parts:
        return np.zeros((0, 0), np.float32)
    return restore_order(np.concatenate(parts), batches)


def compute_losses(logits: NDArray[np.float32], y: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cross-entropy of every sample, in float64.

    Parameters
    ----------
    logits
        One row a sample.
    y
        Labels.
    """
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=1, keepdims=True)
    losses: NDArray[np.float64] = (
        np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]
    )
    return losses
