"""What a person writes without a framework: the networks, the local loop and the test, in plain
PyTorch.

Needs torch and torchvision, nothing of rayfl: the peers use it too.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from speed_suite.federation import Clock, Federation, Settings, moved

TEST_BATCH = 256
Loss = Callable[[Tensor, Tensor], Tensor]


def clock_of(told: argparse.Namespace) -> Clock:
    return Clock(told.started, told.warmup)


# -- networks --------------------------------------------------------------------------------------


def mnist_cnn(classes: int) -> nn.Module:
    """Two padded 5x5 convolutions (32, 64) and a hidden layer of 512."""
    return nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, classes)),
    )


def cifar_cnn(classes: int) -> nn.Module:
    """Four 3x3 convolutions (64, 128, 256, 256), each normalised by its batch and pooled."""
    layers: list[nn.Module] = []
    for inputs, width in ((3, 64), (64, 128), (128, 256), (256, 256)):
        norm = nn.BatchNorm2d(width, track_running_stats=False)
        layers += [nn.Conv2d(inputs, width, 3, padding=1), norm, nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 2 * 2, classes))


def tiny_mlp(classes: int) -> nn.Module:
    """64 inputs, one hidden layer of 64."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


def resnet18(classes: int) -> nn.Module:
    """torchvision's, without running statistics: 11 million parameters."""
    from torchvision.models import resnet

    def norm(width: int) -> nn.Module:
        return nn.BatchNorm2d(width, track_running_stats=False)

    network: nn.Module = resnet.resnet18(norm_layer=norm, num_classes=classes)
    return network


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "mnist_cnn": mnist_cnn,
    "cifar_cnn": cifar_cnn,
    "tiny_mlp": tiny_mlp,
    "resnet18": resnet18,
}


def network_of(federation: Federation) -> nn.Module:
    """The workload's network with its initial weights."""
    net = NETWORKS[federation.settings.network](federation.settings.classes)
    load(net, [torch.from_numpy(array) for array in federation.initial])
    return net


@torch.no_grad()
def load(net: nn.Module, weights: Sequence[Tensor]) -> None:
    """Take these weights, in the order of the module's parameters."""
    for mine, theirs in zip(net.parameters(), weights, strict=True):
        mine.copy_(theirs)


def weights_of(net: nn.Module) -> list[Tensor]:
    """The parameters' values, not copied."""
    return [parameter.detach() for parameter in net.parameters()]


# -- data, training, test --------------------------------------------------------------------------


def images(x: NDArray[np.uint8]) -> Tensor:
    """Pixels in [0, 1], in PyTorch's usual memory layout."""
    return torch.from_numpy(np.array(x)).permute(0, 3, 1, 2).contiguous().float().div_(255)


def labels(y: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.array(y))


def choose_loss(settings: Settings) -> Loss:
    """Cross-entropy, or the robust loss that the method's settings name."""
    chosen = settings.method.get("loss")
    if chosen is None:
        return functional.cross_entropy
    assert chosen["name"] == "gce"
    return partial(generalised_cross_entropy, gamma=chosen["gamma"])


def generalised_cross_entropy(logits: Tensor, y: Tensor, gamma: float) -> Tensor:
    """Zhang and Sabuncu's loss: the mean of (1 - p_y^gamma) / gamma."""
    log_p = functional.cross_entropy(logits, y, reduction="none").neg()
    return torch.expm1(gamma * log_p).mean() / -gamma


def train(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    settings: Settings,
    loss: Loss = functional.cross_entropy,
    correct: Callable[[], None] | None = None,
) -> None:
    """One client's visit: shuffled mini-batches by indexing, torch's own SGD. `correct` changes the
    gradients before a step."""
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), lr=settings.lr, momentum=settings.momentum)
    for _ in range(settings.epochs):
        for chosen in shuffled(len(x), settings):
            optimiser.zero_grad()
            loss(net(x[chosen]), y[chosen]).backward()  # type: ignore[no-untyped-call]
            if correct is not None:
                correct()
            optimiser.step()


def shuffled(size: int, settings: Settings) -> Iterator[Tensor]:
    """The positions of one epoch's batches."""
    for chosen in torch.split(torch.randperm(size), settings.batch_size):
        if len(chosen) == settings.batch_size or not settings.drop_last:
            yield chosen


@torch.no_grad()
def tested(federation: Federation, net: nn.Module) -> dict[str, float]:
    """Accuracy and loss on the test set, and how far the weights have come from the initial
    ones."""
    net.eval()
    right = 0
    loss = 0.0
    for x, y in batches(federation.test_x, federation.test_y):
        logits = net(x)
        right += int((logits.argmax(1) == y).sum())
        loss += float(functional.cross_entropy(logits, y, reduction="sum"))
    count = len(federation.test_y)
    weights = [tensor.numpy() for tensor in weights_of(net)]
    return {
        "accuracy": right / count,
        "loss": loss / count,
        "moved": moved(weights, federation.initial),
    }


def batches(x: NDArray[np.uint8], y: NDArray[np.int64]) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of a fixed size in a fixed order: batch statistics are the same in every system."""
    for start in range(0, len(x), TEST_BATCH):
        yield images(x[start : start + TEST_BATCH]), labels(y[start : start + TEST_BATCH])


def versions(*others: Any) -> dict[str, str]:
    """The libraries that a system ran on."""
    found = {"torch": str(torch.__version__), "numpy": np.__version__}
    return {
        **found,
        **{module.__name__: str(module.__version__) for module in others},
    }
