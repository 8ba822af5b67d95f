"""FedMatch, labels at the server: agreement with helpers, and weights in two parts.

W. Jeong, J. Yoon, E. Yang and S. J. Hwang: "Federated semi-supervised learning with inter-client
consistency and disjoint learning", ICLR 2021. theta = sigma + psi; the server learns sigma, clients
learn psi. p = softmax f(u), helpers h of sigma + psi_h, C = {max p >= confidence}:

    server   L_s = lambda_s CE(y, f(x)), in sigma
    client   L_icc = lambda_i / H sum_h mean_C KL(p^h || p)
             L_pse = lambda_a mean_C CE(y, f(strong(u))),  y = the class with the most votes
             L_reg = lambda_l1 sum |psi| + lambda_l2 sum (sigma - psi)^2,  all in psi
             comes back: psi where it is not small and has changed, elsewhere the server's
    server   psi <- mean of the clients' psi, each counting the same
             v_c = softmax f_{sigma + psi_c} of one image of noise;  helpers are nearest in v

The server trains first. Images without a view are as they are: clients do not crop or flip."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rayfl.algorithms.parts.batch_norm import find_statistics
from rayfl.algorithms.parts.labels_at_server import LabelsAtServer
from rayfl.algorithms.parts.server_training import for_epochs, refuse_idle_server
from rayfl.arrays import Bools, Floats, Images
from rayfl.component import Count, Fraction, Natural, NonNegative, component, slot
from rayfl.errors import ConfigError, broken
from rayfl.learn.augment import AUGMENTATIONS, Augmentation
from rayfl.learn.augment.base import Unchanged
from rayfl.learn.augment.strong import Strong
from rayfl.learn.batches import Batch
from rayfl.learn.copies import Frozen
from rayfl.learn.judge import judge
from rayfl.learn.local_fit import BatchLoss, Fit, Fitting
from rayfl.learn.losses.distillation import kl_divergence
from rayfl.learn.resident import Resident
from rayfl.protocol import Client, ClientId, Fleet, Out, Ref, Replies, Served, Shard, Vector


def find_kernels(network: Resident) -> Bools:
    """Which numbers are taken apart: those of convolutions and matrices.

    Parameters
    ----------
    network
        `client.learner.shape_of()`.
    """
    found = np.zeros(len(network.flat), dtype=np.bool_)
    for home in network.homes:
        if home.tensor.requires_grad and len(home.shape) >= 2:
            found[home.span] = True
    return found


def keep_changed(own: Vector, theirs: Vector, least: float) -> Vector:
    """What comes back: own entries that are neither small nor where they were, else theirs.

    Parameters
    ----------
    own
        psi of a client.
    theirs
        psi that it got.
    least
        What counts as small, of an entry and of its change.

    Examples
    --------
    >>> own, theirs = np.array([1e-6, 5e-5, -2e-4]), np.array([0, 4.5e-5, 0])
    >>> keep_changed(own, theirs, 1e-5).tolist()
    [0.0, 4.5e-05, -0.0002]
    """
    changed = (np.abs(own) > least) & (np.abs(own - theirs) > least)
    return np.where(changed, own, theirs)


def vote_for_class(answers: Sequence[Tensor], client_decides: bool = False) -> Tensor:
    """The class with the most votes.

    Parameters
    ----------
    answers
        Rows of the client, then of its helpers, (N, C) each.
    client_decides
        Of equals the client's own class if it is among them; else, as in the code, the lowest.

    Examples
    --------
    >>> ballots = [torch.eye(8)[[label]] for label in (5, 2, 7)]
    >>> vote_for_class(ballots).item(), vote_for_class(ballots, client_decides=True).item()
    (2, 5)
    """
    ballots = [functional.one_hot(rows.argmax(1), rows.shape[1]) for rows in answers]
    votes = torch.stack(ballots).sum(0).double()
    # Half a vote more: enough among equals, too little against more.
    bonus = 0.5 if client_decides else 0.0
    return torch.argmax(votes.add(ballots[0], alpha=bonus), 1)


# -- phases ----------------------------------------------------------------------------------------


def take_apart(client: Client, *, w: Vector, factor: float) -> Out:
    """The first sigma, which is all of the network, and psi, a part of its kernels."""
    kernels = find_kernels(client.learner.shape_of())
    return Out(update={"sigma": w, "psi": np.where(kernels, np.float32(factor) * w, np.float32(0))})


def compose(_: Client, *, sigma: Vector, psi: Vector, least: float) -> Out:
    """What is tested: sigma, and psi without its small entries."""
    return Out(update=sigma + np.where(np.abs(psi) > least, psi, np.float32(0)))


def put_statistics(client: Client, *, sigma: Vector, statistics: Vector) -> Out:
    """sigma with BatchNorm's statistics of the clients."""
    filled = sigma.copy()
    filled[find_statistics(client.learner.shape_of())] = statistics
    return Out(update=filled)


