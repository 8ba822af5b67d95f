"""SCAFFOLD: control variates that take the drift out of local steps.

S. P. Karimireddy, S. Kale, M. Mohri, S. Reddi, S. Stich and A. T. Suresh: "SCAFFOLD: Stochastic
controlled averaging for federated learning", ICML 2020, Algorithm 1. The server's control variate c
and the clients' c_i begin at 0.

    client   y <- x;  K steps y <- y - lr (g(y) + c - c_i)
             option I   c_i+ = gradient of the local loss at x
             option II  c_i+ = c_i - c + (x - y) / (K lr)
    server   x <- x + eta_g mean_S(y - x);   c <- c + 1/N sum_S(c_i+ - c_i)

Momentum rho moves y by lr sum_k a_k g_k, a_k = (1 - rho^(K-k+1)) / (1 - rho), so the K of option II
becomes A = sum_k a_k. With K itself, the error of c_i is multiplied by 1 - A/K at every visit (-6.8
for rho .9 and 40 steps) and the method diverges."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import numpy as np
import torch
from torch import Tensor

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.aggregation import WeightedMean
from rayfl.component import Positive, component
from rayfl.errors import ConfigError, broken
from rayfl.learn.batch_order import split_evaluation
from rayfl.learn.local_fit import Fit, Fitting, Trained
from rayfl.learn.losses.base import SampleLoss
from rayfl.learn.resident import Resident
from rayfl.learn.training import LocalTraining
from rayfl.protocol import Client, Fleet, Out, Ref, Vector

Option = Literal["I", "II"]
Correct = Literal["gradient", "step"]


@dataclass(frozen=True)
class Controlled(Global):
    """The global model and the server's control variate, which covers parameters only."""

    c: Ref


def train_controlled(client: Client, *, w: Vector, c: Vector, method: Scaffold) -> Fitting[Out]:
    """K corrected steps from x = w to y, then the client's new control variate."""
    own: Vector = client.state.get("c", np.zeros_like(c))
    training = client.learner.training
    if method.correct == "gradient":
        trained = yield Fit(w, loss=method.loss, drift=c - own)
    else:
        away = subtract_after_step(client, c - own, training.lr)
        trained = yield Fit(w, loss=method.loss, after_step=away)
    y = trained.weights
    if method.option == "I":
        dc = whole_gradient(client, w, method.loss) - own
    elif trained.steps:
        dc = (w - y)[: len(c)] / np.float32(find_divisor(method, training, trained)) - c
    else:  # not a single step, so nothing was learnt about the gradient
        dc = np.zeros_like(c)
    # The server adds the same rounded dc, so that c stays the mean of all c_i.
    return Out(update={"w": y, "dc": dc}, state={"c": own + dc})


def subtract_after_step(client: Client, drift: Vector, lr: float) -> Callable[[Resident], None]:
    """Takes lr times the drift out of the parameters, as NIID-Bench does."""
    away: Tensor = torch.from_numpy(drift).to(client.learner.device)

    def correct(resident: Resident) -> None:
        resident.parameters.sub_(away, alpha=lr)

    return correct


def find_divisor(method: Scaffold, training: LocalTraining, trained: Trained) -> float:
    """What makes a mean gradient of the way from x to y: A lr, or K lr."""
    if method.correct == "step":
        return training.lr * trained.steps
    return training.lr * momentum_sum(training.momentum, trained.steps)


def momentum_sum(momentum: float, steps: int) -> float:
    """A: how many plain steps so many steps with momentum are worth, while the gradient stays the
    same.

    >>> momentum_sum(0.0, 40), round(momentum_sum(0.9, 40), 6)
    (40.0, 311.330279)
    """
    return float((steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum))


def whole_gradient(client: Client, w: Vector, loss: SampleLoss) -> Vector:
    """The gradient of the mean loss over all samples of the client, in evaluation mode."""
    learner = client.learner
    resident = learner.resident(w)
    resident.net.eval()
    resident.gradient.zero_()
    for rows in split_evaluation(resident.net, client.x, learner.evaluation_batch):
        y = torch.from_numpy(np.array(client.y[rows])).to(learner.device)
        logits = resident.net(learner.normalise(learner.pixels(client.x[rows])))
        learner.backward(loss(logits, y).sum() / len(client))
    return np.array(resident.gradient.cpu().numpy(), copy=True)


def make_zeros(client: Client) -> Out:
    """A control variate of zeros, one for each parameter."""
    return Out(update=np.zeros(client.learner.shape_of().n_parameters, np.float32))


def step_server(
    _: Client, *, x: Vector, y: Vector, c: Vector, dc: Vector, eta_g: float, share: float
) -> Out:
    """The server's step: parameters by eta_g, control variate by the share of clients that took
    part."""
    n = len(c)
    # Written so that eta_g = 1 gives the average bit by bit; BatchNorm statistics (from n on) are
    # always the average.
    parameters = (1 - eta_g) * x[:n] + eta_g * y[:n]
    return Out(update={"w": np.concatenate([parameters, y[n:]]), "c": c + np.float32(share) * dc})


@component
class Scaffold(FedAvg):
    """Federated averaging whose local steps are corrected by control variates."""

    citation: ClassVar[str] = "Karimireddy et al., ICML 2020"
    deviations: ClassVar[tuple[str, ...]] = (
        "With momentum, which the paper does not have, option II divides by the weight that the "
        "steps really had, not by their number.",
        "correct: step corrects after the optimiser's step and divides by the number of steps, as "
        "NIID-Bench does.",
        "Models are averaged by size unless `weighting` says otherwise, where the paper averages "
        "equally; control variates always count equally, so that c stays the mean of all c_i.",
        "BatchNorm statistics are neither corrected nor scaled by eta_g: they are averaged.",
        "Option I takes the gradient in evaluation mode on images as they are, without dropout or "
        "augmentation.",
        "Under weight decay, which the paper does not have, option I's c_i is the gradient of the "
        "loss alone; option II's, taken from the steps, holds the decay too.",
    )
    eta_g: Positive = 1.0
    """The server's step. Paper: 1."""
    option: Option = "II"
    """How c_i is renewed: `I`, by an extra pass over the data; `II` (the paper's choice), from the
    steps taken."""
    correct: Correct = "gradient"
    """Where c - c_i enters: the `gradient`, before momentum; or the parameters after each
    `step`."""

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        if not isinstance(self.aggregation, WeightedMean):
            rule = "SCAFFOLD's c is the plain mean of all c_i, and so method.aggregation is mean"
            remedy = "Take fedavg or fedprox, whose clients leave nothing but models."
            raise ConfigError(broken(rule, type(self.aggregation).__name__, remedy))
        optimizer = fleet.training.optimizer
        if optimizer != "sgd":
            raise ConfigError(
                broken("SCAFFOLD corrects the steps of training.optimizer sgd", optimizer)
            )

    def init(self, fleet: Fleet, model: Ref) -> Controlled:
        return Controlled(model, c=fleet.serve(make_zeros)["w"])

    def round(self, state: Global, fleet: Fleet, t: int) -> Controlled:
        x = state.model
        c = cast(Controlled, state).c
        got = fleet.map(train_controlled, fleet.sample(t), w=x, c=c, method=self)
        y = self.aggregation(got, self.weighting(got, fleet), fleet, "w")
        dc = got.mean(dict.fromkeys(got, 1.0), "dc")
        share = len(got) / len(fleet.clients)
        moved = fleet.serve(step_server, x=x, y=y, c=c, dc=dc, eta_g=self.eta_g, share=share)
        return Controlled(moved["w"], moved["c"])
