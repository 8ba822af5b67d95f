"""The network of a finished run as an audit's encoder: what lies before its last layer.

It was trained on the labels that it is to judge, and agrees with those of the wrong ones that it
has learned by heart. Heads on its features never see the sample that they judge, but the features
did; so an encoder that knows no labels of these data is the better one, where there is any."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from rayfl.arrays import Features
from rayfl.audit.subject import Subject
from rayfl.component import component
from rayfl.config.schema import validate_config
from rayfl.errors import ConfigError, DataError, broken
from rayfl.models.encoders.base import (
    ROWS,
    RawImages,
    check_pixels,
    encode_rows,
    hash_encoder,
    refuse_batch_statistics,
)
from rayfl.models.network import Network, Shape
from rayfl.run.assembly import NetworkRecipe, filled_network, normalisation_of
from rayfl.run.loading import read_model
from rayfl.run.store import read_record

OWN = "own"
"""What `--encoder` calls the network of the run that is audited."""
LEARNED = (
    "The features are those of the run's own network, which has learned from these labels: it "
    "agrees with wrong ones that it knows by heart, so that shares come out low."
)
PATH = "rayfl.audit.own_network:OwnNetwork"


@component
class OwnNetwork:
    """The network that a run has left.

    run        the run's directory, which every place must be able to read
    mean, std  what the run took from its pixels in [0, 1], and divided them by
    """

    run: str
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def build(self, shape: Shape) -> OwnEncoder:
        """The network with the weights of the run's end, for images of a shape."""
        record = read_record(Path(self.run))
        if record is None:
            rule = "an audit's own encoder is the network of a run that is over"
            raise ConfigError(broken(rule, f"{self.run}, which is not"))
        config = validate_config(record.config, str(record.directory / "config.yaml"))
        recipe = NetworkRecipe(config, shape, len(record.facts["classes"]))
        network = filled_network(recipe, read_model(record))
        if not isinstance(network, Network):
            rule = "an audit's own encoder is a network of one trunk and one head"
            found = f"{type(network).__name__} of {config.name_of('method')}"
            raise ConfigError(broken(rule, found, "Leave out --encoder own."))
        refuse_batch_statistics(f"network of the run {record.directory.name}", network)
        return OwnEncoder(network.eval(), shape, self.mean, self.std)


@dataclass(frozen=True)
class OwnEncoder:
    """The trunk of a network, for images of one shape."""

    network: Network
    shape: Shape
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def dim(self) -> int:
        """The length of an image's features."""
        return self.network.feature_dim

    def fingerprint(self) -> str:
        """A hash of weights and normalisation."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        settings = {"mean": self.mean, "std": self.std}
        return hash_encoder("own", settings, self.network.state_dict())

    def encode(self, x: RawImages) -> Features:
        """The features of the images `x`, one row each."""
        check_pixels(x, self.shape)
        return encode_rows(self._forward, x, self.dim)

    def _forward(self, x: RawImages) -> Features:
        """Features of at most ROWS images, computed in a batch of exactly ROWS."""
        batch = np.zeros((ROWS, *self.shape), np.uint8)
        batch[: len(x)] = x
        planes = torch.from_numpy(np.ascontiguousarray(batch.transpose(0, 3, 1, 2)))
        mean, std = (torch.tensor(each).view(1, -1, 1, 1) for each in (self.mean, self.std))
        with torch.no_grad():
            rows = self.network.features((planes.float() / 255 - mean) / std)[: len(x)]
        features: Features = rows.flatten(1).numpy()
        if not np.isfinite(features).all():
            raise DataError(broken("features must be finite", "nan or inf from the run's network"))
        return features


def describe_own(subject: Subject) -> dict[str, object]:
    """The run's own network as a plan names it.

    Parameters
    ----------
    subject
        What is audited: a run."""
    if subject.run is None:
        rule = "the encoder 'own' is the network of the run that is audited"
        remedy = "Audit the directory of a run, or name another encoder."
        raise ConfigError(broken(rule, "a configuration", remedy))
    normalisation = normalisation_of(subject.config, subject.dataset)
    return {
        "name": PATH,
        "run": str(subject.run.absolute()),
        "mean": list(normalisation.mean),
        "std": list(normalisation.std),
    }
