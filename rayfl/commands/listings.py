"""What a configuration can name. A row here is a command, `rayfl methods`, that lists one registry;
`rayfl.commands.registries` carries it out.

This module is read whenever the command line starts: it imports nothing of what it names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Listing(NamedTuple):
    """A command that lists a registry."""

    home: str
    """Where the registry is: `module:NAME`."""
    subject: str
    """What it has, as the command's help calls them."""
    details: str = "settings"
    """What is shown of one."""

    @property
    def help(self) -> str:
        """What `rayfl --help` says of the command."""
        return f"List the {self.subject}, or show one with its {self.details}."


LISTINGS: Mapping[str, Listing] = {
    "methods": Listing("rayfl.algorithms:METHODS", "methods", "hyper-parameters"),
    "losses": Listing("rayfl.learn.losses:LOSSES", "losses of the loss slot"),
    "unlabelled-losses": Listing(
        "rayfl.learn.losses.unlabelled:UNLABELLED", "losses of clients without labels"
    ),
    "hosts": Listing("rayfl.algorithms.semi_supervised:HOSTS", "hosts of such a loss"),
    "weightings": Listing("rayfl.algorithms.parts.weighting:WEIGHTINGS", "weightings of clients"),
    "aggregations": Listing(
        "rayfl.algorithms.parts.aggregation:AGGREGATIONS", "aggregations of updates"
    ),
    "datasets": Listing("rayfl.federation.datasets:DATASETS", "datasets"),
    "partitions": Listing("rayfl.federation.partition:PARTITIONS", "partitions"),
    "noises": Listing("rayfl.federation.noise:NOISES", "label noises"),
    "hostilities": Listing("rayfl.federation.hostile:HOSTILITIES", "kinds of hostile clients"),
    "rates": Listing("rayfl.federation.noise:RATES", "noise rates of clients"),
    "models": Listing("rayfl.models:MODELS", "networks"),
    "encoders": Listing("rayfl.models:ENCODERS", "frozen encoders"),
    "augmentations": Listing("rayfl.learn.augment:AUGMENTATIONS", "augmentations"),
    "audits": Listing("rayfl.audit.plan:AUDITS", "kinds of audits, with their settings"),
    "schedulers": Listing("rayfl.tuning.schema:SCHEDULERS", "schedulers of a sweep"),
}
"""By command."""
