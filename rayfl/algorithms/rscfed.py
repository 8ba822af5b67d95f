"""RSCFed with the labels at the server: sub-consensus models of random subsets.

X. Liang, Y. Lin, H. Fu, L. Zhu and X. Li: "RSCFed: random sampling consensus federated
semi-supervised learning", CVPR 2022.

    client   L_u = strength / B  sum_b || p(weak_b) - sharpen(p_teacher(weak'_b), T) ||^2
             teacher <- alpha teacher + (1 - alpha) w,  alpha = min(1 - 1 / (n + 1), ema)
    subset   M times: `subset_size` clients drawn without replacement, and the server
             wbar = their mean by size;  d_i = sum over tensors ||w_i - wbar||
             omega_i ~ n_i exp(-beta d_i / n_i);  w_A = sum omega_i w_i
    server   w <- 1/M sum_A w_A

The paper has one labelled client; here the server stands in its place. The weak views are what
`training.augment` makes of an image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor, nn

from rayfl.algorithms.parts.distance_weighting import dampen_by_size, find_distances
from rayfl.algorithms.parts.labels_at_server import LabelsAtServer
from rayfl.algorithms.parts.server_training import refuse_idle_server, train_on_labels
from rayfl.component import Count, Fraction, NonNegative, Positive, component
from rayfl.learn.batches import Batch
from rayfl.learn.copies import Ema
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.squared_error import squared_error
from rayfl.learn.mixing import sharpen
from rayfl.learn.schedules import warm_decay
from rayfl.protocol import SERVER, Client, ClientId, Fleet, Out, Ref, Replies, Vector

Weights = Mapping[ClientId, float]
ServerShare = Annotated[float, Field(gt=0, lt=1)] | Literal["size", "distance"]


def follow_teacher(client: Client, *, w: Vector, method: RSCFed) -> Fitting[Out]:
    """A client learns from its own mean teacher, which stays with it."""
    state = client.state
    teacher = Ema(
        client,
        state.get("teacher", w),
        lambda n: warm_decay(n, method.ema),
        steps=int(state.get("steps", 0)),
        statistics="own",
    )
    training = client.learner.training

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        answer = teacher(batch.view(training.augment)).softmax(1)
        target = sharpen(answer, method.temperature)
        # By the nominal batch size: images of a short last batch do not count for more.
        losses = squared_error(net(batch.x), target).sum() / training.batch_size
        batch.note(consistency=losses)
        return method.strength * losses

    trained = yield Fit(
        w,
        loss=loss,
        clip=method.clip,
        after_step=teacher.follow,
        memory=state.get("optimiser"),
        remember=method.persist,
    )
    kept = {"teacher": teacher.dump(), "steps": teacher.steps}
    kept |= {"optimiser": trained.memory} if method.persist else {}
    return Out({"steps": trained.steps}, update=trained.weights, state=kept)


@dataclass(frozen=True)
class Consensus:
    """The model, and the memory of the server's optimiser."""

    model: Ref
    optimiser: Ref | None = None


