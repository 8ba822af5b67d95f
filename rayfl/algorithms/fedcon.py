"""FedCon: one trunk under two heads, a classifier at the server and a contrastive one at clients.

Z. Long, J. Wang, Y. Wang, H. Xiao and F. Ma: "FedCon: a contrastive framework for federated
semi-supervised learning", arXiv 2109.04533, 2021. Trunk B, classifier F, predictor h; views x1, x2.

    server   L_s = 1/2 CE(y, f(x1)) + 1/2 CE(y, f(x2))
                 + w(t)/2 [KL(f-(x2) || f(x1)) + KL(f-(x1) || f(x2))],   f = F o B
             w(t) = exp(-5 (1 - min(t, ramp) / ramp)^2)
             f- <- tau f- + (1 - tau) f,   tau = 1 - 4e-4 (cos(pi k / K) + 1) / 2 at step k
    client   L_k = -1/2 [cos(h(B(x1)), B-(x2)) + cos(h(B(x2)), B-(x1))]
             B- <- ema B- + (1 - ema) B;   h and B- stay with the client
    both     B alone travels;  B <- mean of the clients' B, each counting the same

A round is the server's passes, the test of what it made, and the clients' turn, in this order. The
views are what `training.augment` makes of an image, twice."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, cast

import torch
from torch import Tensor, nn

from rayfl.algorithms.parts.labels_at_server import LabelsAtServer
from rayfl.algorithms.parts.server_training import for_epochs, refuse_idle_server
from rayfl.algorithms.parts.shared_part import find_places, put_part
from rayfl.component import Count, Fraction, NonNegative, component
from rayfl.learn.batches import Batch
from rayfl.learn.copies import Ema
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.byol import byol_symmetric
from rayfl.learn.losses.distillation import kl_divergence
from rayfl.learn.resident import Resident
from rayfl.models.heads import build_projection_mlp
from rayfl.models.network import Network
from rayfl.protocol import (
    Blueprint,
    Client,
    ClientId,
    Fleet,
    Out,
    Ref,
    Replies,
    Served,
    Shard,
    Vector,
)

Target = Literal["teacher", "self"]


class TwoTops(Network):
    """B and F, as any network, and h beside F."""

    def __init__(self, network: Network, widening: int) -> None:
        width = network.feature_dim
        super().__init__(network.trunk, network.head, width)
        self.predictor = build_projection_mlp(width, widening * width, width)

    def predict(self, x: Tensor) -> Tensor:
        """h(B(x)), which meets B-(x')."""
        prediction: Tensor = self.predictor(self.features(x))
        return prediction


def ramp_weight(t: int, ramp: int) -> float:
    """w(t), the weight of consistency in round t.

    Examples
    --------
    >>> [round(ramp_weight(t, 100), 6) for t in (0, 10, 50, 100, 200)]
    [0.006738, 0.017422, 0.286505, 1.0, 1.0]
    """
    left = 1 - min(t, ramp) / ramp if ramp else 0.0
    return math.exp(-5 * left**2)


def stay_longer(step: int, horizon: int, base: float = 4e-4) -> float:
    """tau of the server's teacher, which reaches 1 at the horizon and stays there.

    Examples
    --------
    >>> [round(stay_longer(k, 20_000), 6) for k in (0, 10_000, 20_000, 40_000)]
    [0.9996, 0.9998, 1.0, 1.0]
    """
    # Beyond its half period the released code's cosine would come down again.
    return 1 - base * (math.cos(math.pi * min(step / horizon, 1)) + 1) / 2


# -- phases ----------------------------------------------------------------------------------------


def start_networks(client: Client, *, w: Vector) -> Out:
    """The first trunk."""
    return Out(update={"trunk": w[find_places(*_trunk_of(client))]})


def _trunk_of(client: Client) -> tuple[Resident, nn.Module]:
    network = client.learner.shape_of()
    return network, cast(TwoTops, network.net).trunk


def train_at_server(
    server: Client,
    *,
    w: Vector,
    trunk: Vector,
    teacher: Vector,
    step: int,
    horizon: int,
    weight: float,
    epochs: int,
    memory: Vector | None,
    data: Shard,
    method: FedCon,
) -> Fitting[Out]:
    """The server's passes: labels, and consistency with its teacher, on two views."""
    follower = Ema(server, teacher, lambda k: stay_longer(k, horizon), steps=step, statistics="own")
    view = server.learner.training.augment

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        first, second = batch.x, batch.view(view)
        z1, z2 = net(first), net(second)
        supervised = method.labels_loss.mean(z1, batch.y) + method.labels_loss.mean(z2, batch.y)
        ask: Callable[[Tensor], Tensor] = net if method.target == "self" else follower
        with torch.no_grad():
            q1, q2 = ask(first).softmax(1), ask(second).softmax(1)
        consistent = kl_divergence(q2, z1).mean() + kl_divergence(q1, z2).mean()
        batch.note(supervised=supervised / 2, consistent=consistent / 2)
        return supervised / 2 + weight * consistent / 2

    trained = yield Fit(
        put_part(w, find_places(*_trunk_of(server)), trunk),
        loss=loss,
        client=server.on(data),
        settings=for_epochs(epochs),
        clip=method.clip,
        after_step=follower.follow,
        memory=memory,
        remember=True,
    )
    w = trained.weights
    update = {"w": w, "trunk": w[find_places(*_trunk_of(server))], "teacher": follower.dump()}
    report = {"steps": trained.steps, **{f"_{k}": v for k, v in trained.means.items()}}
    return Out(report, {**update, "optimiser": trained.memory})


def contrast(client: Client, *, trunk: Vector, method: FedCon) -> Fitting[Out]:
    """A client's epochs from the trunk that it got, with its own predictor and target."""
    network, part = _trunk_of(client)
    places = find_places(network, part)
    own = find_places(network, cast(TwoTops, network.net).predictor)
    learner = client.learner
    first = put_part(learner.first_weights(), places, trunk)
    start = put_part(first, own, client.state["predictor"]) if client.state else first
    target = learner.resident(client.state.get("target", trunk), "target", _build_trunk(client))
    target.net.train()
    view = learner.training.augment

    def loss(net: nn.Module, batch: Batch) -> Tensor | None:
        # The predictor's BatchNorm has nothing to say of one image.
        if len(batch) < 2:
            return None
        online = cast(TwoTops, net)
        second = batch.view(view)
        with torch.no_grad():
            z1, z2 = target.net(batch.x), target.net(second)
        predictions = online.predict(batch.x), online.predict(second)
        # -1/2 (cos + cos), by way of 2 - 2 cos
        return byol_symmetric(*predictions, z1, z2).mean() / 4 - 1

    @torch.no_grad()
    def follow(online: Resident) -> None:
        mine = online.parameters[: target.n_parameters]
        target.parameters.lerp_(mine, 1 - method.ema)

    trained = yield Fit(start, loss=loss, clip=method.clip, after_step=follow)
    if not trained.steps:
        return Out({"steps": 0})
    w = trained.weights
    state = {"predictor": w[own], "target": target.dump()}
    return Out({"steps": trained.steps}, {"trunk": w[places]}, state)


def _build_trunk(client: Client) -> Callable[[], nn.Module]:
    return lambda: cast(TwoTops, client.learner.build()).trunk


# -- the method ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContrastNetwork:
    """The server's network as it is tested, the trunk that the next round begins with, the teacher
    and the steps that it has followed, and the memory of the server's optimiser."""

    model: Ref
    trunk: Ref
    teacher: Ref
    step: int = 0
    optimiser: Ref | None = None


@component
class FedCon(LabelsAtServer):
    """Clients contrast views of their images under a head of their own; the trunk alone is
    averaged."""

    citation: ClassVar[str] = "Long et al., 2021"
    metrics: ClassVar[Mapping[str, str]] = {
        **LabelsAtServer.metrics,
        "loss/supervised": "mean of the server's loss on its labels",
        "loss/consistent": "mean divergence of the server's answers from its teacher's",
        "clients/idle": "participants that took no step, and do not count",
    }
    deviations: ClassVar[tuple[str, ...]] = (
        "The server is consistent with its teacher; the released code asks the student itself, so "
        "that its moving average is never read (target: self).",
        "What a client keeps is its own; the code stores it under the number of a batch, so that "
        "returning clients load another client's.",
        "A client counts once; in the code it counts once for every local epoch.",
        "The teacher's decay reaches 1 after the run's own steps and stays there; the code counts "
        "1000 steps a round, so that it does so after 20 rounds, and then comes down again.",
        "The server's optimiser goes on where it stopped; the code makes one anew every round.",
        "The classifier is the network's own head; the code's has two hidden layers and dropout.",
        "All clients begin with one predictor, which the run's first weights have.",
        "Teacher and target answer with the statistics of their own batches.",
        "Clients train with the run's optimiser, the code with LARS and a warm-up.",
        "A client that took no step is left out of the average of B.",
        "A client skips a batch of one image.",
    )
    server_epochs: Count = 1
    """Passes over the labelled set in a round. Code: 1."""
    ramp: Count = 100
    """Rounds after which consistency has its whole weight. Code: 100."""
    consistency: NonNegative = 1.0
    """The weight then. Code: 1; neutral: 0, labels alone on two views."""
    target: Target = "teacher"
    """Whom the server is to agree with."""
    horizon: Count | None = None
    """K, steps after which the teacher stands still. Code: 20000; null: the run's own."""
    ema: Fraction = 0.999
    """The share of a client's target that a step leaves. Code: 0.999."""
    widening: Count = 3
    """How many times wider than a feature the predictor's hidden layer is. Code: 3."""

    def network(self, blueprint: Blueprint) -> nn.Module:
        return TwoTops(cast(Network, blueprint()), self.widening)

    def init(self, fleet: Fleet, model: Ref) -> ContrastNetwork:
        trunk = fleet.serve(start_networks, w=model)["trunk"]
        return ContrastNetwork(model, trunk, teacher=model)

    def round(self, state: ContrastNetwork, fleet: Fleet, t: int) -> ContrastNetwork:
        alone = self.count_pretraining(fleet, t)
        got = self.train_two_views(state, fleet, t, alone or self.server_epochs)
        trunk = got["trunk"]
        if not alone:
            replies = fleet.map(contrast, fleet.sample(t), trunk=trunk, method=self)
            trunk = self.average_trunks(replies, trunk, fleet)
        step = state.step + got.report["steps"]
        return ContrastNetwork(got["w"], trunk, got["teacher"], step, got["optimiser"])

    def train_two_views(self, state: ContrastNetwork, fleet: Fleet, t: int, epochs: int) -> Served:
        """The server's passes from the averaged trunk."""
        got = fleet.serve(
            train_at_server,
            w=state.model,
            trunk=state.trunk,
            teacher=state.teacher,
            step=state.step,
            horizon=self.horizon or self.count_steps(fleet),
            weight=self.consistency * ramp_weight(t, self.ramp),
            epochs=epochs,
            memory=state.optimiser,
            data=fleet.data("labelled"),
            method=self,
        )
        refuse_idle_server(got.report)
        losses = {name: got.report[f"_{name}"] for name in ("supervised", "consistent")}
        fleet.log(**{f"loss/{name}": value for name, value in losses.items()})
        return got

    def count_steps(self, fleet: Fleet) -> int:
        """K: the steps that the server takes in the whole run."""
        training = fleet.training
        whole, rest = divmod(fleet.size("labelled"), training.batch_size)
        batches = whole + bool(rest and not training.drop_last)
        return max(batches * self.server_epochs * training.rounds, 1)

    def average_trunks(self, got: Replies, trunk: Ref, fleet: Fleet) -> Ref:
        """The mean of the trunks of those that took a step, each counting the same."""
        active = {client: 1.0 for client, report in got.items() if report["steps"]}
        fleet.log(**{"clients/idle": float(len(got) - len(active))})
        return got.mean(active, "trunk") if active else trunk

    def model(self, state: ContrastNetwork, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model
