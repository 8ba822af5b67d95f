"""Local semi-supervision in a host: FedAvg-FixMatch, FedProx-FixMatch, FedAvg-UDA, FedProx-UDA.

The baselines of federated semi-supervised learning with labels at the server, as W. Mao et al.
("Federated semi-supervised learning with contrastive representations against noisy labels", Applied
Soft Computing, section 4.2) combine them: K. Sohn et al., FixMatch, NeurIPS 2020, or Q. Xie et al.,
UDA, NeurIPS 2020, in an averaging method.

    clients   the host's own round, with L_u of their images for a loss          (`local`)
    server    from what the host averaged, its passes over its labels, by cross-entropy

Any averaging method is a host, with its pull, control variates, contrast and weightings: whatever a
host's clients wish to train with `method.loss` is trained with L_u."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import GeneratorType
from typing import Annotated, Any, ClassVar, cast

from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.algorithms.parts.labels_at_server import LabelsAtServer
from rayfl.algorithms.parts.server_training import for_epochs, refuse_idle_server
from rayfl.component import Registry, component, slot
from rayfl.errors import ConfigError, broken
from rayfl.learn.batches import Batch
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.base import CROSS_ENTROPY, SampleLoss
from rayfl.learn.losses.fixmatch import FixMatch
from rayfl.learn.losses.uda import Annealing, anneal_signal, mean_of_unlearnt
from rayfl.learn.losses.unlabelled import UNLABELLED, UnlabelledLoss
from rayfl.protocol import (
    Blueprint,
    Client,
    ClientId,
    Fleet,
    Out,
    Phase,
    Ref,
    Replies,
    Served,
    Shard,
    Vector,
)

HOSTS: Registry[FedAvg] = Registry(
    "host",
    {
        "fedavg": "rayfl.algorithms.fedavg:FedAvg",
        "fedds": "rayfl.algorithms.fedds:FedDS",
        "fedprox": "rayfl.algorithms.fedprox:FedProx",
        "moon": "rayfl.algorithms.moon:Moon",
        "scaffold": "rayfl.algorithms.scaffold:Scaffold",
    },
)
"""What `method.host` can name: methods whose clients read labels by `method.loss` alone."""


@dataclass(frozen=True)
class Hosted:
    """The host's state, whose model the server trains too, and the memory of its optimiser."""

    host: Global
    optimiser: Ref | None = None


def train_annealed(
    server: Client,
    *,
    w: Vector,
    memory: Vector | None,
    data: Shard,
    method: SemiSupervised,
    epochs: int,
    eta: float,
) -> Fitting[Out]:
    """The server's passes over its labels, without images whose label is known better than eta."""

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        logits = net(batch.x)
        return mean_of_unlearnt(method.labels_loss(logits, batch.y), logits, batch.y, eta)

    own = server.on(data)
    wish = Fit(w, loss=loss, client=own, settings=for_epochs(epochs), clip=method.clip)
    trained = yield replace(wish, memory=memory, remember=True)
    update = {"w": trained.weights, "optimiser": trained.memory}
    return Out({"steps": trained.steps}, update=update)


# -- the host's clients ----------------------------------------------------------------------------


class Clipping:
    """A fleet as it is, but that clients clip their gradients, whichever phase a host maps.

    Parameters
    ----------
    fleet
        As it is.
    clip
        Largest norm of a gradient.
    """

    def __init__(self, fleet: Fleet, clip: float) -> None:
        self._fleet = fleet
        self._clip = clip

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    def map(
        self,
        phase: Phase,
        clients: Iterable[ClientId],
        each: Mapping[ClientId, Mapping[str, Any]] | None = None,
        **shared: Any,
    ) -> Replies:
        own = {"clipped": phase, "limit": self._clip}
        return self._fleet.map(train_clipped, clients, each, **own, **shared)


def train_clipped(client: Client, *, clipped: Phase, limit: float, **inputs: Any) -> Fitting[Out]:
    """A host's phase, whose wishes get a limit for their gradients."""
    running = clipped(client, **inputs)
    if not isinstance(running, GeneratorType):
        return cast(Out, running)
    trained = None
    while True:
        try:
            wish = running.send(trained)
        except StopIteration as over:
            return cast(Out, over.value)
        # What a host clips more itself stays so.
        trained = yield replace(wish, clip=min(limit, wish.clip or limit))


