"""A method that uses every piece of the kit which holds a network or draws, for the tests of
places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.batch_norm import remeasure_statistics
from rayfl.algorithms.parts.distance_weighting import ByDistance
from rayfl.component import component
from rayfl.learn.augment.crop import CropFlip
from rayfl.learn.batches import Batch
from rayfl.learn.copies import Ema, Frozen
from rayfl.learn.divide import divide
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.base import CROSS_ENTROPY
from rayfl.learn.losses.distillation import distillation
from rayfl.learn.losses.squared_error import squared_error
from rayfl.learn.mixing import average_guesses, mix_batch, sharpen
from rayfl.learn.relabel import relabel_confident
from rayfl.learn.sample_stream import SampleStream
from rayfl.learn.schedules import warm_decay
from rayfl.protocol import Client, Fleet, Out, Vector

VIEW = CropFlip(padding=1)


def train(client: Client, *, w: Vector, t: int) -> Fitting[Out]:
    """Divide, relabel, then learn from a frozen network and a teacher on a second stream."""
    division = divide(judge(client, w).losses)
    state: dict[str, Any] = {"kept": division.kept}
    if t == 1:
        guessed = judge(client, w, VIEW).probabilities
        state |= relabel_confident(client, guessed, 0.5, ~division.kept)
    received = Frozen(client, w, "received")
    steps = int(client.state.get("steps", 0))
    teacher = Ema(client, client.state.get("teacher", w), warm_decay, steps=steps)
    others = SampleStream(client, ~division.kept, augment=VIEW)

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        mixed = mix_batch(batch.x, 0.75, batch.generator)
        logits = net(mixed.x)
        value = mixed.blend_losses(CROSS_ENTROPY, logits, batch.y).mean()
        value = value + 0.1 * distillation(logits, received(mixed.x)).mean()
        other = others.draw(len(batch))
        if other is None:
            return value
        guess = average_guesses([teacher(other.x), teacher(other.view(VIEW))])
        return value + squared_error(net(other.x), sharpen(guess, 0.5)).mean()

    trained = yield Fit(w, loss=loss, keep=division.kept, after_step=teacher.follow)
    report = {"_noisy": bool(division.kept.mean() < 0.8)}
    state |= {"teacher": teacher.dump(), "steps": teacher.steps}
    return Out(report, update=trained.weights, state=state)


@component
class KitMethod(FedAvg):
    """Weighted by distance, with BatchNorm statistics measured anew."""

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(train, fleet.clients, w=state.model, t=t)
        model = got.mean(ByDistance()(got, fleet))
        return replace(state, model=remeasure_statistics(fleet, model, fleet.clients, None, 8))
