"""RSCFed with the labels at the server: a draft.

X. Liang et al.: "RSCFed: random sampling consensus federated semi-supervised learning", CVPR 2022.

    client   teacher <- EMA of the student;  L = strength ||p(weak) - sharpen(p_teacher(weak'))||^2
    server   M subsets of K clients; mean m of each;  d_i = sum_l ||w_i - m||;
             omega_i ~ n_i exp(-beta d_i / n_i);  the M reweighted means count the same
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, nn

from rayfl.algorithms.parts.distance_weighting import dampen_by_size, find_distances
from rayfl.learn.augment.views import Weak
from rayfl.methods import (
    AUGMENTATIONS,
    SERVER,
    Algorithm,
    Augmentation,
    Batch,
    Client,
    ClientId,
    Count,
    Ema,
    Fit,
    Fitting,
    Fleet,
    Fraction,
    NonNegative,
    Out,
    Positive,
    Ref,
    Shard,
    Vector,
    component,
    for_epochs,
    sharpen,
    slot,
    warm_decay,
)


def train_on_labels(server: Client, *, w: Vector, data: Shard, method: RSCFed) -> Fitting[Out]:
    """The server's epochs on its labels."""
    settings = {**for_epochs(method.server_epochs), "augment": method.weak}
    trained = yield Fit(w, client=server.on(data), settings=settings, clip=method.clip)
    return Out({"n": len(data)}, update=trained.weights)


def follow_teacher(client: Client, *, w: Vector, method: RSCFed) -> Fitting[Out]:
    """A client learns from its own mean teacher, which stays with it."""
    state = client.state
    steps = int(state.get("steps", 0))
    teacher = Ema(
        client,
        state.get("teacher", w),
        lambda n: warm_decay(n, method.ema),
        steps=steps,
        statistics="own",
    )

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        answer = teacher(batch.view(method.weak)).softmax(1)
        target = sharpen(answer, method.temperature)
        gaps = (net(batch.x).softmax(1) - target).square()
        value: Tensor = method.strength * gaps.sum()
        return value / client.learner.training.batch_size

    trained = yield Fit(
        w,
        loss=loss,
        settings={"augment": method.weak},
        clip=method.clip,
        after_step=teacher.follow,
        memory=state.get("optimiser"),
        remember=True,
    )
    kept = {"teacher": teacher.dump(), "steps": teacher.steps, "optimiser": trained.memory}
    return Out({"n": len(client)}, update=trained.weights, state=kept)


@dataclass(frozen=True)
class Consensus:
    model: Ref


@component
class RSCFed(Algorithm):
    """Sub-consensus models of random subsets, reweighted by distance."""

    citation: ClassVar[str] = "Liang et al., CVPR 2022"
    needs: ClassVar = {"labelled": "labels"}
    client_labels: ClassVar[bool] = False
    subsets: Count = 3
    subset_size: Count = 3
    strength: NonNegative = 0.02
    temperature: Positive = 0.5
    ema: Fraction = 0.999
    beta: NonNegative | None = None
    server_epochs: Count = 5
    clip: NonNegative = 5.0
    weak: Annotated[Augmentation, slot(AUGMENTATIONS)] = Weak()

    def init(self, fleet: Fleet, model: Ref) -> Consensus:
        return Consensus(model)

    def round(self, state: Consensus, fleet: Fleet, t: int) -> Consensus:
        w = state.model
        labelled = fleet.data("labelled")
        server = fleet.map(train_on_labels, [SERVER], w=w, data=labelled, method=self)
        clients = fleet.map(follow_teacher, fleet.sample(t), w=w, method=self)
        got = server | clients
        rng = fleet.rng(t, "subsets")
        size = min(self.subset_size, len(clients))
        teams = []
        for _ in range(self.subsets):
            drawn = rng.choice(list(clients), size, replace=False).tolist()
            teams.append({c: float(got[c]["n"]) for c in sorted([SERVER, *drawn])})
        far = find_distances(got, [got.mean(team) for team in teams])
        weights = dict.fromkeys(got, 0.0)
        for m, team in enumerate(teams):
            omega = dampen_by_size(team, {c: float(far[c][m]) for c in team}, self.beta)
            total = sum(omega.values())
            for client, share in omega.items():
                weights[client] += share / total / self.subsets
        fleet.log(**{"weights/server": weights[SERVER]})
        return Consensus(got.mean(weights))

    def model(self, state: Consensus, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model
