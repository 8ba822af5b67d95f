"""What every frozen encoder is, and the one that wraps a torch module.

A row's bits depend on its pixels alone: networks always see batches of `ROWS` images, the last one
filled up with black ones, in evaluation mode and without gradients. Equal bits are promised for
equal numbers of torch threads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from rayfl.arrays import Features
from rayfl.errors import ConfigError, DataError, broken
from rayfl.models.feature_store import slice_rows
from rayfl.models.network import Shape, measure_features

RawImages = NDArray[np.uint8]

ROWS = 32

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Encoder(Protocol):
    """Turns uint8 images (N, height, width, channels) into float32 features (N, dim), the same ones
    every time."""

    @property
    def dim(self) -> int:
        """The length of an image's features."""
        ...

    def fingerprint(self) -> str:
        """A hash of everything that the features depend on, but for the images."""
        ...

    def encode(self, x: RawImages) -> Features:
        """The features of the images `x`, one row each."""
        ...


class EncoderSpec(Protocol):
    """What an encoder component does."""

    def build(self, shape: Shape) -> Encoder:
        """Make an encoder for images of this `shape`, (height, width, channels)."""
        ...


def build_encoder(
    spec: EncoderSpec,
    shape: Shape,
    device: torch.device,
) -> Encoder:
    """An encoder whose network, if it has one, works on a device.

    Parameters
    ----------
    spec
        The component that builds it.
    shape
        (height, width, channels) of the images.
    device
        Where the network goes.
    """
    encoder = spec.build(shape)
    if isinstance(encoder, TorchEncoder):
        encoder.module.to(device)
    return encoder


@dataclass(frozen=True)
class Sight:
    """How a network sees pixels: resized to `side` (None: as they are), scaled to [0, 1],
    normalised."""

    side: int | None = None
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD

    def resized(self, x: Tensor) -> Tensor:
        """The images `x` in three channels, `side` pixels high and wide."""
        # Networks for photographs know no grey: all three channels show it.
        coloured = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
        if self.side is None:
            return coloured
        size = (self.side, self.side)
        if x.shape[2:] == size:
            return coloured
        return F.interpolate(coloured, size, mode="bilinear", align_corners=False, antialias=True)

    def normalised(self, x: RawImages) -> Tensor:
        """The images `x` as a network takes them."""
        mean = torch.tensor(self.mean).view(1, -1, 1, 1)
        std = torch.tensor(self.std).view(1, -1, 1, 1)
        planes = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
        images = torch.from_numpy(planes).float() / 255
        return (self.resized(images) - mean) / std


class UntrainableNetwork(nn.Module):
    """A network that cannot be trained nor leave evaluation mode."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> UntrainableNetwork:
        """Stay in evaluation, whatever the `mode`."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """What the network makes of `x`."""
        features: Tensor = self.network(x)
        return features


class TorchEncoder:
    """A frozen network as an encoder. `module.to(device)` moves it; both ways of encoding follow.

    Parameters
    ----------
    kind
        The encoder's name, in refusals and in the fingerprint.
    network
        Makes a vector of each image.
    shape
        (height, width, channels) of the images.
    sight
        How the network sees them.
    """

    def __init__(
        self,
        kind: str,
        network: nn.Module,
        shape: Shape,
        sight: Sight,
    ) -> None:
        refuse_batch_statistics(kind, network)
        height, width, channels = shape
        if channels not in (1, 3):
            rule = f"encoder '{kind}' takes images with 1 or 3 channels"
            raise ConfigError(broken(rule, channels))
        self.kind = kind
        self.shape = shape
        self.sight = sight
        self.module = UntrainableNetwork(network)
        seen = (sight.side or height, sight.side or width, 3)
        self.dim = measure_features(self.module, seen, kind)

    def encode(self, x: RawImages) -> Features:
        """The features of the images `x`, one row each."""
        check_pixels(x, self.shape)
        return encode_rows(self._forward, x, self.dim)

    def encode_tensor(self, x: Tensor) -> Tensor:
        """Features of a batch `x` that is normalised already, for methods that show encoder and
        client one tensor."""
        with torch.no_grad():
            features: Tensor = self.module(self.sight.resized(x))
        return features

    def fingerprint(self) -> str:
        """A hash of everything that the features depend on, but for the images."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        settings = asdict(self.sight)
        return hash_encoder(self.kind, settings, self.module.state_dict())

    def _forward(self, x: RawImages) -> Features:
        """Features of at most ROWS images, computed in a batch of exactly ROWS."""
        batch = np.zeros((ROWS, *self.shape), np.uint8)
        batch[: len(x)] = x
        images = self.sight.normalised(batch)
        device = next(self.module.parameters()).device
        with torch.no_grad():
            rows = self.module(images.to(device))[: len(x)]
        features: Features = rows.float().cpu().numpy()
        if not np.isfinite(features).all():
            found = f"nan or inf from '{self.kind}'"
            raise DataError(broken("features must be finite", found, "Check its weights"))
        return features


def encode_rows(
    forward: Callable[[RawImages], Features],
    x: RawImages,
    dim: int,
) -> Features:
    """Encode ROWS images at a time.

    Parameters
    ----------
    forward
        Encodes at most ROWS images.
    x
        Any number of images.
    dim
        The length of an image's features.
    """
    features = np.empty((len(x), dim), np.float32)
    for part in slice_rows(len(x), ROWS):
        features[part] = forward(x[part])
    return features


def check_pixels(x: RawImages, shape: Shape) -> None:
    """Refuse images `x` of another type or of another `shape` than the encoder was built for."""
    if x.dtype != np.uint8 or x.shape[1:] != shape:
        sides = ", ".join(map(str, shape))
        rule = f"this encoder takes uint8 images (N, {sides})"
        remedy = "Build one for the shape of these images"
        raise DataError(broken(rule, f"{x.dtype} {x.shape}", remedy))


def refuse_batch_statistics(kind: str, network: nn.Module) -> None:
    """Refuse normalisation by the batch: a feature would then depend on the images beside it."""
    for part in network.modules():
        by_batch = isinstance(part, nn.modules.batchnorm._BatchNorm)
        if by_batch and part.running_mean is None:
            rule = "an encoder must normalise with running statistics"
            raise ConfigError(broken(rule, f"'{kind}', which keeps none"))


def hash_encoder(
    kind: str,
    settings: Mapping[str, Any],
    weights: Mapping[str, Tensor] | None = None,
) -> str:
    """sha256 over what the features depend on.

    Parameters
    ----------
    kind
        The encoder's name.
    settings
        Numbers and texts by name.
    weights
        Tensors by name, of which every byte counts.
    """
    facts = json.dumps({"kind": kind, **settings}, sort_keys=True)
    digest = hashlib.sha256(facts.encode())
    for name, tensor in sorted((weights or {}).items()):
        shape = tuple(tensor.shape)
        digest.update(f"{name}{tensor.dtype}{shape}".encode())
        array = np.ascontiguousarray(tensor.cpu().numpy())
        digest.update(array.tobytes())
    return digest.hexdigest()