def train_sigma(
    server: Client,
    *,
    sigma: Vector,
    psi: Vector,
    memory: Vector | None,
    data: Shard,
    method: FedMatch,
    epochs: int,
) -> Fitting[Out]:
    """The server's part, on labels."""

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        return method.lambda_s * method.labels_loss.mean(net(batch.x), batch.y)

    trained = yield Fit(
        sigma + psi,
        loss=loss,
        client=server.on(data),
        settings=for_epochs(epochs),
        clip=method.clip,
        memory=memory,
        remember=True,
    )
    update = {"sigma": trained.weights - psi, "optimiser": trained.memory}
    return Out({"steps": trained.steps}, update)


def train_psi(
    client: Client,
    *,
    sigma: Vector,
    psi: Vector,
    method: FedMatch,
    helpers: Sequence[Vector] = (),
) -> Fitting[Out]:
    """A client's part, by agreement with its helpers on what it is sure of."""
    others = [Frozen(client, sigma + h, f"helper {i}") for i, h in enumerate(helpers)]
    network = client.learner.shape_of()
    kernels = find_kernels(network)
    parts = Parts.of(network, sigma, kernels, method)
    trained = yield Fit(
        sigma + psi,
        loss=agree(others, method),
        adjust=parts.regularise,
        after_step=parts.freeze,
        settings={"augment": Unchanged()},
        clip=method.clip,
    )
    moved = trained.weights - sigma
    own = keep_changed(np.where(kernels, moved, np.float32(0)), psi, method.least)
    changed = own != psi
    sent = float(np.mean(changed[kernels])) if kernels.any() else 0.0
    statistics = find_statistics(client.learner.shape_of())
    sure = trained.means.get("sure", 0.0)
    report = {"_sure": sure, "_sent": sent, "_normed": bool(len(statistics))}
    update = {"psi": own}
    if len(statistics):
        update["statistics"] = trained.weights[statistics]
    return Out(report, update, {"psi": own}, unsent=int((~changed).sum()) * own.itemsize)


def agree(helpers: Sequence[Callable[[Tensor], Tensor]], method: FedMatch) -> BatchLoss:
    """L_icc + L_pse of a batch; 0, which leaves the step to L_reg, where nothing is sure.

    Parameters
    ----------
    helpers
        Frozen networks.
    method
        Its weights and views.
    """

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = net(batch.x)
        p = logits.detach().softmax(1)
        chosen = p.amax(1) >= method.confidence
        batch.note(sure=float(chosen.float().mean()))
        if not chosen.any():
            return logits.sum() * 0.0
        answers = [helper(batch.x[chosen]).softmax(1) for helper in helpers]
        y = vote_for_class([p[chosen], *answers], method.client_decides)
        strong = batch.view(method.strong)[chosen]
        value: Tensor = method.lambda_a * functional.cross_entropy(net(strong), y)
        for q in answers:
            consistency = kl_divergence(q, logits[chosen]).mean()
            value = value + method.lambda_i / len(answers) * consistency
        return value

    return loss