# -- the method ------------------------------------------------------------------------------------


@component
class SemiSupervised(LabelsAtServer):
    """An averaging method whose clients learn from images alone, and whose server learns from
    labels after every average."""

    citation: ClassVar[str] = "Sohn et al., NeurIPS 2020; Xie et al., NeurIPS 2020"
    deviations: ClassVar[tuple[str, ...]] = (
        "Labelled and unlabelled images lie at different places: they never share a batch, and "
        "lambda_u is 1.",
        "The public code of these baselines (fedcon-pytorch) detaches the strong branch, so that "
        "no client learns anything, and swaps the roles of the views; here clients learn.",
        "A batch without a sure guess is skipped: momentum and decay do not move weights for it.",
        "A client that was never sure returns what it got (BatchNorm statistics apart), and "
        "counts in the average.",
        "Clients train before the server, as in FedCR and SemiFL; server_first: true is FedMatch's "
        "and FedCon's order, in which the average is what is tested.",
        "Training-signal annealing follows rounds, not steps.",
    )
    host: Annotated[FedAvg, slot(HOSTS)] = FedAvg()
    """The averaging method, with its own settings: `fedavg`, `{name: fedprox, mu: 0.01}`, ..."""
    local: Annotated[UnlabelledLoss, slot(UNLABELLED)] = FixMatch()
    """The clients' loss: `fixmatch`, `uda`, or any other of images without labels."""
    server_first: bool = False
    """The server's passes before the clients', so that the clients' average ends a round."""
    annealing: Annealing = "none"
    """UDA's training-signal annealing at the server. Code: none."""

    def __post_init__(self) -> None:
        if self.host.loss != CROSS_ENTROPY:
            rule = "the loss of clients without labels is method.local, not the host's"
            got = f"host.loss {type(self.host.loss).__name__}"
            raise ValueError(broken(rule, got, "Set method.local, or method.labels_loss."))

    @property
    def _inner(self) -> FedAvg:
        """The host in work: its loss slot holds a loss of batches, which a `Fit` takes as well."""
        return replace(self.host, loss=cast(SampleLoss, self.local))

    def check(self, fleet: Fleet) -> None:
        host = self.host
        if host.labels != "given" or host.personal:
            rule = "a host of semi_supervised averages clients that show no labels"
            remedy = "Choose one of: " + ", ".join(HOSTS.names()) + "."
            raise ConfigError(broken(rule, type(host).__name__, remedy))
        super().check(fleet)
        self._inner.check(fleet)

    def network(self, blueprint: Blueprint) -> nn.Module:
        return self.host.network(blueprint)

    def init(self, fleet: Fleet, model: Ref) -> Hosted:
        return Hosted(self._inner.init(fleet, model))

    def round(self, state: Hosted, fleet: Fleet, t: int) -> Hosted:
        alone = self.count_pretraining(fleet, t)
        if not alone and not self.server_first:
            state = replace(state, host=self.play_host(state.host, fleet, t))
        got = self.tune(state, fleet, t, alone)
        host: Any = replace(state.host, model=got["w"])
        if not alone and self.server_first:
            host = self.play_host(host, fleet, t)
        return Hosted(host, got["optimiser"])

    def play_host(self, state: Global, fleet: Fleet, t: int) -> Global:
        """The host's own round, whose clients clip as the server does."""
        seen = fleet if self.clip is None else cast(Fleet, Clipping(fleet, self.clip))
        return self._inner.round(state, seen, t)

    def tune(self, state: Hosted, fleet: Fleet, t: int, alone: int) -> Served:
        """The server's passes over its labels."""
        w = state.host.model
        memory = state.optimiser
        if self.annealing == "none":
            return self.train_server(fleet, w, memory, alone)
        eta = anneal_signal(t / fleet.training.rounds, fleet.classes, self.annealing)
        got = fleet.serve(
            train_annealed,
            w=w,
            memory=memory,
            data=fleet.data("labelled"),
            method=self,
            epochs=alone or self.server_epochs,
            eta=eta,
        )
        refuse_idle_server(got.report)
        return got

    def model(self, state: Hosted, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.host.model
