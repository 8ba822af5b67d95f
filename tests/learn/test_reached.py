"""Kernels without the taps that only meet padding: the same function and the same training, but for
rounding."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings, strategies as st
from torch import nn

from rayfl.errors import ConfigError
from rayfl.learn.fit import compute_outputs
from rayfl.learn.learner import Learner
from rayfl.learn.padding_free import leave_out_padding
from rayfl.learn.resident import Layout, Resident
from rayfl.learn.stacked_fit import can_stack_network
from rayfl.learn.tapwise_convolution import Taps
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.protocol import Client
from tests.learn.toys import IMAGE, LAYOUTS, client, seeded, shrinking_net, train

CPU = torch.device("cpu")


def shown(net: nn.Module) -> list[tuple[int, int]]:
    """The kernels as convolutions see them."""
    return [
        (m.weight.shape[2], m.weight.shape[3]) for m in net.modules() if isinstance(m, nn.Conv2d)
    ]


def learner(kernels: str, build: Callable[[], nn.Module] = shrinking_net, **more: Any) -> Learner:
    settings = {"kernels": kernels, "lr": 0.1, "batch_size": 8, "epochs": 3, **more}
    return Learner(build, LocalTraining.model_validate(settings), Normalisation(), "cpu", 16, IMAGE)


# -- one convolution -------------------------------------------------------------------------------

AXIS = st.tuples(
    st.integers(1, 5), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3), st.integers(1, 7)
)


@given(AXIS, AXIS, st.sampled_from([1, 2]), st.sampled_from(LAYOUTS))
@settings(max_examples=200, deadline=None)
def test_a_narrowed_convolution_is_the_same_function(
    down: tuple[int, ...], across: tuple[int, ...], groups: int, layout: Layout
) -> None:
    kernel, stride, padding, dilation, size = zip(down, across, strict=True)
    for k, p, d, s in zip(kernel, padding, dilation, size, strict=True):
        assume(s + 2 * p >= d * (k - 1) + 1)

    def build() -> nn.Module:
        torch.manual_seed(0)
        return nn.Conv2d(4, 6, kernel, stride, padding, dilation, groups)

    whole, reached = Resident(build(), CPU, layout), Resident(build(), CPU, layout)
    leave_out_padding(reached, (*size, 4))
    x = torch.randn(3, 4, *size)
    slopes = []
    for resident in (whole, reached):
        images = x.clone().requires_grad_()
        resident.net(images).square().sum().backward()
        slopes.append(images.grad)
    torch.testing.assert_close(reached.net(x), whole.net(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(slopes[1], slopes[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(reached.gradient, whole.gradient, rtol=1e-4, atol=1e-4)
    assert torch.equal(reached.flat, whole.flat)


@pytest.mark.parametrize(
    ("conv", "size", "left"),
    [
        (nn.Conv2d(2, 2, 3, padding=1), (1, 1), (1, 1)),
        (nn.Conv2d(2, 2, 3, padding=1), (1, 4), (1, 3)),
        (nn.Conv2d(2, 2, 3, stride=2, padding=1), (2, 2), (2, 2)),
        (nn.Conv2d(2, 2, 5, padding=2), (2, 2), (3, 3)),
        (nn.Conv2d(2, 2, 7, stride=2, padding=3), (2, 2), (2, 2)),
        (nn.Conv2d(2, 2, 3, padding=1), (2, 2), (3, 3)),
        (nn.Conv2d(2, 2, 3, padding="same"), (1, 1), (3, 3)),
        (nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular"), (1, 1), (3, 3)),
    ],
    ids=str,
)
def test_what_is_left_of_a_kernel_is_shown(
    conv: nn.Conv2d, size: tuple[int, int], left: tuple[int, int]
) -> None:
    resident = Resident(conv, CPU)
    leave_out_padding(resident, (*size, 2))
    assert shown(resident.net) == [left]


@pytest.mark.parametrize(
    ("conv", "size", "taps"),
    [
        (nn.Conv2d(2, 2, 3, padding=1), (1, 1), 1),
        (nn.Conv2d(2, 2, 3, padding=1), (2, 2), 9),
        (nn.Conv2d(2, 2, 3, stride=2, padding=1), (2, 2), 4),
        (nn.Conv2d(2, 2, 3, padding=1), (4, 4), 0),
        (nn.Conv2d(2, 2, 3, padding=1, groups=2), (2, 2), 0),
        (nn.Conv2d(2, 2, 1), (1, 1), 0),
    ],
    ids=str,
)
def test_what_is_mostly_padding_is_computed_tap_by_tap(
    conv: nn.Conv2d, size: tuple[int, int], taps: int
) -> None:
    resident = Resident(conv, CPU)
    leave_out_padding(resident, (*size, 2))
    found = getattr(conv._conv_forward, "__self__")  # noqa: B009
    assert (len(found.taps) if isinstance(found, Taps) else 0) == taps


# -- networks --------------------------------------------------------------------------------------


class Twice(nn.Module):
    """One kernel for two sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = self.conv(nn.functional.adaptive_avg_pool2d(self.conv(x), 1))
        return pooled


