"""FedAnchor: clients' labels are guessed by how near an image is to the server's labelled ones.

After X. Qiu, Y. Gao, L. Sani, H. Pan, W. Zhao, P. P. B. Gusmao, M. Alibeigi, A. Iacob and N. D.
Lane: "FedAnchor: enhancing federated semi-supervised learning with label contrastive loss for
unlabeled clients", arXiv 2402.10191, of which an abstract and reviews alone were at hand: the
equations are ours, in its sense. Trunk B, classifier C, anchor head h; z = h(B(x)) / ||h(B(x))||.

    server   L_s = CE(y, C(B(x))) + mu_c L_lc(z, y),  L_lc the label contrastive loss
             a_c = mean of z over its images of class c, which clients get
    client   once a round: s_c = z . a_c,  q = softmax(s / T),  y = argmax q, sure if max q >= tau
             then SemiFL's L_fix + L_mix; B and C come back, averaged by size, h does not

z . a_c is the mean cosine with the images of class c: a_c is not scaled to length 1."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import numpy as np
from torch import Tensor, nn

from rayfl.algorithms.parts.fix_and_mix import fix_and_mix
from rayfl.algorithms.parts.labels_at_server import LabelsAtServer
from rayfl.algorithms.parts.server_training import for_epochs, refuse_idle_server
from rayfl.algorithms.parts.shared_part import find_places, put_part
from rayfl.arrays import Floats, Ints, Labels
from rayfl.component import Count, NonNegative, Positive, component, slot
from rayfl.errors import ConfigError, broken
from rayfl.estimate.probabilities import softmax
from rayfl.learn.augment import AUGMENTATIONS, Augmentation
from rayfl.learn.augment.strong import Strong
from rayfl.learn.batches import Batch
from rayfl.learn.fit import compute_outputs
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.cosine import scale_to_unit
from rayfl.learn.losses.label_contrast import label_contrast
from rayfl.models.network import Network
from rayfl.protocol import Blueprint, Client, ClientId, Fleet, Out, Ref, Served, Shard, Vector


class Anchored(Network):
    """B and C, as any network, and h beside C."""

    def __init__(self, network: Network, latent: int) -> None:
        width = network.feature_dim
        super().__init__(network.trunk, network.head, width)
        self.anchor = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(inplace=True), nn.Linear(width, latent)
        )

    def answer_both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and z of the same features."""
        features = self.features(x)
        return self.head(features), scale_to_unit(self.anchor(features))


def read_latents(net: nn.Module, x: Tensor) -> Tensor:
    """z of every image."""
    return cast(Anchored, net).answer_both(x)[1]


# -- phases ----------------------------------------------------------------------------------------


def train_at_server(
    server: Client,
    *,
    w: Vector,
    memory: Vector | None,
    data: Shard,
    method: FedAnchor,
    epochs: int,
) -> Fitting[Out]:
    """The server's passes over its labels, with both heads."""

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        logits, z = cast(Anchored, net).answer_both(batch.x)
        supervised = method.labels_loss.mean(logits, batch.y)
        contrast = label_contrast(z, batch.y, method.temperature)
        batch.note(supervised=supervised, contrast=contrast)
        return supervised + method.strength * contrast

    trained = yield Fit(
        w,
        loss=loss,
        client=server.on(data),
        settings=for_epochs(epochs),
        clip=method.clip,
        memory=memory,
        remember=True,
    )
    report = {"steps": trained.steps, **{f"_{k}": v for k, v in trained.means.items()}}
    return Out(report, update={"w": trained.weights, "optimiser": trained.memory})


def average_latents(server: Client, *, w: Vector, data: Shard) -> Out:
    """a_c of every class, one behind the other."""
    labelled = server.on(data)
    z = compute_outputs(server.learner, w, labelled.x, read_latents)
    anchors = [z[labelled.y == c].mean(0) for c in range(server.classes)]
    return Out(update={"anchors": np.concatenate(anchors)})


def guess_by_anchors(z: Vector, anchors: Vector, temperature: float) -> tuple[Labels, Floats]:
    """y and max q of every image.

    Parameters
    ----------
    z
        Latents, (N, d).
    anchors
        a, (C, d).
    temperature
        T.
    """
    q = softmax(z.astype(np.float64) @ anchors.T, temperature)
    return q.argmax(1).astype(np.int64), q.max(1)


def train_on_guesses(
    client: Client, *, w: Vector, anchors: Vector, method: FedAnchor
) -> Fitting[Out]:
    """A client's epochs on the images that lie near one class; h stays where it is, and away."""
    learner = client.learner
    z = compute_outputs(learner, w, client.x, read_latents)
    by_class = anchors.reshape(client.classes, -1)
    predicted, confidence = guess_by_anchors(z, by_class, method.temperature)
    sure = confidence >= method.threshold
    if not sure.any():
        return Out({"sure": 0})
    guessed = client.on(client.x, predicted)
    loss = fix_and_mix(guessed, sure, sure, method.beta, method.strong)
    trained = yield Fit(w, loss=loss, client=guessed, keep=sure, clip=method.clip)
    return Out({"sure": int(sure.sum())}, update=trained.weights[_find_shared(client)])


