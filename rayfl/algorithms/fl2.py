"""(FL)^2: thresholds of each client's own, sharpness-aware consistency, averages by status.

S. Lee, T.-V. Le, J. Shin and S.-J. Lee: "(FL)^2: overcoming few labels in federated semi-supervised
learning", NeurIPS 2024. q = softmax f(weak(u)) by the frozen global model, y = argmax q:

    CAT    tau = mean max q;  p(c) = mean q(c);  tau(c) = tau p(c) / max p
           A = {max q >= tau(y)},   L_a = mean over A of CE(y, f_W(strong))
    SACR   H = {max q >= tau_f},    g = gradient over H of CE(y, f_W(strong)) at W
           W* = W + rho T^2 g / ||T g||,  T = |w| + 0.01 for weights, 1 for others
           L_cs = 1/B sum_H KL(f_W(strong) || f_W*(strong))
           a step follows grad L_a at W + w_cs grad L_cs at W*
    LSAA   beta_k ~ 1 - tau_k;   v <- beta_g v + (W - sum beta_k W_k);   W <- W - v
    server its own epochs on its labels; then static BatchNorm, as in SemiFL

The weak view is what `training.augment` makes of an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rayfl.algorithms.parts.alternate_training import AlternateTraining, Moving
from rayfl.arrays import Floats
from rayfl.component import NonNegative, Positive, component, slot
from rayfl.learn.augment import AUGMENTATIONS, Augmentation
from rayfl.learn.augment.strong import Strong
from rayfl.learn.batches import Batch
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.distillation import kl_divergence
from rayfl.learn.resident import Resident
from rayfl.protocol import Client, ClientId, Fleet, Out, Ref, Vector

ADDED = 0.01
"""What ASAM adds to the size of a weight, so that one of 0 can be perturbed."""
NO_NORM = 1e-16
"""Keeps a gradient of 0 from dividing by its norm."""


def adapt_thresholds(q: Floats) -> tuple[float, Floats]:
    """tau, and tau(c) for every class.

    Parameters
    ----------
    q
        What the global model makes of a client's images, (N, C).

    Examples
    --------
    >>> q = np.array([[0.9, 0.05, 0.05], [0.5, 0.4, 0.1], [0.2, 0.7, 0.1], [0.3, 0.3, 0.4]])
    >>> tau, by_class = adapt_thresholds(q)
    >>> round(tau, 6), by_class.round(6).tolist()
    (0.625, [0.625, 0.476974, 0.213816])
    """
    tau = float(q.max(1).mean())
    share = q.mean(0)
    # The largest share is divided by itself, so that its class has tau to the last bit.
    return tau, tau * (share / share.max())


def weigh_by_doubt(taus: Mapping[ClientId, float]) -> dict[ClientId, float]:
    """beta_k: the less sure a client's guesses are, the more it has left to learn from.

    Parameters
    ----------
    taus
        tau by client.

    Examples
    --------
    >>> weights = weigh_by_doubt({0: 0.9, 1: 0.6, 2: 0.5})
    >>> {client: round(weight, 6) for client, weight in weights.items()}
    {0: 0.1, 1: 0.4, 2: 0.5}
    """
    doubts = {client: 1 - tau for client, tau in taus.items()}
    total = sum(doubts.values())
    if not total > 0:
        return dict.fromkeys(taus, 1 / len(taus))
    return {client: doubt / total for client, doubt in doubts.items()}


def perturb(weights: Tensor, gradient: Tensor, scaled: Tensor, rho: float) -> Tensor:
    """eps, by which W* differs from W.

    Parameters
    ----------
    weights
        W, flat.
    gradient
        g, flat.
    scaled
        Which numbers are scaled by their size; none is SAM.
    rho
        The length of eps / T.

    Examples
    --------
    >>> w, g = torch.tensor([2.0, -0.5]), torch.tensor([0.3, 0.4])
    >>> [round(e, 6) for e in perturb(w, g, torch.tensor([True, True]), 0.1).tolist()]
    [0.190399, 0.016344]
    >>> [round(e, 6) for e in perturb(w, g, torch.tensor([False, False]), 0.1).tolist()]
    [0.06, 0.08]
    """
    scale = torch.where(scaled, weights.abs() + ADDED, 1.0)
    step = scale * gradient
    epsilon: Tensor = scale * step * (rho / (torch.linalg.vector_norm(step) + NO_NORM))
    return epsilon


def find_weights(network: Resident) -> Tensor:
    """Which trainable numbers belong to tensors that are called weights, BatchNorm's among them."""
    named = {id(parameter): name for name, parameter in network.net.named_parameters()}
    found = torch.zeros(network.n_parameters, dtype=torch.bool, device=network.flat.device)
    for home in network.homes:
        if "weight" in named.get(id(home.tensor), ""):
            found[home.span] = True
    return found


