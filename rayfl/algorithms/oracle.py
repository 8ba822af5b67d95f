"""Two references that know which labels are right: what a robust method could reach at best.

The oracle is footnote 1 of S. Kim, W. Shin, S. Jang, H. Song, S.-Y. Yun: "FedRN: exploiting
k-reliable neighbors towards robust federated learning", CIKM 2022: federated averaging on the
correctly labelled samples alone. It is not federated averaging without noise, which has more
samples and stands beside it."""

from __future__ import annotations

from typing import ClassVar, Literal

from rayfl.algorithms.fedavg import FedAvg
from rayfl.component import component
from rayfl.errors import ConfigError, broken
from rayfl.protocol import Fleet


@component
class Oracle(FedAvg):
    """Federated averaging on the samples whose label is right; clients count by how many of those
    they have."""

    citation: ClassVar[str] = "Kim et al., CIKM 2022"
    labels: ClassVar[Literal["given", "clean", "true"]] = "clean"
    deviations: ClassVar[tuple[str, ...]] = (
        "Clients without a single right label are never drawn; in the paper's settings there are "
        "none.",
    )

    def check(self, fleet: Fleet) -> None:
        if not fleet.clients:
            raise ConfigError(
                broken("an oracle needs a client with a right label", "none", "Lower noise.rate.")
            )


@component
class CleanFedAvg(FedAvg):
    """Federated averaging on all samples with their true labels: the reference without noise."""

    labels: ClassVar[Literal["given", "clean", "true"]] = "true"
