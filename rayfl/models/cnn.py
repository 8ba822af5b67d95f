"""Plain convolutional networks of the federated literature.

torch is imported where one is built: the driver and the coordinator read settings, and stay half as
large without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from rayfl.component import Count, Fraction, component
from rayfl.models.norm import Norm

if TYPE_CHECKING:
    from torch import nn

    from rayfl.models.network import Network, Shape


@component
class MnistCNN:
    """Two 5x5 convolutions (10, 20) and a hidden layer of 50: the MNIST network of FedDS's released
    code."""

    dropout: Fraction = 0.5

    def build(self, shape: Shape, classes: int) -> Network:
        from torch import nn

        from rayfl.models.network import add_linear_head, measure_features

        channels = shape[2]
        convolutions = nn.Sequential(
            nn.Conv2d(channels, 10, 5),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(10, 20, 5),
            nn.Dropout2d(self.dropout),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
        )
        width = measure_features(convolutions, shape, "mnist_cnn")
        hidden = nn.Linear(width, 50)
        trunk = nn.Sequential(
            convolutions,
            hidden,
            nn.ReLU(),
            nn.Dropout(self.dropout),
        )
        return add_linear_head(trunk, 50, classes)


@component
class MnistCNNWide:
    """Two padded 5x5 convolutions (32, 64) and a hidden layer of 512: the CNN of McMahan et al.
    (AISTATS 2017)."""

    def build(self, shape: Shape, classes: int) -> Network:
        from torch import nn

        from rayfl.models.blocks import pool_before_relu
        from rayfl.models.network import add_linear_head, measure_features

        first = nn.Conv2d(shape[2], 32, 5, padding=2)
        second = nn.Conv2d(32, 64, 5, padding=2)
        convolutions = nn.Sequential(
            *pool_before_relu(first, nn.ReLU(inplace=True)),
            *pool_before_relu(second, nn.ReLU(inplace=True)),
            nn.Flatten(),
        )
        width = measure_features(convolutions, shape, "mnist_cnn_wide")
        hidden = nn.Linear(width, 512)
        trunk = nn.Sequential(convolutions, hidden, nn.ReLU())
        return add_linear_head(trunk, 512, classes)


@component
class VGG:
    """Three stages of two 3x3 convolutions and two hidden layers of 512: FedDS's network for
    CIFAR-10."""

    dropout: Fraction = 0.5
    norm: Norm = "batch"
    track_running_stats: bool = True

    def build(self, shape: Shape, classes: int) -> Network:
        from torch import nn

        from rayfl.models.blocks import build_conv_block, choose_norm, pool_before_relu
        from rayfl.models.network import add_linear_head, measure_features

        norm = choose_norm(self.norm, self.track_running_stats)
        layers: list[nn.Module] = []
        inputs = shape[2]
        for width in (64, 128, 256):
            first = nn.Conv2d(inputs, width, 3, padding=1)
            layers += build_conv_block(first, norm)
            second = nn.Conv2d(width, width, 3, padding=1)
            layers += pool_before_relu(*build_conv_block(second, norm))
            inputs = width
        convolutions = nn.Sequential(*layers, nn.Flatten())
        trunk = nn.Sequential(
            convolutions,
            nn.Linear(measure_features(convolutions, shape, "vgg"), 512),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(512, 512),
            nn.ReLU(),
            nn.Dropout(self.dropout),
        )
        return add_linear_head(trunk, 512, classes)


@component
class CNN4:
    """Convolution, normalisation, ReLU and pooling, once per width: FedRN's network (Kim et al.,
    CIKM 2022).

    The paper's BatchNorm keeps no running statistics: it normalises with the batch in evaluation
    too."""

    widths: Annotated[tuple[Count, ...], Field(min_length=1)] = (64, 64, 64, 64)
    norm: Norm = "batch"
    track_running_stats: bool = False

    def build(self, shape: Shape, classes: int) -> Network:
        from torch import nn

        from rayfl.models.blocks import build_conv_block, choose_norm, pool_before_relu
        from rayfl.models.network import add_linear_head, measure_features

        norm = choose_norm(self.norm, self.track_running_stats)
        layers: list[nn.Module] = []
        inputs = shape[2]
        for width in self.widths:
            convolution = nn.Conv2d(inputs, width, 3, padding=1)
            layers += pool_before_relu(*build_conv_block(convolution, norm))
            inputs = width
        trunk = nn.Sequential(*layers, nn.Flatten())
        width = measure_features(trunk, shape, "cnn4")
        return add_linear_head(trunk, width, classes)
