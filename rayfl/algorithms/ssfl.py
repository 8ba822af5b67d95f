"""SSFL: group normalisation, FixMatch's loss at clients, and averages in random groups.

Z. Zhang, Y. Yang, Z. Yao, Y. Yan, J. E. Gonzalez, K. Ramchandran and M. W. Mahoney: "Improving
semi-supervised federated learning by reducing the gradient diversity of models", IEEE BigData 2021.

    all      every BatchNorm is a GroupNorm, whose answer to one image depends on no other
    client   L_u = 1/B sum_b 1{max p_b >= tau} CE(argmax p_b, f(strong(u_b)))
    server   cross-entropy on its labels, at the same time as the clients
    groups   the round's clients are split at random into S groups, the server's model is in each:
             w_g = (w_server + sum_{k in G_g} w_k) / (|G_g| + 1);   w <- 1/S sum_g w_g
             clients of group g of the next round begin with w_g, the server with w

The weak view is what `training.augment` makes of an image."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from torch import nn

from rayfl.algorithms.parts.labels_at_server import LabelsAtServer
from rayfl.algorithms.parts.server_training import refuse_idle_server, train_on_labels
from rayfl.component import Count, Natural, component, slot
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.fixmatch import FixMatch
from rayfl.learn.losses.unlabelled import UNLABELLED, UnlabelledLoss
from rayfl.protocol import (
    SERVER,
    Blueprint,
    Client,
    ClientId,
    Fleet,
    Out,
    Ref,
    Replies,
    Vector,
)

Groups = list[list[ClientId]]


def train_on_images(client: Client, *, w: Vector, method: SSFL) -> Fitting[Out]:
    """A client's epochs from its group's model."""
    trained = yield Fit(w, loss=method.local, clip=method.clip)
    return Out({"_sure": trained.means.get("sure", 0.0)}, update=trained.weights)


def normalise_in_groups(net: nn.Module, groups: int) -> nn.Module:
    """The network with a GroupNorm in the place of every BatchNorm of images.

    Parameters
    ----------
    net
        Is changed.
    groups
        How many; where they do not divide the channels, the largest number that divides both.
    """
    for name, child in net.named_children():
        if isinstance(child, nn.BatchNorm2d):
            channels = child.num_features
            setattr(net, name, nn.GroupNorm(math.gcd(groups, channels), channels, eps=1e-5))
        else:
            normalise_in_groups(child, groups)
    return net


def split_at_random(clients: list[ClientId], groups: int, rng: np.random.Generator) -> Groups:
    """Groups whose sizes differ by one at most; of few clients some are empty.

    Parameters
    ----------
    clients
        The round's.
    groups
        S.
    rng
        Decides who is with whom.
    """
    shuffled = rng.permutation(clients)
    return [sorted(part.tolist()) for part in np.array_split(shuffled, groups)]


@dataclass(frozen=True)
class Grouped:
    """The model, the models of the groups, and the memories of the server's optimisers."""

    model: Ref
    groups: tuple[Ref, ...] = ()
    optimisers: tuple[Ref, ...] = ()


