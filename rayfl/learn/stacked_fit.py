"""Wishes of many clients carried out in lockstep: one kernel does a step of every client.

For small networks a step's time is launching kernels, not arithmetic, so a place that holds fifty
clients launches each kernel once for all of them. Row k of a matrix holds the parameters of client
k. A network with running statistics or dropout is not stacked: its steps would not be those of the
network alone.

Draws, mini-batches and optimiser are the ones of `carry_out`, so results differ from it by rounding
only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rayfl.learn.augment.base import Unchanged
from rayfl.learn.batches import as_targets, plan_batches, resolve_settings
from rayfl.learn.fit import clip_rows
from rayfl.learn.learner import Learner, draw_seed
from rayfl.learn.local_fit import Fit, Trained, Trainee, refuse_misfits
from rayfl.learn.losses.base import CrossEntropy, SampleLoss
from rayfl.learn.network_stack import Slope, Stack
from rayfl.learn.optimisers import make_optimiser
from rayfl.learn.resident import Vector
from rayfl.learn.training import LocalTraining

STACK_BYTES = 64 << 20
"""Parameters, gradients and momenta of a stack stay below this; larger cohorts are trained in
several stacks."""
UNSTACKABLE: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.dropout._DropoutNd,
)
Steps = list[NDArray[np.int64]]
"""The mini-batches of one client: positions in its data."""


def can_stack_network(learner: Learner) -> bool:
    """Whether copies of the run's network in lockstep do what each would do alone."""
    resident = learner.shape_of()
    lone = any(isinstance(module, UNSTACKABLE) for module in resident.net.modules())
    all_trained = resident.flat.numel() == resident.n_parameters
    whole = learner.training.kernels == "whole"  # a row shows every tap
    return all_trained and whole and not lone


def can_stack(wish: Fit, client: Trainee) -> bool:
    """Whether this wish can be carried out beside others: one network, a loss of single samples,
    images as they are, and nothing that wants to see the network between steps."""
    unseen = wish.adjust is None and wish.after_step is None and wish.schedule is None
    forgotten = wish.memory is None and not wish.remember
    lone = isinstance(wish.weights, np.ndarray)
    if not (unseen and forgotten and lone and isinstance(wish.loss, SampleLoss)):
        return False
    trainee = client if wish.client is None else wish.client
    # One alone says what is missing, and where.
    labelled = trainee.labels is not None or wish.targets is not None
    settings = resolve_settings(trainee.learner.training, wish.settings)
    return labelled and len(trainee.x) > 0 and isinstance(settings.augment, Unchanged)


@dataclass(slots=True)
class Job:
    """One client's wish, with what it comes to."""

    client: Trainee
    wish: Fit
    settings: LocalTraining
    targets: NDArray[Any]

    @classmethod
    def of(cls, learner: Learner, visited: Trainee, wish: Fit) -> Job:
        client = visited if wish.client is None else wish.client
        refuse_misfits(wish, len(client.x))
        targets = as_targets(client.y if wish.targets is None else wish.targets)
        assert targets is not None
        return cls(client, wish, resolve_settings(learner.training, wish.settings), targets)

    def is_like(self, other: Job) -> bool:
        """Whether both can share a stack."""
        one = self.wish
        two = other.wish
        # By identity first: to compare settings takes as long as a step of a small network.
        return (
            (self.settings is other.settings or self.settings == other.settings)
            and (one.loss is two.loss or one.loss == two.loss)
            and (one.pull is None) == (two.pull is None)
            and (one.drift is None) == (two.drift is None)
            and one.clip == two.clip
            and self.targets.ndim == other.targets.ndim
        )

    def plan_steps(self) -> Steps:
        """The mini-batches that `carry_out` would draw, from the same stream."""
        rng = self.client.rng
        draw_seed(rng)  # the draw that seeds augmentation, of which a stack has none
        size = len(self.client.x)
        smallest = self.client.learner.smallest_batch
        plan = plan_batches(size, self.settings, rng, smallest, self.wish.keep)
        return [position.rows for position in plan]


