"""IFCA-PFL: users go, round after round, to the model of least loss on their own data.

"FB-NLL: a feature-based approach to tackle noisy labels in personalized federated learning",
Algorithm 2: IFCA (A. Ghosh, J. Chung, D. Yin and K. Ramchandran, NeurIPS 2020), with clusters that
are never empty. F_k(w) is the mean loss of w on the labels that user k has, wrong ones included.

    Procedure 3   draw w_1 .. w_M until every m is argmin_m F_k(w_m) of some user k
    round t       user k trains w_{m_k};   w_m <- mean of its users' models, all counting the same
                  N_m <- how many users m has
    Procedure 4   m_k <- argmin_m F_k(w_m);   if that leaves a cluster empty, instead
                  for m = 1 .. M: the N_m users of least F_k(w_m) that no cluster before m has
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from rayfl.algorithms.fedavg import train
from rayfl.algorithms.parts.empirical_loss import measure_loss
from rayfl.arrays import Floats
from rayfl.component import Count, component, neutral, slot
from rayfl.errors import ConfigError, broken
from rayfl.learn.losses import LOSSES
from rayfl.learn.losses.base import CROSS_ENTROPY, SampleLoss
from rayfl.protocol import Algorithm, Client, ClientId, Fleet, Out, Ref, Replies, Vector

Clusters = NDArray[np.int64]


@dataclass(frozen=True)
class Associated:
    """w_1 .. w_M, and from the first round on which of them each user has."""

    models: tuple[Ref, ...]
    clusters: Mapping[ClientId, int] = field(default_factory=dict)


def measure_losses(client: Client, *, models: Sequence[Vector], method: IfcaPfl) -> Out:
    """F_k(w_m) of every model m."""
    losses = [measure_loss(client, w, method.loss) for w in models]
    return Out({"losses": np.array(losses, np.float32)})


@component
class IfcaPfl(Algorithm):
    """Each user trains the model of least loss on its own labels; no cluster is ever empty."""

    citation: ClassVar[str] = "FB-NLL, Algorithm 2 (after Ghosh et al., NeurIPS 2020)"
    personal: ClassVar[bool] = True
    deviations: ClassVar[tuple[str, ...]] = (
        "F_k is measured on all samples of the user, in evaluation mode and without augmentation; "
        "of equal losses the first model's counts as the least.",
        "A loss that is not finite counts as infinite; a user all of whose losses are, stays where "
        "it was.",
        "Procedure 3 gives up after `draws` draws and deals users out in clusters of equal size; "
        "the paper's might draw for ever.",
        "Procedure 3 takes place at the beginning of the first round, so that its cost is in the "
        "books.",
        "Of users that a round's draw leaves out nobody asks, and they stay where they were "
        "(training.fraction); the paper's rounds have everybody.",
        "A single model is not chosen among, so that nothing is measured for it.",
    )
    metrics: ClassVar[Mapping[str, str]] = {
        "clusters/draws": "how many times M first models were drawn (first round)",
        "clusters/moved": "the share of users that go to another model than before",
        "clusters/forced": "1 where the least losses left a cluster empty, and sizes were kept",
    }

    models: Count = 2
    """M. Paper: 2, 3 or 5, the number of tasks; 1 is `single_global`."""
    draws: Count = 1000
    """How often Procedure 3 draws first models at most. Paper: until no cluster is empty."""
    loss: Annotated[SampleLoss, slot(LOSSES), neutral("ce")] = CROSS_ENTROPY
    """The users' loss, which F_k is the mean of: `ce` (the paper's), or any robust loss."""

    def check(self, fleet: Fleet) -> None:
        users = len(fleet.clients)
        if self.models > users:
            rule = f"method.models is at most the number of clients with data ({users})"
            remedy = "Ask for fewer clusters or bring more clients."
            raise ConfigError(broken(rule, self.models, remedy))

    def init(self, fleet: Fleet, model: Ref) -> Associated:
        return Associated((model,) * self.models)

    def round(self, state: Associated, fleet: Fleet, t: int) -> Associated:
        if not state.clusters:
            state = self.find_first_models(state, fleet)
        users = fleet.sample(t)
        each = {k: {"w": state.models[state.clusters[k]]} for k in users}
        got = fleet.map(train, users, each=each, method=self)
        models = average_clusters(got, state)
        return self.associate(replace(state, models=models), fleet, users)

    def model(self, state: Associated, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.models[0 if client is None else state.clusters.get(client, 0)]

    def clusters(self, state: Associated) -> Mapping[ClientId, int]:
        return state.clusters

    def find_first_models(self, state: Associated, fleet: Fleet) -> Associated:
        """Procedure 3."""
        users = list(fleet.clients)
        if self.models == 1:
            return replace(state, clusters=dict.fromkeys(users, 0))
        unknown = np.zeros(len(users), np.int64)
        for draw in range(self.draws):
            models = tuple(fleet.initial(draw * self.models + m) for m in range(self.models))
            losses = self.ask(models, fleet, users)
            chosen = choose_least(losses, unknown)
            if count_users(chosen, self.models).all():
                break
        else:
            chosen = fill_clusters(losses, divide_evenly(len(users), self.models))
        fleet.log(**{"clusters/draws": draw + 1.0})
        return Associated(models, dict(zip(users, chosen.tolist(), strict=True)))

    def associate(self, state: Associated, fleet: Fleet, users: Sequence[ClientId]) -> Associated:
        """Procedure 4, for those who took part."""
        if self.models == 1:
            return state
        before = np.array([state.clusters[k] for k in users])
        stayed = [m for k, m in state.clusters.items() if k not in set(users)]
        elsewhere = count_users(np.array(stayed, np.int64), self.models)
        losses = self.ask(state.models, fleet, users)
        chosen = reassociate(losses, before, elsewhere)
        fleet.log(**{"clusters/moved": float((chosen != before).mean())})
        forced = not np.array_equal(chosen, choose_least(losses, before))
        fleet.log(**{"clusters/forced": float(forced)})
        moved = dict(zip(users, chosen.tolist(), strict=True))
        return replace(state, clusters={**state.clusters, **moved})

    def ask(self, models: Sequence[Ref], fleet: Fleet, users: Sequence[ClientId]) -> Floats:
        """L[k, m] = F_k(w_m)."""
        got = fleet.map(measure_losses, users, models=list(models), method=self)
        losses = np.stack([got[k]["losses"] for k in users]).astype(np.float64)
        return np.where(np.isfinite(losses), losses, np.inf)


def average_clusters(got: Replies, state: Associated) -> tuple[Ref, ...]:
    """The plain mean of each cluster; one of whose users none replied keeps its model."""
    means = []
    for m, model in enumerate(state.models):
        team = [k for k in got if state.clusters[k] == m]
        means.append(got.mean(dict.fromkeys(team, 1.0)) if team else model)
    return tuple(means)


# -- Procedure 4 -----------------------------------------------------------------------------------


def reassociate(losses: Floats, before: Clusters, elsewhere: Clusters | None = None) -> Clusters:
    """The model of least loss for each user; where that leaves a cluster empty, all sizes stay.

    Parameters
    ----------
    losses
        L, a row a user and a column a model.
    before
        The cluster of each user so far.
    elsewhere
        How many users of each cluster are not asked; nobody where not given.

    Examples
    --------
    >>> losses = np.array([[1.0, 1.5], [0.8, 0.9], [1.2, 2.0], [0.5, 0.7]])
    >>> reassociate(losses, before=np.array([0, 0, 1, 1])).tolist()
    [1, 0, 1, 0]
    """
    clusters = losses.shape[1]
    others = np.zeros(clusters, np.int64) if elsewhere is None else elsewhere
    chosen = choose_least(losses, before)
    if (count_users(chosen, clusters) + others).all():
        return chosen
    return fill_clusters(losses, count_users(before, clusters))


def choose_least(losses: Floats, before: Clusters) -> Clusters:
    """argmin_m L[k, m]; a user that no model gives a finite loss stays where it was."""
    hopeless = np.isinf(losses).all(axis=1)
    return np.where(hopeless, before, losses.argmin(axis=1))


def fill_clusters(losses: Floats, sizes: Clusters) -> Clusters:
    """One cluster after the other takes the users of least loss that are left.

    Parameters
    ----------
    losses
        L, a row a user and a column a model.
    sizes
        N_m, which add up to the users.
    """
    chosen = np.full(len(losses), -1)
    for m, size in enumerate(sizes):
        left = np.flatnonzero(chosen < 0)
        # Stable: of equal losses, the user with the smaller number.
        nearest = np.argsort(losses[left, m], kind="stable")[:size]
        chosen[left[nearest]] = m
    return chosen


def count_users(clusters: Clusters, models: int) -> Clusters:
    """N_m."""
    return np.bincount(clusters, minlength=models)


def divide_evenly(users: int, models: int) -> Clusters:
    """As many users for each model, the first ones with one more where it does not come out."""
    return (users + models - 1 - np.arange(models)) // models
