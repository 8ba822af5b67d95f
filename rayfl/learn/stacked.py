"""Many copies of a small network, trained in lockstep: one kernel does a step of every client.

For small networks a step's time is launching kernels, not arithmetic, so a place that holds fifty
clients launches each kernel once for all of them. Row k of a matrix holds the parameters of client
k. Networks made of linear layers and pointwise ones are written out as batched matrix products;
others go through torch.func.vmap. A network with running statistics or dropout is not stacked: its
steps would not be those of the network alone.

Draws, mini-batches and optimiser are the ones of `fit`, so results differ from it by rounding only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as functional
from numpy.typing import NDArray
from torch import Tensor, nn

from rayfl.learn.augment.base import Unchanged
from rayfl.learn.fit import visits
from rayfl.learn.learner import Learner, fresh_seed
from rayfl.learn.local_fit import Adjust, Fit, Trainee
from rayfl.learn.optimisers import optimiser
from rayfl.learn.resident import Resident, Vector

STACK_BYTES = 64 << 20
"""Parameters, gradients and momenta of a stack stay below this; larger cohorts are trained in
several stacks."""
POINTWISE: tuple[type[nn.Module], ...] = (
    nn.ReLU,
    nn.Tanh,
    nn.Sigmoid,
    nn.GELU,
    nn.SiLU,
    nn.Identity,
)
PLAIN: tuple[type[nn.Module], ...] = (nn.Linear, nn.Flatten, nn.ReLU)
UNSTACKABLE: tuple[type[nn.Module], ...] = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.dropout._DropoutNd,
)


def stackable(learner: Learner) -> bool:
    """Whether copies in lockstep do what each would do alone."""
    resident = learner.resident()
    lone = any(isinstance(module, UNSTACKABLE) for module in resident.net.modules())
    all_trained = resident.flat.numel() == resident.n_parameters
    whole = learner.training.kernels == "whole"  # a row shows every tap
    return all_trained and whole and not lone and isinstance(learner.training.augment, Unchanged)


def copies_at_once(parameters: int) -> int:
    """How many copies a stack may hold."""
    return max(STACK_BYTES // (parameters * 4 * 3), 1)


class Stack:
    """Copies of one network: `parameters` and `gradient` have a row a copy, and `forward` maps
    (copy, image, ...) to (copy, image, class). It is trained by the optimisers of a single
    network."""

    def __init__(self, resident: Resident, copies: int) -> None:
        self.parameters = torch.empty(copies, resident.n_parameters, device=resident.flat.device)
        self.gradient = torch.zeros_like(self.parameters)
        self.spans = dict(spans(resident))
        self.net, self.layers = resident.net, written_out(resident.net)
        self._rows: dict[int, Rows] = {}

    def rows(self, copies: int) -> Rows:
        """The first copies, at work."""
        if copies not in self._rows:
            self._rows[copies] = Rows(self, copies)
        return self._rows[copies]

    def load(self, weights: Sequence[Vector]) -> None:
        """Give the first rows these weights, which are commonly one global model."""
        # By identity: a place hands one array to all who begin with it.
        common = all(vector is weights[0] for vector in weights)
        rows = np.array(weights[0], np.float32) if common else np.stack(weights)
        self.parameters[: len(weights)].copy_(torch.from_numpy(rows))

    def dump(self, copies: int) -> Vector:
        """A copy of the first rows."""
        return np.array(self.parameters[:copies].cpu().numpy(), copy=True)


class Rows:
    """The first copies of a stack, at work."""

    def __init__(self, stack: Stack, copies: int) -> None:
        self.copies, self.net, self.layers = copies, stack.net, stack.layers
        self.leaves = {
            name: rows_shaped(stack.parameters[:copies, span], like).requires_grad_()
            for name, (span, like) in stack.spans.items()
        }
        self.gradients = {
            name: rows_shaped(stack.gradient[:copies, span], like)
            for name, (span, like) in stack.spans.items()
        }
        kinds = [type(layer) for _, layer in self.layers or []]
        self.plain = bool(kinds) and all(issubclass(kind, PLAIN) for kind in kinds)
        self.first_linear = kinds.index(nn.Linear) if nn.Linear in kinds else 0

    def forward(self, x: Tensor) -> Tensor:
        """Logits (copy, image, class) of images (copy, image, ...)."""
        if self.layers is not None:
            return batched(self.layers, self.leaves, x)

        def one(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
            answered: Tensor = torch.func.functional_call(self.net, parameters, (x,))
            return answered

        together: Tensor = torch.func.vmap(one)(self.leaves, x)
        return together

    def backward(self, loss: Tensor) -> None:
        """Put the gradient of a sum of losses in its place."""
        # Not `backward`, which would leave gradients at the leaves: the optimiser reads one matrix.
        made = torch.autograd.grad(loss, list(self.leaves.values()))
        for place, gradient in zip(self.gradients.values(), made, strict=True):
            place.copy_(gradient)

    @torch.no_grad()
    def by_hand(self, x: Tensor, y: Tensor, share: Tensor) -> None:
        """The gradient of the cross-entropy through a chain of linear layers and ReLU, without a
        graph."""
        layers, entered = self.layers or [], [x]
        for named_layer in layers:
            entered.append(batched([named_layer], self.leaves, entered[-1]))
        logits = entered.pop()
        # torch.softmax takes rows of ten one by one; this is many times as fast.
        slope = logits.sub_(logits.amax(2, keepdim=True)).exp_()
        slope /= slope.sum(2, keepdim=True)
        slope.scatter_add_(2, y.unsqueeze(2), slope.new_full((), -1.0).expand(*y.shape, 1))
        slope *= share.unsqueeze(2)
        for i, (name, layer) in reversed(list(enumerate(layers))):
            if isinstance(layer, nn.ReLU):
                slope = torch.ops.aten.threshold_backward(slope, entered[i], 0)
            elif isinstance(layer, nn.Linear):
                torch.bmm(
                    slope.transpose(1, 2),
                    entered[i].flatten(2),
                    out=self.gradients[f"{name}.weight"],
                )
                if layer.bias is not None:
                    torch.sum(slope, dim=1, out=self.gradients[f"{name}.bias"])
                if i > self.first_linear:  # nobody asks for the gradient of an image
                    slope = torch.bmm(slope, self.leaves[f"{name}.weight"])


def spans(resident: Resident) -> Iterator[tuple[str, tuple[slice, Tensor]]]:
    """Where each named parameter lies in a row, and a tensor of its shape."""
    names = {id(parameter): name for name, parameter in resident.net.named_parameters()}
    start = 0
    for tensor in resident.tensors:
        yield names[id(tensor)], (slice(start, start + tensor.numel()), tensor)
        start += tensor.numel()


def rows_shaped(rows: Tensor, like: Tensor) -> Tensor:
    """A matrix of rows as tensors of one shape; convolution kernels channels-last, as in a single
    network."""
    start, stride = rows.storage_offset(), rows.stride(0)
    shape, strides = (len(rows), *like.shape), (stride, *like.stride())
    return rows.as_strided(shape, strides, start)


def written_out(net: nn.Module, name: str = "") -> list[tuple[str, nn.Module]] | None:
    """The layers of a network that is a chain of linear and pointwise ones, with their names; None
    for any other."""
    children = list(net.named_children())
    if not children:
        return [(name, net)] if isinstance(net, (nn.Linear, nn.Flatten, *POINTWISE)) else None
    # What a module does with its children is known of these alone.
    if not isinstance(net, nn.Sequential) and [child for child, _ in children] != ["trunk", "head"]:
        return None
    chain: list[tuple[str, nn.Module]] = []
    for child, module in children:
        inner = written_out(module, f"{name}.{child}" if name else child)
        if inner is None:
            return None
        chain += inner
    return chain


def batched(
    layers: Sequence[tuple[str, nn.Module]], leaves: dict[str, Tensor], x: Tensor
) -> Tensor:
    """The chain of layers for every copy at once."""
    for name, layer in layers:
        if isinstance(layer, nn.Flatten):
            x = x.flatten(2)
        elif isinstance(layer, nn.Linear):
            weight = leaves[f"{name}.weight"].transpose(1, 2)
            bias = leaves.get(f"{name}.bias")
            x = (
                torch.bmm(x, weight)
                if bias is None
                else torch.baddbmm(bias.unsqueeze(1), x, weight)
            )
        else:
            x = layer(x)
    return x


Steps = list[NDArray[np.int64]]
"""The mini-batches of one client: positions in its shard."""


def fit_together(
    learner: Learner, clients: Sequence[Trainee], wishes: Sequence[Fit]
) -> list[tuple[Vector, int]]:
    """What `fit` gives each client, and how many samples it took, in as few stacks as memory
    allows."""
    most = copies_at_once(learner.resident().n_parameters)
    trained: list[tuple[Vector, int]] = []
    for start in range(0, len(clients), most):
        part = slice(start, start + most)
        trained += fit_stack(learner, clients[part], wishes[part])
    return trained


def fit_stack(
    learner: Learner, clients: Sequence[Trainee], wishes: Sequence[Fit]
) -> list[tuple[Vector, int]]:
    """Train one stack, clients with the most steps first, so that those still at work are always
    the first rows."""
    images, labels = common_data(learner, clients)
    learner.probe(clients[0].x)
    plans = [steps_of(learner, client) for client in clients]
    order = sorted(range(len(clients)), key=lambda k: -len(plans[k]))
    starts = np.cumsum([0, *(len(client.x) for client in clients)])[order]
    stack = stack_for(learner, len(clients))
    stack.load([wishes[k].weights for k in order])
    batches = Batches([plans[k] for k in order], starts, images, labels)
    descend(learner, stack, batches, [wishes[k].adjust for k in order])
    rows = stack.dump(len(clients))
    at = {k: row for row, k in enumerate(order)}
    return [(rows[at[k]], sum(map(len, plans[k]))) for k in range(len(clients))]


def stack_for(learner: Learner, copies: int) -> Stack:
    """The place's stack, made anew when it is too small."""
    held: list[Stack] = learner.keep("stack", list)
    if not held or len(held[0].parameters) < copies:
        held[:] = [Stack(learner.resident(), copies)]
    return held[0]