def put_network(server: Client, *, w: Vector, mean: Vector) -> Out:
    """The server's model with the clients' B and C."""
    return Out(update=put_part(w, _find_shared(server), mean))


def _find_shared(client: Client) -> Ints:
    """Where B and C lie: everything but h."""
    whole = client.learner.shape_of()
    own = find_places(whole, cast(Anchored, whole.net).anchor)
    shared = np.ones(len(whole.flat), dtype=bool)
    # numpy's set operations hash every position: a second a visit at a million weights.
    shared[own] = False
    return np.flatnonzero(shared)


# -- the method ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Anchors:
    """The model with both heads, and the memory of the server's optimiser."""

    model: Ref
    optimiser: Ref | None = None


@component
class FedAnchor(LabelsAtServer):
    """Guesses by the mean latents of the server's classes, SemiFL's loss at clients."""

    citation: ClassVar[str] = "Qiu et al., 2024"
    metrics: ClassVar[Mapping[str, str]] = {
        **LabelsAtServer.metrics,
        "pseudo/valid": "clients that were sure of an image, and count",
        "pseudo/sure": "share of the participants' images that have a guess",
        "loss/supervised": "mean of the server's loss on its labels",
        "loss/contrast": "mean of the server's contrast of labels",
    }
    deviations: ClassVar[tuple[str, ...]] = (
        "No code and no full text were at hand: read a result as FedAnchor's manner.",
        "Clients get one mean latent a class, not the latents of all labelled images: the mean "
        "cosine is the same, a hundredth travels, and no image's latent leaves the server.",
        "Guesses come from images as they are, in evaluation mode, once a round.",
        "What is mixed in comes from the sure images, as in our SemiFL.",
        "A client that is sure of no image is left out of the average.",
    )
    threshold: NonNegative = 0.95
    """tau. Ours: 0.95; above 1 only the server trains."""
    temperature: Positive = 0.1
    """T, of guesses and of the contrastive loss. Ours: 0.1."""
    strength: NonNegative = 1.0
    """mu_c, the weight of the contrastive loss. Ours: 1; neutral: 0."""
    latent: Count = 128
    """Width of z. Ours: 128."""
    beta: NonNegative = 0.75
    """a, of the distribution of shares. SemiFL: 0.75."""
    strong: Annotated[Augmentation, slot(AUGMENTATIONS)] = Strong()
    """The strong view; the weak one is `training.augment`'s."""

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        batch = fleet.training.batch_size
        size = fleet.size("labelled")
        if batch > size:
            rule = f"a batch of FedAnchor's pairs ({batch}) is no larger than the labelled set"
            remedy = "Enlarge split.labelled, or reduce training.batch_size."
            raise ConfigError(broken(rule, f"{size} images", remedy))

    def network(self, blueprint: Blueprint) -> nn.Module:
        return Anchored(cast(Network, blueprint()), self.latent)

    def init(self, fleet: Fleet, model: Ref) -> Anchors:
        return Anchors(model)

    def round(self, state: Anchors, fleet: Fleet, t: int) -> Anchors:
        alone = self.count_pretraining(fleet, t)
        w = state.model if alone else self.train_clients(state.model, fleet, t)
        got = self.train_both_heads(fleet, w, state.optimiser, alone or self.server_epochs)
        return Anchors(got["w"], got["optimiser"])

    def train_clients(self, w: Ref, fleet: Fleet, t: int) -> Ref:
        """The model after the clients: those that were sure of something count by size."""
        anchors = fleet.serve(average_latents, w=w, data=fleet.data("labelled"))["anchors"]
        cohort = fleet.sample(t)
        got = fleet.map(train_on_guesses, cohort, w=w, anchors=anchors, method=self)
        valid = {c: float(fleet.size(c)) for c, report in got.items() if report["sure"]}
        sure = sum(report["sure"] for report in got.values())
        share = sure / sum(fleet.size(client) for client in got)
        fleet.log(**{"pseudo/valid": float(len(valid)), "pseudo/sure": share})
        if not valid:
            return w
        return fleet.serve(put_network, w=w, mean=got.mean(valid))["w"]

    def train_both_heads(self, fleet: Fleet, w: Ref, memory: Ref | None, epochs: int) -> Served:
        """The server's passes."""
        got = fleet.serve(
            train_at_server,
            w=w,
            memory=memory,
            data=fleet.data("labelled"),
            method=self,
            epochs=epochs,
        )
        refuse_idle_server(got.report)
        losses = {name: got.report[f"_{name}"] for name in ("supervised", "contrast")}
        fleet.log(**{f"loss/{name}": value for name, value in losses.items()})
        return got

    def model(self, state: Anchors, fleet: Fleet, client: ClientId | None = None) -> Ref:
        return state.model
