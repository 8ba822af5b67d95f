"""Heads that methods put on a trunk in place of the linear classifier."""

from __future__ import annotations

from torch import Tensor, nn


def build_projection_mlp(
    inputs: int,
    hidden: int,
    outputs: int,
) -> nn.Sequential:
    """Linear, BatchNorm, ReLU, Linear: projector and predictor of BYOL (Grill et al., NeurIPS
    2020).

    Parameters
    ----------
    inputs, hidden, outputs
        The widths of the three layers of numbers.
    """
    return nn.Sequential(
        nn.Linear(inputs, hidden),
        nn.BatchNorm1d(hidden),
        nn.ReLU(inplace=True),
        nn.Linear(hidden, outputs),
    )


class ProjectedClassifier(nn.Module):
    """A classifier that reads a projection z of the features h, as in MOON (Li, He and Song, CVPR
    2021).

    z = W2 relu(W1 h + b1) + b2 with W1 square; the logits are linear in z.

    Parameters
    ----------
    inputs
        The width of the features.
    classes
        How many logits.
    outputs
        The width of z.
    """

    def __init__(
        self,
        inputs: int,
        classes: int,
        outputs: int = 256,
    ) -> None:
        super().__init__()
        self.projection = nn.Sequential(
            nn.Linear(inputs, inputs),
            nn.ReLU(inplace=True),
            nn.Linear(inputs, outputs),
        )
        self.classifier = nn.Linear(outputs, classes)

    def project(self, features: Tensor) -> Tensor:
        """The projection z of `features`, which contrastive terms compare."""
        z: Tensor = self.projection(features)
        return z

    def forward(self, features: Tensor) -> Tensor:
        """The logits of `features`."""
        logits: Tensor = self.classifier(self.project(features))
        return logits
