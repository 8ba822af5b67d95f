"""SemiFL: labels at the server, guesses at the clients, in turn.

E. Diao, J. Ding and V. Tarokh: "SemiFL: semi-supervised federated learning for unlabeled clients
with alternate training", NeurIPS 2022.

    clients   y = argmax p, kept where max p >= tau, once a round, on weak views of their images
              D_fix: the kept ones; D_mix: as many draws from all of them
              L = CE(y_fix, f(strong(x_fix)))
                  + lam CE(y_fix, f(x_mix)) + (1 - lam) CE(y_mix, f(x_mix))
              x_mix = lam weak(x_fix) + (1 - lam) weak(x_mix), lam ~ Beta(a, a)
    server    v <- beta_g v + (W - mean);  W <- W - v;  then its own epochs on its labels
    both      BatchNorm statistics are measured anew after each round (static BatchNorm)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from torch import Tensor, nn
from torch.nn import functional

from rayfl.methods import (
    AUGMENTATIONS,
    Algorithm,
    Augmentation,
    Batch,
    Client,
    ClientId,
    Count,
    Fit,
    Fitting,
    Fleet,
    Fraction,
    NonNegative,
    Out,
    Ref,
    SampleStream,
    Shard,
    Strong,
    Vector,
    Weak,
    blend_losses,
    component,
    draw_share,
    for_epochs,
    judge,
    mix_inputs,
    refuse_idle_server,
    remeasure_statistics,
    slot,
)


def train_on_guesses(client: Client, *, w: Vector, method: SemiFL) -> Fitting[Out]:
    """A client's epochs on what the global model is sure of."""
    judged = judge(client, w, method.weak)
    kept = judged.confidence >= method.threshold
    if not kept.any():
        return Out({"kept": 0})
    guessed = client.on(client.x, judged.predicted)
    # The code draws what is mixed in from all images, sure or not.
    others = SampleStream(guessed, augment=method.weak)

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        other = others.draw(len(batch))
        assert other is not None
        share = draw_share(method.beta, batch.generator)
        strong = functional.cross_entropy(net(batch.view(method.strong)), batch.y)
        mixed = net(mix_inputs(batch.x, other.x, share))
        return strong + blend_losses(functional.cross_entropy, mixed, batch.y, other.y, share)

    trained = yield Fit(
        w,
        loss=loss,
        client=guessed,
        keep=kept,
        clip=method.clip,
        settings={"augment": method.weak},
        memory=client.state.get("optimiser"),
        remember=True,
    )
    state = {"optimiser": trained.memory}
    return Out({"kept": int(kept.sum())}, update=trained.weights, state=state)


def train_on_labels(
    server: Client, *, w: Vector, memory: Vector | None, data: Shard, method: SemiFL
) -> Fitting[Out]:
    """The server's epochs on weak views of its labelled images."""
    trained = yield Fit(
        w,
        client=server.on(data),
        clip=method.clip,
        settings={**for_epochs(method.server_epochs), "augment": method.weak},
        memory=memory,
        remember=True,
    )
    update = {"w": trained.weights, "optimiser": trained.memory}
    return Out({"steps": trained.steps}, update=update)


@dataclass(frozen=True)
class Moving:
    """W, its momentum v, and the memory of the server's optimiser."""

    model: Ref
    v: Ref | None = None
    optimiser: Ref | None = None


@component
class SemiFL(Algorithm):
    """Clients train on the labels that the global model guesses, the server on its own, in turn."""

    citation: ClassVar[str] = "Diao et al., NeurIPS 2022"
    needs: ClassVar = {"labelled": "labels"}
    client_labels: ClassVar[bool] = False
    threshold: NonNegative = 0.95
    """tau. Paper: 0.95; above 1 only the server trains."""
    beta: NonNegative = 0.75
    """a of the share's distribution. Paper: 0.75."""
    beta_g: Fraction = 0.5
    """The server's momentum. Code: 0.5; 0 is the average itself."""
    server_epochs: Count = 5
    clip: NonNegative = 1.0
    """Largest norm of a gradient. Code: 1."""
    statistics: Literal["server", "active", "all"] = "active"
    """Whose images BatchNorm's statistics are measured on, beside the server's."""
    weak: Annotated[Augmentation, slot(AUGMENTATIONS)] = Weak()
    strong: Annotated[Augmentation, slot(AUGMENTATIONS)] = Strong(n=2, m=10)

    def init(self, fleet: Fleet, model: Ref) -> Moving:
        return Moving(remeasure_statistics(fleet, model, [], "labelled"))

    def round(self, state: Moving, fleet: Fleet, t: int) -> Moving:
        cohort = fleet.sample(t)
        got = fleet.map(train_on_guesses, cohort, w=state.model, method=self)
        valid = {client: 1.0 for client, report in got.items() if report["kept"]}
        fleet.log(**{"pseudo/valid": len(valid)})
        w = state.model
        v = state.v
        if valid:
            terms = [(1.0, w), (-1.0, got.mean(valid))]
            v = fleet.combine(*terms, *([(self.beta_g, v)] if v is not None else []))
            w = fleet.combine((1.0, w), (-1.0, v))
        labelled = fleet.data("labelled")
        memory = state.optimiser
        tuned = fleet.serve(train_on_labels, w=w, memory=memory, data=labelled, method=self)
        refuse_idle_server(tuned.report)
        who = {"server": [], "active": cohort, "all": fleet.clients}[self.statistics]
        model = remeasure_statistics(fleet, tuned["w"], who, "labelled")
        return Moving(model, v, tuned["optimiser"])

    def model(self, state: Moving, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model