@component
class SSFL(LabelsAtServer):
    """Clients and server train side by side and meet in random groups, the server in each."""

    citation: ClassVar[str] = "Zhang et al., IEEE BigData 2021"
    metrics: ClassVar[Mapping[str, str]] = {
        **LabelsAtServer.metrics,
        "pseudo/sure": "mean share of the images in a batch that a client's loss is sure of",
    }
    deviations: ClassVar[tuple[str, ...]] = (
        "A round is the run's local epochs, the server's its own; the released code averages "
        "after every 16 batches.",
        "The server trains once a round, and its model is in every group; the code trains a "
        "replica for each (replicas: independent).",
        "Of five clients there are two groups; the code has ten clients or more in a group, which "
        "would be one group, that is federated averaging with the server inside.",
        "A client's optimiser is fresh; the code's stays at a place while clients change.",
        "A batch without a sure image takes no step: neither momentum nor decay moves weights for "
        "it.",
        "Where 32 groups do not divide the channels of a layer, the largest common divisor is "
        "taken.",
        "Rounds of pre-training are the server's alone.",
    )
    groups: Count = 2
    """S. Code: 2 of 20 clients; 1 is federated averaging with the server inside."""
    start: Literal["group", "global"] = "group"
    """What clients begin with: the last model of the group that they are drawn into, as in the
    code, or the average of all."""
    replicas: Literal["once", "independent"] = "once"
    """Whether the server trains once a round, or once for each group with shuffles of its own."""
    normaliser: Natural = 32
    """Groups of channels of the GroupNorm that replaces BatchNorm. Code: 32; 0 leaves the network
    as it is."""
    local: Annotated[UnlabelledLoss, slot(UNLABELLED)] = FixMatch()
    """The clients' loss. Code: FixMatch's at 0.95."""

    def network(self, blueprint: Blueprint) -> nn.Module:
        net = blueprint()
        return normalise_in_groups(net, self.normaliser) if self.normaliser else net

    def init(self, fleet: Fleet, model: Ref) -> Grouped:
        return Grouped(model)

    def round(self, state: Grouped, fleet: Fleet, t: int) -> Grouped:
        alone = self.count_pretraining(fleet, t)
        if alone:
            memory = state.optimisers[0] if state.optimisers else None
            got = self.train_server(fleet, state.model, memory, alone)
            return Grouped(got["w"], optimisers=(got["optimiser"],))
        cohort = fleet.sample(t)
        groups = split_at_random(cohort, self.groups, fleet.rng(t, "groups"))
        server = self.train_replicas(state, fleet)
        clients = self.train_clients(state, fleet, groups)
        fleet.log(**{"pseudo/sure": float(np.mean([got["_sure"] for got in clients.values()]))})
        teams = self.form_teams(groups, clients)
        trained = server | clients
        models = tuple(trained.mean(team, "w") for team in teams)
        memories = tuple(server.ref(replica, "optimiser") for replica in sorted(server)[::-1])
        return Grouped(trained.mean(meet(teams), "w"), models, memories)

    def train_clients(self, state: Grouped, fleet: Fleet, groups: Groups) -> Replies:
        """Every client from where its group stands."""
        grouped = state.groups if self.start == "group" else ()
        begin = grouped or (state.model,) * self.groups
        pairs = zip(groups, begin, strict=True)
        each = {client: {"w": w} for group, w in pairs for client in group}
        return fleet.map(train_on_images, each, each=each, method=self)

    def train_replicas(self, state: Grouped, fleet: Fleet) -> Replies:
        """The server's passes from the average, once or for each group."""
        servers = [SERVER - i for i in range(self.groups if self.replicas == "independent" else 1)]
        memories: list[Ref | None] = [*state.optimisers, *[None] * len(servers)]
        if len(state.optimisers) < len(servers) and state.optimisers:
            # After its pre-training alone there is one memory for all of them.
            memories = [state.optimisers[0]] * len(servers)
        each: dict[ClientId, dict[str, Any]] = {
            server: {"memory": memory} for server, memory in zip(servers, memories, strict=False)
        }
        got = fleet.map(
            train_on_labels,
            servers,
            each=each,
            w=state.model,
            data=fleet.data("labelled"),
            epochs=self.server_epochs,
            loss=self.labels_loss,
            clip=self.clip,
        )
        for report in got.values():
            refuse_idle_server(report)
        return got

    def form_teams(self, groups: Groups, clients: Replies) -> list[dict[ClientId, float]]:
        """Who is in each w_g, everybody counting the same: the server, and who came back."""
        teams = []
        for number, group in enumerate(groups):
            replica = SERVER - number if self.replicas == "independent" else SERVER
            members = [replica, *(client for client in group if client in clients)]
            # As `meet` has them, so that a single group's mean is the mean of all to the last bit.
            teams.append(dict.fromkeys(members, 1 / len(members)))
        return teams

    def model(self, state: Grouped, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model


def meet(teams: list[dict[ClientId, float]]) -> dict[ClientId, float]:
    """What everybody counts in 1/S sum_g w_g.

    Examples
    --------
    >>> met = meet([{-1: 1, 0: 1, 1: 1, 2: 1}, {-1: 1, 3: 1, 4: 1}])
    >>> {member: round(part, 6) for member, part in met.items()}
    {-1: 0.291667, 0: 0.125, 1: 0.125, 2: 0.125, 3: 0.166667, 4: 0.166667}
    """
    weights: dict[ClientId, float] = {}
    for team in teams:
        for member in team:
            weights[member] = weights.get(member, 0.0) + 1 / len(team) / len(teams)
    return weights