@dataclass(frozen=True)
class Parts:
    """sigma at a client, where it does not move."""

    sigma: Tensor
    kernels: Tensor
    method: FedMatch

    @classmethod
    def of(cls, network: Resident, sigma: Vector, kernels: Bools, method: FedMatch) -> Parts:
        """On the place's device, the trainable part of both."""
        n = network.n_parameters
        trainable = torch.from_numpy(kernels[:n]).to(network.flat.device)
        return cls(network.tensor_of(sigma)[:n], trainable, method)

    def regularise(self, theta: Tensor, gradient: Tensor) -> None:
        """The gradient of L_reg in psi is added; what is not taken apart has none."""
        psi = theta - self.sigma
        gradient.add_(psi.sign(), alpha=self.method.lambda_l1)
        gradient.add_(psi - self.sigma, alpha=2 * self.method.lambda_l2)
        gradient.mul_(self.kernels)

    @torch.no_grad()
    def freeze(self, network: Resident) -> None:
        """What is not taken apart must not decay either."""
        theta = network.parameters
        theta.copy_(torch.where(self.kernels, theta, self.sigma))


def embed(server: Client, *, psi: Vector, sigma: Vector, noise: Images, **rest: Any) -> Out:
    """What a client's model makes of one image of noise."""
    return Out({"v": judge(server.on(noise), sigma + psi).probabilities[0]})


# -- the method ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Disjoint:
    """What is tested, both parts, what is known of clients, and the server's optimiser's memory."""

    model: Ref
    sigma: Ref
    psi: Ref
    known: Mapping[ClientId, Floats] = field(default_factory=dict)
    optimiser: Ref | None = None