def common_data(learner: Learner, clients: Sequence[Trainee]) -> tuple[Tensor, Tensor]:
    """All clients' images, as network input, and their labels, one client behind the other."""
    images = learner.normalise(learner.pixels(np.concatenate([client.x for client in clients])))
    labels = torch.from_numpy(np.concatenate([client.y for client in clients])).to(learner.device)
    return images, labels


def steps_of(learner: Learner, client: Trainee) -> Steps:
    """The mini-batches that `fit` would draw, from the same stream."""
    fresh_seed(client.rng)  # the draw that seeds augmentation, of which a stack has none
    return list(visits(len(client.x), learner.training, client.rng, learner.smallest_batch, None))


@dataclass(frozen=True)
class Batches:
    """Step by step, the images of every copy that still has some; copies with the most steps come
    first."""

    plans: Sequence[Steps]
    starts: NDArray[np.int64]
    images: Tensor
    labels: Tensor

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Images (copy, image, ...), labels (copy, image), and what each image counts: one over its
        batch, or nothing where it only fills a row."""
        counts = np.array([len(plan) for plan in self.plans])
        for step in range(int(counts.max(initial=0))):
            active = [plan[step] for plan in self.plans[: int((counts > step).sum())]]
            index, share = padded(active, self.starts)
            at = torch.from_numpy(index).to(self.images.device)
            yield self.images[at], self.labels[at], torch.from_numpy(share).to(self.images.device)


def padded(
    active: Steps, starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Positions among all images, a row a copy, and the share of each in its copy's batch."""
    lengths = np.array([len(index) for index in active])
    # Where a row is filled up, its copy's first image stands, and counts nothing.
    index = np.zeros((len(active), lengths.max()), dtype=np.int64)
    inside = np.arange(index.shape[1]) < lengths[:, None]
    index[inside] = np.concatenate(active)
    index += starts[: len(active), None]
    return index, (inside / lengths[:, None]).astype(np.float32)


def descend(
    learner: Learner, stack: Stack, batches: Batches, adjusts: Sequence[Adjust | None]
) -> None:
    """All steps of all copies; a copy that has none left keeps its row."""
    update = optimiser(stack, learner.training)
    for x, y, share in batches:
        rows = stack.rows(len(x))
        update.narrow(len(x))
        # In bfloat16, what is rounded where is autocast's to decide: that takes a graph.
        if rows.plain and learner.training.precision == "fp32":
            rows.by_hand(x, y, share)
        else:
            with learner.precision():
                logits = rows.forward(x)
            losses = functional.cross_entropy(
                logits.flatten(0, 1).float(), y.flatten(), reduction="none"
            )
            rows.backward((losses * share.flatten()).sum())
        for row, adjust in enumerate(adjusts[: len(x)]):
            if adjust is not None:
                adjust(stack.parameters[row], stack.gradient[row])
        update.step()