# -- the client ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sharpness:
    """SACR: adds the gradient of L_cs at W* to the network's, and leaves the network at W."""

    network: Resident
    scaled: Tensor
    method: FL2

    def add_gradient(self, net: nn.Module, view: Tensor, y: Tensor, sure: Tensor) -> None:
        """Over the images of H in a batch.

        Parameters
        ----------
        net
            The network in training, whose gradient is 0.
        view
            The strong view of the batch.
        y
            Its guesses.
        sure
            Which of it are H.
        """
        network = self.network
        method = self.method
        logits = net(view)
        functional.cross_entropy(logits[sure], y[sure]).backward()  # type: ignore[no-untyped-call]
        before = network.parameters.clone()
        with torch.no_grad():
            epsilon = perturb(before, network.gradient, self.scaled, method.rho)
            network.parameters.add_(epsilon)
            network.gradient.zero_()
        gaps = kl_divergence(logits.detach().softmax(1), net(view)) * sure
        (method.strength * gaps.mean()).backward()  # type: ignore[no-untyped-call]
        # A copy: to add epsilon and to take it away again would leave rounding behind.
        with torch.no_grad():
            network.parameters.copy_(before)


def train_adaptively(client: Client, *, w: Vector, method: FL2) -> Fitting[Out]:
    """A client's epochs on A, with the consistency of H."""
    learner = client.learner
    judged = judge(client, w, learner.training.augment)
    tau, by_class = adapt_thresholds(judged.probabilities)
    chosen = judged.confidence >= by_class[judged.predicted]
    sure = judged.confidence >= method.threshold
    network = learner.shape_of()
    sharpness = Sharpness(network, find_weights(network), method)
    consistent = method.rho > 0 and method.strength > 0

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        view = batch.view(method.strong)
        high = batch.take(sure)
        if consistent and high.any():
            sharpness.add_gradient(net, view, batch.y, high)
        return functional.cross_entropy(net(view), batch.y)

    trained = yield Fit(
        w,
        loss=loss,
        client=client.on(client.x, judged.predicted),
        keep=chosen,
        clip=method.clip,
        memory=client.state.get("optimiser"),
        # What is remembered has its gradient in the network's own flat vector.
        remember=True,
    )
    report = {"tau": tau, "_chosen": float(chosen.mean()), "_sure": float(sure.mean())}
    state = {"optimiser": trained.memory} if method.persist else {}
    return Out(report, update=trained.weights, state=state)


# -- the method ------------------------------------------------------------------------------------


@component
class FL2(AlternateTraining):
    """SemiFL's rounds, with thresholds of each client's own, sharpness-aware consistency, and
    averages in which doubt counts."""

    citation: ClassVar[str] = "Lee et al., NeurIPS 2024"
    metrics: ClassVar[Mapping[str, str]] = {
        **AlternateTraining.metrics,
        "threshold/mean": "mean over clients of tau, each client's own threshold",
        "pseudo/chosen": "mean share of a client's images in A, whose guess reaches the threshold "
        "of its class",
        "pseudo/sure": "mean share in H, whose guess reaches `threshold`",
    }
    deviations: ClassVar[tuple[str, ...]] = (
        "A guess at a threshold itself counts, as in the released code; the paper writes >. So A "
        "is never empty.",
        "Clients train before the server, as in the released code; the paper's Algorithm 1 has the "
        "server's update first.",
        "The released code warms the server up before the first round, 10 times 5 epochs on "
        "CIFAR-10; here `pretraining` does, which is 0 by default.",
        "A batch without one of H has no consistency; the code's loss is then 0 / 0, whose "
        "gradient it takes for 0.",
        "BatchNorm statistics are those of the server and of the round's clients (statistics: all "
        "is the code's pass over everybody).",
        "The learning rate is constant, as in the code, whose cosine is never stepped.",
        "The strong view is the one that all methods here share; the code's has three operations "
        "of random strength and a square of up to half the image.",
    )
    threshold: NonNegative = 0.95
    """tau_f. Paper: 0.95."""
    rho: NonNegative = 0.1
    """How far W* is. Paper: 0.1 (CIFAR-10, SVHN), 1 (CIFAR-100); neutral: 0, without SACR."""
    strength: NonNegative = 1.0
    """w_cs. Paper: 1; neutral: 0, without SACR."""
    clip: Positive | None = 1.0
    """Largest norm of the sum of both gradients. Code: 1."""
    strong: Annotated[Augmentation, slot(AUGMENTATIONS)] = Strong()
    """The strong view; the weak one is `training.augment`'s."""

    def train_clients(
        self, state: Moving, fleet: Fleet, cohort: list[ClientId]
    ) -> tuple[Ref, Ref | None]:
        """W and v after the clients."""
        got = fleet.map(train_adaptively, cohort, w=state.model, method=self)
        taus = {client: report["tau"] for client, report in got.items()}
        fleet.log(
            **{
                "threshold/mean": float(np.mean(list(taus.values()))),
                "pseudo/chosen": float(np.mean([report["_chosen"] for report in got.values()])),
                "pseudo/sure": float(np.mean([report["_sure"] for report in got.values()])),
            }
        )
        mean = got.mean(weigh_by_doubt(taus))
        return self.move(fleet, state, mean)