class Tied(nn.Module):
    """Two convolutions with one kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 2, 3, padding=1), nn.Conv2d(2, 2, 3, padding=1)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pooled: torch.Tensor = self.second(nn.functional.adaptive_avg_pool2d(self.first(x), 1))
        return pooled


@pytest.mark.parametrize("net", [Twice, Tied])
def test_a_kernel_with_several_uses_stays_whole(net: type[nn.Module]) -> None:
    resident = Resident(net(), CPU)
    leave_out_padding(resident, IMAGE)
    assert set(shown(resident.net)) == {(3, 3)}


def test_only_what_small_images_leave_is_shown() -> None:
    resident = learner("reached").shape_of()
    assert shown(resident.net) == [(3, 3), (3, 3), (2, 2), (1, 1)]
    assert resident.net.training
    assert resident.n_parameters == sum(p.numel() for p in shrinking_net().parameters())


def test_spans_know_how_long_a_kernel_is() -> None:
    whole, reached = learner("whole").shape_of(), learner("reached").shape_of()
    assert [reached.span(m) for m in reached.net.modules()] == [
        whole.span(m) for m in whole.net.modules()
    ]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "more", [{}, {"momentum": 0.9, "weight_decay": 0.1}, {"optimizer": "adam", "lr": 0.01}], ids=str
)
def test_training_differs_by_rounding_only(layout: Layout, more: dict[str, Any]) -> None:
    start = Resident(shrinking_net(), CPU, layout).dump()
    found = {}
    for kernels in ("whole", "reached"):
        place = learner(kernels, layout=layout, **more)
        found[kernels] = (
            train(visited := trainee(place), start),
            compute_outputs(place, start, visited.x),
        )
    for mine, whole in zip(found["reached"], found["whole"], strict=True):
        np.testing.assert_allclose(mine, whole, rtol=1e-3, atol=1e-4)
    assert not np.array_equal(found["reached"][0], start)


def test_coarse_arithmetic_goes_with_narrowed_kernels() -> None:
    start = Resident(shrinking_net(), CPU).dump()
    fine, coarse = (
        train(trainee(learner("reached", precision=p)), start) for p in ("fp32", "bf16")
    )
    assert 0 < np.abs(fine - coarse).max() < 0.05


def test_taps_that_are_left_out_stay_but_for_decay() -> None:
    start = Resident(shrinking_net(), CPU).dump()
    place = learner("reached")
    (span,) = place.shape_of().span(place.shape_of().net.get_submodule("7"))
    kernel = train(trainee(place), start)[span].reshape(8, 3, 3, 6)
    before = start[span].reshape(8, 3, 3, 6)
    changed = (kernel != before).any(axis=(0, 3))
    assert changed.tolist() == [[False, False, False], [False, True, False], [False, False, False]]


def test_another_size_is_refused() -> None:
    resident = learner("reached").shape_of()
    with pytest.raises(
        ConfigError,
        match=r"narrowed for inputs of \(2, 2\) meets no others; got \(4, 4\)\. Set train",
    ):
        resident.net(torch.zeros(2, 2, 16, 16))


def test_narrowed_networks_are_not_stacked() -> None:
    build = lambda: seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, 3)))  # noqa: E731
    assert can_stack_network(learner("whole", build))
    assert not can_stack_network(learner("reached", build))


def test_frozen_kernels_are_narrowed_too() -> None:
    net = shrinking_net()
    net.get_submodule("7").requires_grad_(False)
    resident = Resident(net, CPU)
    leave_out_padding(resident, IMAGE)
    resident.net(torch.rand(4, 2, 8, 8)).sum().backward()
    assert shown(resident.net)[-1] == (1, 1)
    assert resident.gradient.isfinite().all()


def trainee(place: Learner) -> Client:
    return client(40, place)