@component
class RSCFed(LabelsAtServer):
    """Averages sub-consensus models of random subsets, in which far models count less."""

    citation: ClassVar[str] = "Liang et al., CVPR 2022"
    metrics: ClassVar[Mapping[str, str]] = {
        **LabelsAtServer.metrics,
        "weights/server": "the server's share of the round's mean",
    }
    deviations: ClassVar[tuple[str, ...]] = (
        "The server takes the labelled client's place, and belongs to every subset: drawn among "
        "all, it would be in hardly any.",
        "The server has a fixed share of every subset. The released code counts the labelled "
        "client's size six times, and its weight six times more, about 0.45 of a round; where its "
        "distance dampens it too (server_share: distance), a server with fewer labels than a "
        "client has images is left out of its own federation.",
        "beta is the mean size over the median distance unless it is set: the code's 1e4, for a "
        "small network, would leave one client alone in a deeper one. Exponents are compared "
        "before they are taken, so that not all of them can vanish.",
        "A client that is in two subsets trains once; in the code it trains again for each.",
        "Distances leave out BatchNorm's statistics and counters, which the code counts.",
        "A teacher answers with the statistics of its own batches, and averages no statistics.",
        "Server and clients share `training.lr`; the released options give clients without labels "
        "a rate of their own (0.021; the labelled one has 0.03).",
        "Rounds of pre-training are the server's alone; the code starts from a model of the "
        "labelled client.",
    )
    subsets: Count = 3
    """M. Code: 3."""
    subset_size: Count = 3
    """Clients in a subset, at most the round's (ours: 3 of 5; code: 5 of 10)."""
    strength: NonNegative = 0.02
    """lambda_u. Code: 0.02; neutral: 0, where clients stay where they are."""
    temperature: Positive = 0.5
    """T of sharpening. Code: 0.5; 1 leaves the teacher's answer as it is."""
    ema: Fraction = 0.999
    """The largest alpha. Code: 0.999."""
    beta: NonNegative | None = None
    """How much distance counts. Code: 1e4; 0 is a mean by size; null: mean size over median
    distance."""
    server_share: ServerShare = 0.5
    """The server's part of every subset: a share; by its `size`; or by size and `distance`, as a
    client's."""
    server_factor: Positive = 1.0
    """How often its images count where its part goes by size (code, w_mul: 6)."""
    finetune: bool = False
    """Whether the server's passes follow the average, as in FedCR, in place of being a part."""
    persist: bool = True
    """Whether optimisers of clients go on where they stopped, as in the code."""
    clip: Positive | None = 5.0
    """Largest norm of a gradient. Code: 5."""

    def init(self, fleet: Fleet, model: Ref) -> Consensus:
        return Consensus(model)

    def round(self, state: Consensus, fleet: Fleet, t: int) -> Consensus:
        w = state.model
        alone = self.count_pretraining(fleet, t)
        if alone:
            got = self.train_server(fleet, w, state.optimiser, alone)
            return Consensus(got["w"], got["optimiser"])
        clients = fleet.map(follow_teacher, fleet.sample(t), w=w, method=self)
        if self.finetune:
            met = clients.mean(self.weigh_subsets(clients, fleet, t))
            got = self.train_server(fleet, met, state.optimiser)
            return Consensus(got["w"], got["optimiser"])
        server = self.train_beside(state, fleet)
        trained = server | clients
        met = trained.mean(self.weigh_subsets(trained, fleet, t), "w")
        return Consensus(met, server.ref(SERVER, "optimiser"))

    def train_beside(self, state: Consensus, fleet: Fleet) -> Replies:
        """The server's passes from the model that clients got, as one of their map's."""
        got = fleet.map(
            train_on_labels,
            [SERVER],
            w=state.model,
            memory=state.optimiser,
            data=fleet.data("labelled"),
            epochs=self.server_epochs,
            loss=self.labels_loss,
            clip=self.clip,
        )
        refuse_idle_server(got[SERVER])
        return got

    def weigh_subsets(self, got: Replies, fleet: Fleet, t: int) -> dict[ClientId, float]:
        """What each model counts in the mean of the M sub-consensus models."""
        teams = self.draw_teams(got, fleet, t)
        means = [got.mean(team, "w") for team in teams]
        far = find_distances(got, means, statistics=False, key="w")
        weights = dict.fromkeys(got, 0.0)
        for m, team in enumerate(teams):
            distances = {client: float(far[client][m]) for client in team}
            for client, share in self.weigh_team(team, distances).items():
                weights[client] += share / self.subsets
        fleet.log(**{"weights/server": weights.get(SERVER, 0.0)})
        return weights

    def draw_teams(self, got: Replies, fleet: Fleet, t: int) -> list[dict[ClientId, float]]:
        """The sizes of the members of M random subsets, the server in each where it trained."""
        rng = fleet.rng(t, "subsets")
        clients = [client for client in got if client != SERVER]
        size = min(self.subset_size, len(clients))
        teams = []
        for _ in range(self.subsets):
            drawn = rng.choice(clients, size, replace=False).tolist()
            team = {client: float(fleet.size(client)) for client in sorted(drawn)}
            if SERVER in got:
                team[SERVER] = float(fleet.size("labelled"))
            teams.append(team)
        return teams

    def weigh_team(self, team: Weights, distances: Weights) -> dict[ClientId, float]:
        """omega of one subset, which sum to 1."""
        if SERVER not in team or self.server_share == "distance":
            return dampen_by_size(team, distances, self.beta)
        others = {client: size for client, size in team.items() if client != SERVER}
        if not others:
            return {SERVER: 1.0}
        share = self.server_share
        if share == "size":
            own = self.server_factor * team[SERVER]
            share = own / (own + sum(others.values()))
        dampened = dampen_by_size(others, distances, self.beta)
        rest = {client: (1 - share) * omega for client, omega in dampened.items()}
        return {SERVER: share, **rest}

    def model(self, state: Consensus, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model
