"""pfl-research's simulation of the same federation, in two processes of one thread each (torchrun,
gloo).

In its favour: images are tensors in their final form, one slice a client, and nothing is evaluated
before the end. Its user sampler hands out the saved cohorts. Where clients differ in size, it is
told the sizes and balances its processes."""

# The peer lives in another environment than the one that is checked.
# mypy: disable-error-code="import-not-found"

from __future__ import annotations

import io
import sys
from argparse import Namespace
from contextlib import redirect_stdout
from typing import Any

import torch

# The name that pfl calls was taken out of later PyTorch releases; it stood for the same values.
if not hasattr(torch.distributed, "reduce_op"):
    setattr(torch.distributed, "reduce_op", torch.distributed.ReduceOp)  # noqa: B010

from importlib.metadata import version

from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn import functional

from speed_suite.federation import Clock, Federation, Settings, answer, arguments
from speed_suite.plain import clock_of, images, labels, network_of, shuffled, tested, versions


class Trained(nn.Module):
    """The workload's network with the loss and metrics that pfl asks of a module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def loss(
        self,
        x: Tensor,
        y: Tensor,
        eval: bool = False,
    ) -> Tensor:
        self.net.train(not eval)
        return functional.cross_entropy(self.net(x), y)

    def metrics(
        self,
        x: Tensor,
        y: Tensor,
        eval: bool = False,
    ) -> dict[str, Any]:
        return {}


class Shuffled(PyTorchTensorDataset):  # type: ignore[misc]
    """pfl takes a user's batches in the order of the data; the other systems shuffle every
    epoch."""

    def __init__(
        self,
        tensors: tuple[Tensor, Tensor],
        user_id: str,
        settings: Settings,
    ) -> None:
        super().__init__(tensors, user_id=user_id)
        self.settings = settings

    def iter(self, batch_size: int | None) -> Any:
        x, y = self.raw_data
        for chosen in shuffled(len(x), self.settings):
            yield [x[chosen], y[chosen]]


class Ticking(TrainingProcessCallback):  # type: ignore[misc]
    """Times the rounds."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, *, model: Any) -> Metrics:
        self.clock.begin()
        return Metrics()

    def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Metrics]:
        self.clock.tick()
        return False, Metrics()


class Saved:
    """A user sampler: one cohort after the other, and from the beginning, for pfl draws ahead."""

    def __init__(self, federation: Federation) -> None:
        self.order = federation.cohorts.ravel().tolist()
        self.at = -1

    def __call__(self) -> int:
        self.at = (self.at + 1) % len(self.order)
        return int(self.order[self.at])


def users(federation: Federation) -> FederatedDataset:
    x = images(federation.x)
    y = labels(federation.y)

    def user(client: int) -> Shuffled:
        rows = federation.rows(client)
        return Shuffled((x[rows], y[rows]), str(client), federation.settings)

    sizes = {client: federation.size(client) for client in range(federation.clients)}
    # Balancing costs a helper process; equal clients need none.
    unequal = len(set(sizes.values())) > 1
    return FederatedDataset(user, Saved(federation), sizes if unequal else None)


def simulate(federation: Federation, told: Namespace) -> tuple[Clock, nn.Module]:
    settings = federation.settings
    clock = clock_of(told)
    net = network_of(federation)
    data = users(federation)

    def local(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=settings.momentum)

    trained = Trained(net)
    model = PyTorchModel(trained, local, torch.optim.SGD(trained.parameters(), lr=1.0))
    backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
    rounds = NNAlgorithmParams(
        central_num_iterations=told.rounds,
        evaluation_frequency=told.rounds + 1,
        train_cohort_size=federation.cohorts.shape[1],
        val_cohort_size=None,
    )
    locally = NNTrainHyperParams(
        local_num_epochs=settings.epochs,
        local_learning_rate=settings.lr,
        local_batch_size=settings.batch_size,
    )
    with redirect_stdout(io.StringIO()):
        FederatedAveraging().run(
            rounds,
            backend,
            model,
            locally,
            NNEvalHyperParams(local_batch_size=256),
            callbacks=[Ticking(clock)],
        )
    return clock, net


def main() -> None:
    told = arguments()
    torch.set_num_threads(1)
    torch.manual_seed(pytorch_ops.distributed.global_rank)
    federation = Federation.load(told.folder)
    clock, net = simulate(federation, told)
    if pytorch_ops.distributed.global_rank == 0:
        released = Namespace(__name__="pfl", __version__=version("pfl"))
        answer(**clock.facts(), **tested(federation, net), versions=versions(released))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
