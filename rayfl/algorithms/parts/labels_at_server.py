"""Methods whose labels lie at the server, and whose clients have images alone: what they share.

Pre-training is made of rounds of the server's own, `server_epochs` passes each, so that it can be
resumed like any round and shares the axis of FedCR, whose comparison gives it to every method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from rayfl.algorithms.parts.late_stages import warn_of_late_stage
from rayfl.algorithms.parts.server_training import (
    refuse_idle_server,
    refuse_unfit_labels,
    train_on_labels,
)
from rayfl.component import Count, Natural, Positive, component, slot
from rayfl.learn.losses import LOSSES
from rayfl.learn.losses.base import CROSS_ENTROPY, SampleLoss
from rayfl.learn.training import Training
from rayfl.protocol import Algorithm, Fleet, Ref, Served


@component
class LabelsAtServer(Algorithm):
    """The server learns from its labels, clients from images; heirs say how they take turns."""

    needs: ClassVar[Mapping[str, Literal["images", "labels"]]] = {"labelled": "labels"}
    client_labels: ClassVar[bool] = False
    metrics: ClassVar[Mapping[str, str]] = {
        "server/pretraining": "1 while the server still trains alone, before the first federated "
        "round",
    }
    pretraining: Natural = 0
    """Passes over the labelled set before the first federated round (FedCR's comparison: 700;
    neutral: 0)."""
    server_epochs: Count = 5
    """Passes over the labelled set in a round."""
    labels_loss: Annotated[SampleLoss, slot(LOSSES)] = CROSS_ENTROPY
    """The server's loss: `ce` (the papers'), or one that forgives wrong labels."""
    clip: Positive | None = None
    """Largest norm of a gradient, at the server and at clients; null: any."""

    def check(self, fleet: Fleet) -> None:
        refuse_unfit_labels(fleet)

    def list_warnings(self, training: Training, clients: int) -> Iterator[str]:
        yield from super().list_warnings(training, clients)
        alone = -(-self.pretraining // self.server_epochs)
        if self.pretraining:
            yield from warn_of_late_stage(
                "method.pretraining", alone, training.rounds, "no client will ever train"
            )

    def count_pretraining(self, fleet: Fleet, t: int) -> int:
        """Passes of pre-training in round `t`; 0 once it is over.

        Parameters
        ----------
        fleet
            Where it is logged.
        t
            The round.
        """
        left = max(self.pretraining - t * self.server_epochs, 0)
        fleet.log(**{"server/pretraining": float(left > 0)})
        return min(left, self.server_epochs)

    def train_server(
        self, fleet: Fleet, w: Ref, memory: Ref | None, epochs: int | None = None
    ) -> Served:
        """The server's passes over its labels from `w`: `["w"]` and `["optimiser"]`.

        Parameters
        ----------
        fleet
            Where the server is.
        w
            Where it begins.
        memory
            What its optimiser knew after the last round.
        epochs
            Passes; by default a round's.
        """
        got = fleet.serve(
            train_on_labels,
            w=w,
            memory=memory,
            data=fleet.data("labelled"),
            epochs=epochs or self.server_epochs,
            loss=self.labels_loss,
            clip=self.clip,
        )
        refuse_idle_server(got.report)
        return got