def carry_out_together(
    learner: Learner, clients: Sequence[Trainee], wishes: Sequence[Fit]
) -> list[Trained]:
    """What `carry_out` gives each client, in as few stacks as kinds and memory allow.

    Parameters
    ----------
    learner
        The place.
    clients, wishes
        Side by side; every wish can be stacked.
    """
    jobs = [Job.of(learner, client, wish) for client, wish in zip(clients, wishes, strict=True)]
    trained: dict[int, Trained] = {}
    most = count_copies(learner.shape_of().n_parameters)
    for members in _group_alike(jobs):
        for start in range(0, len(members), most):
            part = members[start : start + most]
            found = _fit_stack(learner, [jobs[i] for i in part])
            trained.update(zip(part, found, strict=True))
    return [trained[i] for i in range(len(jobs))]


def _group_alike(jobs: Sequence[Job]) -> list[list[int]]:
    """Positions of the jobs that share a stack; commonly all."""
    groups: list[list[int]] = []
    for i, job in enumerate(jobs):
        alike = next((group for group in groups if job.is_like(jobs[group[0]])), None)
        if alike is None:
            groups.append([i])
        else:
            alike.append(i)
    return groups


def count_copies(parameters: int) -> int:
    """How many copies a stack may hold."""
    return max(STACK_BYTES // (parameters * 4 * 3), 1)


def _fit_stack(learner: Learner, jobs: Sequence[Job]) -> list[Trained]:
    """Train one stack, clients with the most steps first, so that those still at work are always
    the first rows."""
    learner.probe(jobs[0].client.x)
    plans = [job.plan_steps() for job in jobs]
    order = sorted(range(len(jobs)), key=lambda k: -len(plans[k]))
    offsets = np.cumsum([0, *(len(job.client.x) for job in jobs)])[order]
    ordered = [jobs[k] for k in order]
    stack = _stack_for(learner, len(jobs))
    stack.load([job.wish.weights for job in ordered])  # type: ignore[misc]
    batches = StackedBatches([plans[k] for k in order], offsets, *_common_data(learner, jobs))
    passes = learner.passes
    # A stack's passes are counted by samples: its network is called for all copies at once.
    passes.counting = False
    try:
        _descend(learner, stack, batches, ordered)
    finally:
        passes.counting = True
    rows = stack.dump(len(jobs))
    found: dict[int, Trained] = {}
    for row, k in enumerate(order):
        found[k] = Trained(rows[row], len(plans[k]), sum(map(len, plans[k])))
    learner.forget_loaded()
    return [found[k] for k in range(len(jobs))]


def _stack_for(learner: Learner, copies: int) -> Stack:
    """The place's stack, made anew when it is too small."""
    held: list[Stack] = learner.keep("stack", list)
    if not held or len(held[0].parameters) < copies:
        held[:] = [Stack(learner.shape_of(), copies)]
    return held[0]


def _common_data(learner: Learner, jobs: Sequence[Job]) -> tuple[Tensor, Tensor, Tensor | None]:
    """All clients' images as network input, their labels, and what each sample counts, one client
    behind the other."""
    images = np.concatenate([job.client.x for job in jobs])
    targets = torch.from_numpy(np.concatenate([job.targets for job in jobs])).to(learner.device)
    factors = None
    if any(job.wish.sample_weights is not None for job in jobs):
        counted = [
            np.ones(len(job.client.x), np.float32)
            if job.wish.sample_weights is None
            else np.asarray(job.wish.sample_weights, np.float32)
            for job in jobs
        ]
        factors = torch.from_numpy(np.concatenate(counted)).to(learner.device)
    return learner.normalise(learner.pixels(images)), targets, factors


@dataclass(frozen=True)
class StackedBatches:
    """Step by step, the images of every copy that still has some; copies with the most steps come
    first."""

    plans: Sequence[Steps]
    offsets: NDArray[np.int64]
    images: Tensor
    targets: Tensor
    factors: Tensor | None

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Images (copy, image, ...), targets (copy, image, ...), and what each image counts: one
        over its batch (times its factor), or nothing where it only fills a row."""
        counts = np.array([len(plan) for plan in self.plans])
        for step in range(int(counts.max(initial=0))):
            active = [plan[step] for plan in self.plans[: int((counts > step).sum())]]
            index, shares = pad_batches(active, self.offsets)
            at = torch.from_numpy(index).to(self.images.device)
            share = torch.from_numpy(shares).to(self.images.device)
            if self.factors is not None:
                share = share * self.factors[at]
            yield self.images[at], self.targets[at], share


def pad_batches(
    active: Steps, offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Positions among all images, a row a copy, and the share of each in its copy's batch."""
    lengths = np.array([len(index) for index in active])
    # Where a row is filled up, its copy's first image stands, and counts nothing.
    index = np.zeros((len(active), lengths.max()), dtype=np.int64)
    inside = np.arange(index.shape[1]) < lengths[:, None]
    index[inside] = np.concatenate(active)
    index += offsets[: len(active), None]
    return index, (inside / lengths[:, None]).astype(np.float32)


def _descend(learner: Learner, stack: Stack, batches: StackedBatches, jobs: Sequence[Job]) -> None:
    """All steps of all copies; a copy that has none left keeps its row."""
    loss = jobs[0].wish.loss
    assert isinstance(loss, SampleLoss)
    update = make_optimiser(stack, jobs[0].settings)
    change = StackedChange(stack, jobs)
    for x, y, share in batches:
        rows = stack.rows(len(x))
        update.narrow(len(x))
        # In bfloat16, what is rounded where is autocast's to decide: that takes a graph.
        if rows.plain and learner.training.precision == "fp32":
            rows.descend_by_hand(x, slope_of(loss, y, share))
        else:
            with learner.precision():
                logits = rows.forward(x)
            losses = loss(logits.flatten(0, 1).float(), y.flatten(0, 1))
            rows.backward((losses * share.flatten()).sum())
        change.apply(len(x))
        update.step()


def slope_of(loss: SampleLoss, y: Tensor, share: Tensor) -> Slope:
    """How the loss of all rows changes with their logits."""
    if isinstance(loss, CrossEntropy) and y.ndim == 2:
        return lambda logits: _cross_entropy_slope(logits, y, share)

    def differentiate(logits: Tensor) -> Tensor:
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            losses = loss(leaf.flatten(0, 1), y.flatten(0, 1))
            (slope,) = torch.autograd.grad((losses * share.flatten()).sum(), leaf)
        return slope

    return differentiate


def _cross_entropy_slope(logits: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """softmax - onehot. torch.softmax takes rows of ten one by one; this is many times as fast."""
    slope = logits.sub_(logits.amax(2, keepdim=True)).exp_()
    slope /= slope.sum(2, keepdim=True)
    slope.scatter_add_(2, y.unsqueeze(2), slope.new_full((), -1.0).expand(*y.shape, 1))
    slope *= share.unsqueeze(2)
    return slope


class StackedChange:
    """What the wishes of a stack do to their rows of the gradient: as `Change` does to one."""

    def __init__(self, stack: Stack, jobs: Sequence[Job]) -> None:
        self.stack = stack
        self.clip = jobs[0].wish.clip
        pulls = [job.wish.pull for job in jobs if job.wish.pull is not None]
        drifts = [job.wish.drift for job in jobs if job.wish.drift is not None]
        length = stack.parameters.shape[1]
        device = stack.parameters.device
        self.anchors: Tensor | None = None
        if pulls:
            self.anchors = _common_rows([pull.anchor[:length] for pull in pulls]).to(device)
            strengths = np.array([[pull.strength] for pull in pulls], np.float32)
            self.strengths = torch.from_numpy(strengths).to(device)
        self.drifts = _common_rows(drifts).to(device) if drifts else None

    @torch.no_grad()
    def apply(self, copies: int) -> None:
        gradient = self.stack.gradient[:copies]
        if self.anchors is not None:
            way = self.stack.parameters[:copies] - self.anchors[:copies]
            gradient.addcmul_(way, self.strengths[:copies])
        if self.drifts is not None:
            gradient.add_(self.drifts[:copies])
        if self.clip is not None:
            clip_rows(gradient, self.clip)


def _common_rows(vectors: Sequence[Vector]) -> Tensor:
    """Vectors as rows; one row for all where they are one and the same memory."""
    first = vectors[0]
    # Slices of one array are new objects, and so it is the memory that tells.
    at = first.__array_interface__["data"][0]
    if all(vector.__array_interface__["data"][0] == at for vector in vectors):
        return torch.from_numpy(np.array(first, np.float32)).expand(len(vectors), -1)
    return torch.from_numpy(np.stack(vectors, dtype=np.float32))
