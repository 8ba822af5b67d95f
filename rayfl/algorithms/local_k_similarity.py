"""Federated averaging under the local K-similarity constraint.

"Local K-similarity constraint for federated learning with label noise", arXiv 2511.06169, Algorithm
1, eq. 2-4.

A frozen encoder f that never saw a label is given to every client once. In each mini-batch it names
the K images that look most like image j, and the client's features z = g(x) are drawn towards those
of these neighbours:

    L = mean over j of  CE(y_j, h(z_j)) + lambda * L_CL,j L_CL,j = -log( sum over the neighbours k
    of exp(cos(z_j, z_k) / T) / sum over the batch of exp(cos(z_j, z_l) / T) )

Wrong labels pull on the classifier alone; whatever they would do to the features, the neighbours
resist. Nobody is detected, clean clients are constrained as well, and the protocol is federated
averaging's: the encoder is not sent.

The paper's control, a random encoder, is `encoder: {name: random, seed: ...}`. Its other one,
starting from the encoder's own weights, is the network's setting `weights`, with or without this
method."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, cast

from torch import Tensor, nn

from rayfl.algorithms.fedavg import FedAvg, Global
from rayfl.component import Count, NonNegative, Positive, component, slot
from rayfl.errors import ConfigError, broken
from rayfl.learn.batches import Batch
from rayfl.learn.local_fit import Fit, Fitting
from rayfl.learn.losses.k_similarity import k_similarity
from rayfl.models import ENCODERS
from rayfl.models.encoders.base import EncoderSpec, TorchEncoder, build_encoder
from rayfl.models.encoders.hog import HoG
from rayfl.models.network import Network, Shape
from rayfl.protocol import SERVER, Client, Fleet, Out, Vector

Encode = Callable[[Batch], Tensor]
"""The frozen encoder's features of a batch."""


@component
class LocalKSimilarity(FedAvg):
    """Clients keep features of images near those that a frozen encoder finds similar, whatever
    their labels."""

    citation: ClassVar[str] = "Local K-similarity constraint, arXiv 2511.06169"
    deviations: ClassVar[tuple[str, ...]] = (
        "By default the encoder sees clean images, once, and its features are kept on disk; in "
        "the paper it sees the augmented tensor that the network trains on, in every step. `view: "
        "batch` does that, at the price of one more forward pass a step. Without augmentation, "
        "and with the encoder's normalisation, both rank alike.",
        "Under `view: batch` the encoder is given the run's normalisation and not its own, as one "
        "tensor feeds both; under `view: cached` it has the one that it was trained with.",
        "Client features are normalised before their inner product; eq. 2 does not say so, but "
        "without it a temperature of 0.3 overflows on features of ordinary length.",
        "The denominator holds the image itself, as eq. 2 is printed; the text counts only m - K "
        "- 1 negatives. `self_in_denominator: false` leaves it out.",
        "Gradients flow through an image's features and through its neighbours': no stop-gradient "
        "is mentioned.",
        "A short last batch of m <= K images takes the m - 1 neighbours that there are; one image "
        "has none.",
        "Choices of the configurations that the paper does not state: training images are padded "
        "by 4, cropped and flipped; CIFAR-10 and PathMNIST are normalised by ImageNet's moments, "
        "CIFAR-100 by its own; PathMNIST's ResNet-18 has the 3x3 stem of small images and MURA's "
        "the 7x7 stem of ImageNet; each label of a noisy client is wrong with its probability "
        "(`count: bernoulli`, as FedCorr draws them), where the text says mu_n %.",
        "A random encoder has a seed of its own, which no run seed replaces: repetitions that are "
        "to use different encoders set `method.encoder.seed` beside `seed`.",
    )

    encoder: Annotated[EncoderSpec, slot(ENCODERS)] = HoG(cell=4)
    """The frozen encoder. Paper: `simclr` (ResNet-50, ImageNet), in one study `dino_vits16`."""
    k: Count = 4
    """Neighbours of an image, fewer than a batch holds. Paper: 4."""
    temperature: Positive = 0.3
    """Paper: 0.3."""
    strength: NonNegative = 3.0
    """lambda, the weight of the constraint. Paper: 3; 0 is federated averaging."""
    self_in_denominator: bool = True
    """Whether an image counts in its own denominator. Eq. 2 as printed: true."""
    view: Literal["cached", "batch"] = "cached"
    """What the encoder sees: the clean image, once (`cached`), or the augmented batch (`batch`, the
    paper's)."""

    def encoders(self) -> dict[str, EncoderSpec]:
        return {"reference": self.encoder} if self.view == "cached" else {}

    def check(self, fleet: Fleet) -> None:
        super().check(fleet)
        fleet.map(refuse_misfits, [SERVER], method=self)

    def round(self, state: Global, fleet: Fleet, t: int) -> Global:
        got = fleet.map(train_with_neighbours, fleet.sample(t), w=state.model, method=self)
        return replace(state, model=self.aggregate(got, fleet))


def train_with_neighbours(client: Client, *, w: Vector, method: LocalKSimilarity) -> Fitting[Out]:
    """Local SGD on the client's own labels and the encoder's neighbourhoods; one forward pass gives
    z and logits."""
    if method.view == "cached":
        encode = read_features(client)
    else:
        encode = encode_batches(client, method.encoder)

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        network = cast(Network, net)
        z = network.features(batch.x)
        own = method.self_in_denominator
        constraint = k_similarity(z, encode(batch), method.k, method.temperature, own)
        return method.loss.mean(network.head(z), batch.y) + method.strength * constraint.mean()

    trained = yield Fit(w, loss=loss)
    return Out(update=trained.weights)


def read_features(client: Client) -> Encode:
    """The features that were computed before the first round."""
    features = client.features["reference"]
    return lambda batch: batch.take(features)


def encode_batches(client: Client, encoder: EncoderSpec) -> Encode:
    """The features of the very tensor that the network is trained on."""
    frozen = keep_encoder(client, encoder)
    return lambda batch: frozen.encode_tensor(batch.x)


def keep_encoder(client: Client, encoder: EncoderSpec) -> TorchEncoder:
    """The place's own copy of the encoder, on its device; made on first use."""

    def make() -> TorchEncoder:
        shape = cast(Shape, client.x.shape[1:])
        built = build_encoder(encoder, shape, client.learner.device)
        if not isinstance(built, TorchEncoder):
            rule = "view: batch needs an encoder that is a network: it encodes tensors on a device"
            remedy = "Choose another encoder, or view: cached."
            raise ConfigError(broken(rule, type(encoder).__name__, remedy))
        client.learner.count_passes(built.module)
        return built

    return client.learner.keep(f"{encoder!r} for batches", make)


def refuse_misfits(client: Client, *, method: LocalKSimilarity) -> Out:
    """Raise what would go wrong in the first step: more neighbours than a batch has, an encoder
    that does not fit."""
    size = client.learner.training.batch_size
    # without the image itself, all others as neighbours would fill the fraction: a loss of 0
    most = size - 1 if method.self_in_denominator else size - 2
    if method.k > most:
        rule = f"method.k is at most {most} in batches of {size}"
        raise ConfigError(broken(rule, method.k, "Lower method.k, or raise training.batch_size."))
    if method.view == "batch":
        keep_encoder(client, method.encoder)
    return Out()
