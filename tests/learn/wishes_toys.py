"""What the tests of wishes share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from rayfl.learn.batches import Batch, draw_batches, resolve_settings
from rayfl.learn.learner import Learner
from rayfl.protocol import Client, Vector
from tests.learn.toys import learner, linear_net, start

SIZE = 23


SETTINGS = {"lr": 0.1, "momentum": 0.9, "batch_size": 6, "epochs": 2}


Change = Callable[[list[nn.Parameter]], object]


def place_of(**more: Any) -> Learner:
    return learner(linear_net, **{**SETTINGS, **more})


def by_hand(
    visited: Client,
    loss: Callable[[Tensor, Batch], Tensor] | None = None,
    change: Change | None = None,
    keep: Any = None,
    targets: Any = None,
    rates: Callable[[int], float] | None = None,
    **changed: Any,
) -> Vector:
    """The same batches through torch's own module and optimiser."""
    settings = resolve_settings(visited.learner.training, changed)
    net = linear_net()
    parameters = list(net.parameters())
    plain = torch.optim.SGD(parameters, settings.lr, settings.momentum)
    for batch in draw_batches(visited, settings, keep, targets):
        plain.zero_grad()
        logits = net(batch.x.contiguous())
        value = functional.cross_entropy(logits, batch.y) if loss is None else loss(logits, batch)
        value.backward()  # type: ignore[no-untyped-call]
        if change is not None:
            change(parameters)
        if rates is not None:
            plain.param_groups[0]["lr"] = settings.lr * rates(batch.step)
        plain.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters]).numpy()


def assert_same(found: Vector, expected: Vector) -> None:
    """The same but for rounding, and something has moved."""
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert np.abs(found - start()).max() > 0.01