@component
class FedMatch(LabelsAtServer):
    """Inter-client consistency and disjoint learning: what labels teach and what images teach lie
    in two parts of the weights."""

    citation: ClassVar[str] = "Jeong et al., ICLR 2021"
    metrics: ClassVar[Mapping[str, str]] = {
        **LabelsAtServer.metrics,
        "helpers/clients": "participants that are sent helpers in this round",
        "pseudo/sure": "mean share of the images in a batch that a client is sure of",
        "sparse/sent": "mean share of the kernels' numbers that differ from the psi that was sent "
        "out",
    }
    deviations: ClassVar[tuple[str, ...]] = (
        "Convolutions and matrices are taken apart. The code's network has nothing else; biases "
        "and BatchNorm's factors belong to sigma and stand still at clients, whose statistics are "
        "averaged.",
        "Helpers are as many as are known, where the code fails for less than H + 1.",
        "The image of noise is a clipped normal one; the code's is a truncated one.",
        "A client is charged for the numbers of psi that differ from the server's, and not for "
        "their places, as in the code; a download, which the code thins out by what the client "
        "had before, is charged whole.",
        "The learning rate is constant: the code lowers it by a labelled validation set that every "
        "client holds.",
        "The server's weight decay is the run's; the code declares one that reaches no loss.",
        "The network is in training in all local epochs; the code's later ones would run without "
        "the small entries of psi.",
    )
    server_epochs: Count = 1
    """Passes over the labelled set in a round. Code: 1."""
    helpers: Natural = 2
    """H. Code: 2; 0 asks nobody."""
    interval: Count = 10
    """Helpers are sent in every so manieth round. Code: 10."""
    confidence: Fraction = 0.75
    """The least probability of a guess that counts. Code: 0.75."""
    client_decides: bool = False
    """Whether a client's own class wins among equals; in the code the lowest class does."""
    lambda_s: NonNegative = 10.0
    """Weight of the server's loss. Code: 10."""
    lambda_i: NonNegative = 1e-2
    """Weight of agreement. Code: 0.01."""
    lambda_a: NonNegative = 1e-2
    """Weight of guesses. Code: 0.01."""
    lambda_l2: NonNegative = 10.0
    """Weight of the distance of psi from sigma. Code: 10."""
    lambda_l1: NonNegative = 1e-5
    """Weight of the size of psi. Code: 1e-5."""
    least: NonNegative = 1e-5
    """Entries of psi, and changes, that are not larger count for nothing. Code: 1e-5."""
    psi_factor: NonNegative = 0.2
    """The first psi, as a part of sigma. Code: 0.2."""
    weighted: bool = False
    """Whether clients count by size; in the code they count the same."""
    strong: Annotated[Augmentation, slot(AUGMENTATIONS)] = Strong(n=2, m=5, least=2)
    """The strong view. Code: magnitudes 2 to 5."""

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        steps = fleet.training
        if steps.optimizer == "sgd" and 2 * self.lambda_l2 * steps.lr >= 1:
            rule = "2 * lambda_l2 * training.lr of FedMatch is below 1"
            got = f"2 * {self.lambda_l2:g} * {steps.lr:g}"
            raise ConfigError(broken(rule, got, "Lower one of the two: psi would overshoot sigma."))

    def init(self, fleet: Fleet, model: Ref) -> Disjoint:
        parts = fleet.serve(take_apart, w=model, factor=self.psi_factor)
        return Disjoint(model, parts["sigma"], parts["psi"])

    def round(self, state: Disjoint, fleet: Fleet, t: int) -> Disjoint:
        alone = self.count_pretraining(fleet, t)
        served = self.train_part(state, fleet, alone or self.server_epochs)
        sigma = served["sigma"]
        psi = state.psi
        known = state.known
        if not alone:
            got = self.train_clients(state, sigma, fleet, t)
            known = {**known, **self.embed_clients(got, sigma, fleet)}
            weights = {c: float(fleet.size(c)) if self.weighted else 1.0 for c in got}
            psi = got.mean(weights, "psi")
            sigma = self.average_statistics(got, sigma, weights, fleet)
        model = fleet.serve(compose, sigma=sigma, psi=psi, least=self.least)["w"]
        return Disjoint(model, sigma, psi, known, served["optimiser"])

    def train_part(self, state: Disjoint, fleet: Fleet, epochs: int) -> Served:
        """The server's passes."""
        got = fleet.serve(
            train_sigma,
            sigma=state.sigma,
            psi=state.psi,
            memory=state.optimiser,
            data=fleet.data("labelled"),
            method=self,
            epochs=epochs,
        )
        refuse_idle_server(got.report)
        return got

    def train_clients(self, state: Disjoint, sigma: Ref, fleet: Fleet, t: int) -> Replies:
        """The clients' turn, with helpers for those that are known in every `interval`th round."""
        cohort = fleet.sample(t)
        each: dict[ClientId, dict[str, Any]] = {}
        if (t + 1) % self.interval == 0:
            found = {client: self.find_helpers(state, fleet, client) for client in cohort}
            each = {client: {"helpers": refs} for client, refs in found.items() if refs}
        got = fleet.map(train_psi, cohort, each=each, sigma=sigma, psi=state.psi, method=self)
        reports = list(got.values())
        fleet.log(
            **{
                "helpers/clients": float(len(each)),
                "pseudo/sure": float(np.mean([report["_sure"] for report in reports])),
                "sparse/sent": float(np.mean([report["_sent"] for report in reports])),
            }
        )
        return got

    def find_helpers(self, state: Disjoint, fleet: Fleet, client: ClientId) -> list[Ref]:
        """psi of the H clients whose answers are nearest; none for a client never seen."""
        if client not in state.known:
            return []
        own = state.known[client]
        others = [other for other in state.known if other != client]
        # Of equals the lower number, wherever the distances came from.
        near = sorted(others, key=lambda c: (float(np.linalg.norm(state.known[c] - own)), c))
        found = [fleet.state(other, "psi") for other in near[: self.helpers]]
        return [ref for ref in found if ref is not None]

    def embed_clients(self, got: Replies, sigma: Ref, fleet: Fleet) -> dict[ClientId, Floats]:
        """v_c of everybody who came back, on one image of clipped noise, the same all run."""
        pixels = fleet.rng(0, "noise image").normal(125, 125, (1, *fleet.shape))
        noise = pixels.clip(0, 255).astype(np.uint8)
        return {
            c: report["v"] for c, report in got.examine(embed, sigma=sigma, noise=noise).items()
        }

    def average_statistics(
        self, got: Replies, sigma: Ref, weights: Mapping[ClientId, float], fleet: Fleet
    ) -> Ref:
        """sigma with BatchNorm's statistics of the clients, where there are any."""
        if not all(report["_normed"] for report in got.values()):
            return sigma
        mean = got.mean(weights, "statistics")
        return fleet.serve(put_statistics, sigma=sigma, statistics=mean)["w"]

    def model(self, state: Disjoint, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model
