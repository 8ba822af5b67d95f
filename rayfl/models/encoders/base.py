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

from rayfl.errors import ConfigError, DataError, broken
from rayfl.models.feature_store import Features, chunks
from rayfl.models.network import Shape, measure_features

Pixels = NDArray[np.uint8]

ROWS = 32

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Encoder(Protocol):
    """Turns uint8 images (N, height, width, channels) into float32 features (N, dim), the same ones
    every time."""

    @property
    def dim(self) -> int: ...

    def fingerprint(self) -> str:
        """A hash of everything that the features depend on, but for the images."""
        ...

    def encode(self, x: Pixels) -> Features: ...


class EncoderSpec(Protocol):
    """What an encoder component does: make an encoder for images of one shape."""

    def build(self, shape: Shape) -> Encoder: ...


def build_on(spec: EncoderSpec, shape: Shape, device: torch.device) -> Encoder:
    """An encoder whose network, if it has one, works on this device."""
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
        """Three channels, `side` pixels high and wide."""
        coloured = x.expand(-1, 3, -1, -1) if x.shape[1] == 1 else x
        if self.side is None or x.shape[2:] == (self.side, self.side):
            return coloured
        size = (self.side, self.side)
        return F.interpolate(coloured, size, mode="bilinear", align_corners=False, antialias=True)

    def normalised(self, x: Pixels) -> Tensor:
        mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (self.mean, self.std))
        images = torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))).float() / 255
        return (self.resized(images) - mean) / std


class Frozen(nn.Module):
    """A network that cannot be trained nor leave evaluation mode."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Frozen:
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.network(x)
        return features


class TorchEncoder:
    """A frozen network as an encoder. `module.to(device)` moves it; both ways of encoding
    follow."""

    def __init__(self, kind: str, network: nn.Module, shape: Shape, sight: Sight) -> None:
        _check_statistics(kind, network)
        if shape[2] not in (1, 3):
            raise ConfigError(
                broken(f"encoder '{kind}' takes images with 1 or 3 channels", shape[2])
            )
        seen = (sight.side or shape[0], sight.side or shape[1], 3)
        self.kind, self.shape, self.sight = kind, shape, sight
        self.module = Frozen(network)
        self.dim = measure_features(self.module, seen, kind)

    def encode(self, x: Pixels) -> Features:
        check_pixels(x, self.shape)
        return encode_rows(self._forward, x, self.dim)

    def encode_tensor(self, x: Tensor) -> Tensor:
        """Features of a batch that is normalised already, for methods that show encoder and client
        one tensor."""
        with torch.no_grad():
            features: Tensor = self.module(self.sight.resized(x))
        return features

    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.kind, asdict(self.sight), self.module.state_dict())

    def _forward(self, x: Pixels) -> Features:
        """Features of at most ROWS images, computed in a batch of exactly ROWS."""
        batch = np.zeros((ROWS, *self.shape), np.uint8)
        batch[: len(x)] = x
        device = next(self.module.parameters()).device
        with torch.no_grad():
            rows = self.module(self.sight.normalised(batch).to(device))[: len(x)]
        features: Features = rows.float().cpu().numpy()
        if not np.isfinite(features).all():
            raise DataError(
                broken(
                    "features must be finite", f"nan or inf from '{self.kind}'", "Check its weights"
                )
            )
        return features


def encode_rows(forward: Callable[[Pixels], Features], x: Pixels, dim: int) -> Features:
    """Encode ROWS images at a time."""
    features = np.empty((len(x), dim), np.float32)
    for part in chunks(len(x), ROWS):
        features[part] = forward(x[part])
    return features


def check_pixels(x: Pixels, shape: Shape) -> None:
    if x.dtype != np.uint8 or x.shape[1:] != shape:
        rule = f"this encoder takes uint8 images (N, {', '.join(map(str, shape))})"
        raise DataError(
            broken(rule, f"{x.dtype} {x.shape}", "Build one for the shape of these images")
        )


def _check_statistics(kind: str, network: nn.Module) -> None:
    """Refuse normalisation by the batch: a feature would then depend on the images beside it."""
    norms = (
        part for part in network.modules() if isinstance(part, nn.modules.batchnorm._BatchNorm)
    )
    if any(norm.running_mean is None for norm in norms):
        raise ConfigError(
            broken(
                "an encoder must normalise with running statistics", f"'{kind}', which keeps none"
            )
        )


def fingerprint(
    kind: str, settings: Mapping[str, Any], weights: Mapping[str, Tensor] | None = None
) -> str:
    """sha256 over the kind, its settings and the bytes of every tensor."""
    digest = hashlib.sha256(json.dumps({"kind": kind, **settings}, sort_keys=True).encode())
    for name, tensor in sorted((weights or {}).items()):
        digest.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return digest.hexdigest()
