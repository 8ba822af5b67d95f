"""What a model makes of a client's samples: the first step of every method that selects, corrects
or guesses labels."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from rayfl.arrays import Floats, Vector
from rayfl.errors import RayflError, broken
from rayfl.estimate.probabilities import measure_confidence, softmax
from rayfl.learn.augment.base import Augmentation
from rayfl.learn.batch_order import restore_order, split_evaluation
from rayfl.learn.fit import LONE, compute_losses, compute_outputs
from rayfl.learn.learner import draw_seed
from rayfl.learn.local_fit import Trainee


@dataclass(frozen=True)
class Judged:
    """A model's answers to all samples of a client, in their order.

    Parameters
    ----------
    logits
        (N, C), float32.
    labels
        What the client believes; None where labels are out of bounds.
    """

    logits: Vector
    labels: NDArray[np.int64] | None

    @cached_property
    def probabilities(self) -> Floats:
        """softmax of the logits, (N, C), in float64."""
        # Weights can be finite and answers not: whoever asks sees nan, and no warning.
        with np.errstate(all="ignore"):
            return softmax(self.logits)

    @cached_property
    def losses(self) -> Floats:
        """Cross-entropy with the labels, (N,), in float64; not finite where an answer is not."""
        if self.labels is None:
            rule = "losses of samples need labels"
            remedy = "Use predicted or confidence, or judge client.on(images, labels)."
            raise RayflError(broken(rule, "samples whose labels are out of bounds", remedy))
        with np.errstate(all="ignore"):
            return compute_losses(self.logits, self.labels)

    @cached_property
    def predicted(self) -> NDArray[np.int64]:
        """The likeliest class of every sample, (N,); of equals the lowest."""
        return np.asarray(self.logits.argmax(axis=1), dtype=np.int64)

    @cached_property
    def confidence(self) -> Floats:
        """The probability of the likeliest class, (N,)."""
        return measure_confidence(self.probabilities)

    @property
    def accuracy(self) -> float:
        """The share of samples whose label is the likeliest class."""
        if self.labels is None or not len(self.labels):
            return float("nan")
        return float((self.predicted == self.labels).mean())


def judge(
    client: Trainee,
    w: Vector,
    view: Augmentation | None = None,
    name: str = LONE,
    batch_size: int | None = None,
) -> Judged:
    """Ask a model about all of a client's samples, in evaluation mode and without gradients.

    Parameters
    ----------
    client
        Whose samples; `client.on(data)` for others.
    w
        The model.
    view
        An augmentation of the images, drawn from the client's stream; by default they are taken as
        they are.
    name
        The resident network that is used.
    batch_size
        Images in a batch, which matters where BatchNorm has none but its batch's statistics; None
        for the run's `evaluation.batch_size`.
    """
    learner = client.learner
    size = batch_size or learner.evaluation_batch
    if view is None:
        logits = compute_outputs(
            learner,
            w,
            client.x,
            name=name,
            batch_size=size,
        )
    else:
        logits = _answer_views(
            client,
            w,
            view,
            name,
            size,
        )
    # Nobody was asked: how many classes there are, no answer says.
    if not len(client.x):
        logits = np.zeros((0, 1), np.float32)
    return Judged(logits, None if client.labels is None else client.y)


@torch.no_grad()
def _answer_views(
    client: Trainee,
    w: Vector,
    view: Augmentation,
    name: str,
    batch_size: int,
) -> Vector:
    """Logits of one random view of every image."""
    learner = client.learner
    net = learner.resident(w, name).net.eval()
    # The place's own generator belongs to the batches of a training.
    generator = torch.Generator().manual_seed(draw_seed(client.rng))
    batches = split_evaluation(net, client.x, batch_size)
    parts = [np.zeros((0, 1), np.float32)]
    for rows in batches:
        pixels = learner.pixels(client.x[rows])
        answer = net(learner.normalise(view(pixels, generator)))
        parts.append(answer.float().cpu().numpy())
    return restore_order(np.concatenate(parts[1:] or parts), batches)
