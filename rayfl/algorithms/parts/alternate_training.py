"""The rounds of SemiFL, which (FL)^2 shares: clients by the global model's guesses, the server with
momentum and on its labels, static BatchNorm.

E. Diao, J. Ding and V. Tarokh: "SemiFL: semi-supervised federated learning for unlabeled clients
with alternate training", NeurIPS 2022."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

from rayfl.algorithms.parts.batch_norm import remeasure_statistics
from rayfl.algorithms.parts.labels_at_server import LabelsAtServer
from rayfl.component import Count, Fraction, component
from rayfl.protocol import ClientId, Fleet, Ref


@dataclass(frozen=True)
class Moving:
    """W, its momentum v, and the memory of the server's optimiser."""

    model: Ref
    v: Ref | None = None
    optimiser: Ref | None = None


@component
class AlternateTraining(LabelsAtServer):
    """Heirs say what their clients do, in `train_clients`."""

    beta_g: Fraction = 0.5
    """The server's momentum. Code: 0.5; neutral: 0, the average itself."""
    statistics: Literal["server", "active", "all"] = "active"
    """Whose images BatchNorm's statistics are measured on, beside the server's."""
    statistics_batch: Count = 250
    """Images in a batch of that pass. Code: 250."""
    persist: bool = True
    """Whether a client's optimiser goes on where it stopped, as in the code."""

    def init(self, fleet: Fleet, model: Ref) -> Moving:
        return Moving(self.remeasure(fleet, model, []))

    def round(self, state: Moving, fleet: Fleet, t: int) -> Moving:
        alone = self.count_pretraining(fleet, t)
        w, v = state.model, state.v
        cohort = [] if alone else fleet.sample(t)
        if cohort:
            w, v = self.train_clients(state, fleet, cohort)
        got = self.train_server(fleet, w, state.optimiser, alone)
        return Moving(self.remeasure(fleet, got["w"], cohort), v, got["optimiser"])

    @abstractmethod
    def train_clients(
        self, state: Moving, fleet: Fleet, cohort: list[ClientId]
    ) -> tuple[Ref, Ref | None]:
        """W and v after the clients' turn; those of the state where nobody had anything to say."""

    def move(self, fleet: Fleet, state: Moving, mean: Ref) -> tuple[Ref, Ref]:
        """v <- beta_g v + (W - mean), W <- W - v.

        Parameters
        ----------
        fleet
            Where the server is.
        state
            W and v, before.
        mean
            What the clients came back with.
        """
        gap = [(1.0, state.model), (-1.0, mean)]
        if self.beta_g == 0:
            # The average itself, not what W - (W - mean) rounds to.
            return mean, fleet.combine(*gap)
        v = fleet.combine(*gap, *([] if state.v is None else [(self.beta_g, state.v)]))
        return fleet.combine((1.0, state.model), (-1.0, v)), v

    def remeasure(self, fleet: Fleet, w: Ref, cohort: list[ClientId]) -> Ref:
        """The model with static BatchNorm's statistics: nobody's but the server's before the first
        federated round.

        Parameters
        ----------
        fleet
            Whose images.
        w
            The model.
        cohort
            The round's clients.
        """
        everybody = list(fleet.clients) if cohort else []
        who = {"server": [], "active": cohort, "all": everybody}[self.statistics]
        return remeasure_statistics(fleet, w, who, "labelled", self.statistics_batch)

    def model(self, state: Moving, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model
