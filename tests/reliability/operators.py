"""Operators on fixed arrays: which of them round otherwise under other kernels.

    python -m tests.reliability.operators

It prints the hash of what each one makes, as JSON. Arrays are drawn by numpy's generator, whose
numbers are the same everywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rayfl.learn.roots import square_root

Made = dict[str, Any]
VALUES = 1003  # no multiple of any vector's length

OF_ONE_VALUE: Mapping[str, Callable[[Tensor], Tensor]] = {
    "exp": torch.exp,
    "log": lambda x: torch.log(x.abs()),
    "log1p": lambda x: torch.log1p(x.abs()),
    "sqrt": lambda x: torch.sqrt(x.abs()),
    "square_root": square_root,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "pow": lambda x: x.abs() ** 1.7,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "softplus": functional.softplus,
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.3),
    "lerp": lambda x: torch.lerp(x, 2 * x, 0.3),
    "sum": torch.sum,
    "mean": torch.mean,
    "norm": torch.norm,
    "var": torch.var,
    "cumsum": lambda x: x.cumsum(0),
}
OF_ROWS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda x: functional.softmax(x, 1),
    "log_softmax": lambda x: functional.log_softmax(x, 1),
    "logsumexp": lambda x: torch.logsumexp(x, 1),
    "layer_norm": lambda x: functional.layer_norm(x, (10,)),
    "sum of columns": lambda x: x.sum(0),
    "sum of rows": lambda x: x.sum(1),
    "normalize": functional.normalize,
}
OF_IMAGES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "batch_norm": lambda x: functional.batch_norm(x, None, None, training=True),
    "group_norm": lambda x: functional.group_norm(x, 8),
    "max_pool2d": lambda x: functional.max_pool2d(x, 2),
    "avg_pool2d": lambda x: functional.avg_pool2d(x, 2),
    "adaptive_avg_pool2d": lambda x: functional.adaptive_avg_pool2d(x, 1),
    "interpolate": lambda x: functional.interpolate(x, size=(9, 9), mode="bilinear"),
}
KERNELS = {
    "5x5 of one channel": ((16, 1, 28, 28), (32, 1, 5, 5), 1),
    "3x3": ((16, 32, 14, 14), (64, 32, 3, 3), 1),
    "3x3 in groups": ((8, 32, 14, 14), (64, 8, 3, 3), 4),
    "1x1": ((8, 64, 8, 8), (128, 64, 1, 1), 1),
}
PRODUCTS = {
    "mm": ((32, 784), (784, 200)),
    "mm, small": ((16, 64), (64, 16)),
    "mm, transposed": ((200, 32), (32, 10)),
    "mv": ((100, 784), (784,)),
    "bmm": ((8, 16, 64), (8, 64, 16)),
}
OPTIMIZERS: Mapping[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
}
DECOMPOSITIONS: Mapping[str, Callable[[Tensor], Any]] = {
    "svd": lambda x: torch.linalg.svd(x, full_matrices=False),
    "qr": torch.linalg.qr,
    "eigh": lambda x: torch.linalg.eigh(x @ x.T),
}
OF_ARRAYS: Mapping[str, Callable[[NDArray[Any]], Any]] = {
    "sum": np.sum,
    "var": np.var,
    "exp": np.exp,
    "log": lambda x: np.log(np.abs(x)),
    "pow": lambda x: np.abs(x) ** 1.3,
    "tanh": np.tanh,
    "sqrt": lambda x: np.sqrt(np.abs(x)),
    "matmul": lambda x: x @ x.T,
    "svd": lambda x: np.linalg.svd(x, full_matrices=False),
    "eigh": lambda x: np.linalg.eigh(x @ x.T),
}


class Draws:
    """Arrays, one after the other.

    Parameters
    ----------
    name : str
        Of the operator that they are for: one more operator changes no other's arrays.
    """

    def __init__(self, name: str) -> None:
        self.rng = np.random.default_rng(list(name.encode()))

    def __call__(self, *shape: int) -> Tensor:
        drawn = self.rng.standard_normal(shape).astype(np.float32)
        return torch.from_numpy(drawn).requires_grad_()


def hash_operators() -> dict[str, str]:
    """The hash of what each operator makes here, by its name."""
    parts = (_run_torch, _run_convolutions, _run_optimizers, _run_generators, _run_numpy)
    return {name: _hash(made) for part in parts for name, made in part()}


def _hash(made: Any) -> str:
    """Of one array or several."""
    several = made if isinstance(made, tuple) else (made,)
    found = hashlib.sha256()
    for one in several:
        found.update(np.asarray(one.detach() if isinstance(one, Tensor) else one).tobytes())
    return found.hexdigest()[:16]


def _run_torch() -> Iterator[tuple[str, Any]]:
    kinds = ((OF_ONE_VALUE, (VALUES,)), (OF_ROWS, (64, 10)), (OF_IMAGES, (16, 32, 14, 14)))
    for operators, shape in kinds:
        for name, operator in operators.items():
            yield from _run_both_ways(name, operator, shape)
    for name, (left, right) in PRODUCTS.items():
        draw = Draws(name)
        yield name, draw(*left) @ draw(*right)
    for name, decompose in DECOMPOSITIONS.items():
        yield f"linalg.{name}", tuple(decompose(Draws(name)(30, 20)))


def _run_both_ways(
    name: str, operator: Callable[[Tensor], Tensor], shape: tuple[int, ...]
) -> Iterator[tuple[str, Any]]:
    """What it makes, and what goes back through it."""
    draw = Draws(name)
    x = draw(*shape)
    made = operator(x)
    torch.autograd.backward(made, draw(*made.shape).detach())
    yield name, made
    yield f"{name}, backward", x.grad


def _run_convolutions() -> Iterator[tuple[str, Any]]:
    for name, (images, kernel, groups) in KERNELS.items():
        draw = Draws(name)
        x, weight, bias = draw(*images), draw(*kernel), draw(kernel[0])
        made = functional.conv2d(x, weight, bias, padding=kernel[2] // 2, groups=groups)
        torch.autograd.backward(made, draw(*made.shape).detach())
        yield f"conv2d {name}", made
        yield f"conv2d {name}, backward to images", x.grad
        yield f"conv2d {name}, backward to kernels", (weight.grad, bias.grad)


def _run_optimizers() -> Iterator[tuple[str, Any]]:
    for name, make in OPTIMIZERS.items():
        draw = Draws(name)
        weights = draw(VALUES)
        optimizer = make([weights])
        for _ in range(3):
            weights.grad = draw(VALUES).detach()
            optimizer.step()
        yield f"a step of {name}", weights


def _run_generators() -> Iterator[tuple[str, Any]]:
    def stream() -> torch.Generator:
        return torch.Generator().manual_seed(3)

    yield "randn", torch.randn(VALUES, generator=stream())
    yield "randn, under 16", torch.randn(9, generator=stream())
    yield "rand", torch.rand(VALUES, generator=stream())
    yield "randperm", torch.randperm(100, generator=stream())
    yield "trunc_normal_", nn.init.trunc_normal_(torch.empty(99), generator=stream())


def _run_numpy() -> Iterator[tuple[str, Any]]:
    for kind in (np.float32, np.float64):
        for name, operator in OF_ARRAYS.items():
            drawn = np.random.default_rng(list(name.encode())).standard_normal((64, 200))
            yield f"numpy.{name} of {kind.__name__}", operator(drawn.astype(kind))


if __name__ == "__main__":
    print(json.dumps(hash_operators()))
