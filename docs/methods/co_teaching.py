"""Co-teaching in federated averaging: two networks, each of which learns what the other finds easy.

B. Han et al.: "Co-teaching: robust training of deep neural networks with extremely noisy labels",
NeurIPS 2018, in the federated form of FedRN's comparison.

    R_t  = tau min(t / (T_k - 1), 1)                         the share of a batch that is left out
    I_a  = the (1 - R_t) b samples of smallest loss under network a;  I_b under b
    loss = mean over I_b of CE(a(x), y)  +  mean over I_a of CE(b(x), y)

Both networks are one module, so one vector travels, is averaged and is optimised.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, cast

from torch import Tensor, nn
from torch.nn import functional

from rayfl.methods import (
    Batch,
    BatchLoss,
    Blueprint,
    Client,
    Count,
    FedAvg,
    Fit,
    Fitting,
    Fleet,
    Fraction,
    Global,
    Out,
    Pair,
    Vector,
    component,
    forget_rate,
    select_small_losses,
)


def exchange_easy(forget: float) -> BatchLoss:
    """The loss of a batch: each network learns from the other's choice."""

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        pair = cast(Pair, net)
        loss_a = functional.cross_entropy(pair.a(batch.x), batch.y, reduction="none")
        loss_b = functional.cross_entropy(pair.b(batch.x), batch.y, reduction="none")
        easy_a = select_small_losses(loss_a, 1 - forget)
        easy_b = select_small_losses(loss_b, 1 - forget)
        return loss_a[easy_b].mean() + loss_b[easy_a].mean()

    return loss


def train_pair(client: Client, *, w: Vector, forget: float) -> Fitting[Out]:
    """Local SGD of both networks."""
    trained = yield Fit(w, loss=exchange_easy(forget))
    return Out(update=trained.weights)


@component
class CoTeaching(FedAvg):
    """Two networks teach each other on samples of small loss; the first one is tested."""

    citation: ClassVar[str] = "Han et al., NeurIPS 2018"
    tau: Fraction = 0.4
    """The share that is left out in the end: the noise rate; 0 trains two networks apart."""
    warmup: Count = 10
    """T_k, the rounds until then."""

    def network(self, blueprint: Blueprint) -> nn.Module:
        # First weights that differ: two equal networks would choose the same for ever.
        return Pair(blueprint(0), blueprint(1))

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        forget = forget_rate(t, self.tau, self.warmup)
        got = fleet.map(train_pair, fleet.sample(t), w=state.model, forget=forget)
        return replace(state, model=self.aggregate(got, fleet))
