"""One flat vector behind a network, in both directions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from rayfl.learn.optimisers import Sgd
from rayfl.learn.resident import LARGE, Layout, Resident, make_blank, place_tensors, shape_view
from rayfl.learn.training import LocalTraining
from tests.learn.toys import LAYOUTS, conv_net, linear_net

CPU = torch.device("cpu")


def drawn(resident: Resident) -> NDArray[np.float32]:
    return np.random.default_rng(0).normal(size=len(resident.flat)).astype(np.float32)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("net", [conv_net, linear_net])
def test_what_is_loaded_is_dumped(net: type[nn.Module], layout: Layout) -> None:
    resident = Resident(net(), CPU, layout)
    weights = drawn(resident)
    assert np.array_equal(resident.load(weights).dump(), weights)


@pytest.mark.parametrize("writeable", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_floating_vector_loads_and_stays_as_it_is(
    writeable: bool, dtype: type[np.float32]
) -> None:
    resident = Resident(linear_net(), CPU)
    weights = drawn(resident).astype(dtype)
    weights.flags.writeable = writeable
    resident.load(weights)
    resident.flat.add_(1)
    assert np.array_equal(weights, drawn(resident))


def test_a_dump_is_a_copy() -> None:
    resident = Resident(linear_net(), CPU)
    before = resident.dump()
    resident.flat.zero_()
    assert before.any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_new_resident_has_the_networks_own_weights(layout: Layout) -> None:
    own, resident = conv_net(), Resident(conv_net(), CPU, layout)
    for name, tensor in own.state_dict().items():
        assert torch.equal(resident.net.state_dict()[name], tensor), name


def test_the_network_computes_what_it_would_compute_alone() -> None:
    x = torch.rand(5, 2, 8, 8)
    own, resident = conv_net().eval(), Resident(conv_net(), CPU)
    torch.testing.assert_close(resident.net.eval()(x), own(x), rtol=1e-6, atol=1e-6)


def test_parameters_come_first_then_float_buffers() -> None:
    net = conv_net()
    resident = Resident(conv_net(), CPU)
    parameters = sum(p.numel() for p in net.parameters())
    assert resident.n_parameters == len(resident.parameters) == len(resident.gradient) == parameters
    # Running mean and variance of six channels; the count of batches is an integer and stays out.
    assert len(resident.flat) == parameters + 12
    assert torch.equal(resident.flat[parameters:], torch.tensor([0.0] * 6 + [1.0] * 6))


def test_convolutions_lie_channels_last() -> None:
    resident = Resident(conv_net(), CPU)
    kernel = resident.net[0].weight  # type: ignore[index]
    assert kernel.is_contiguous(memory_format=torch.channels_last)
    expected = conv_net()[0].weight.permute(0, 2, 3, 1).reshape(-1)  # type: ignore[index]
    assert torch.equal(resident.flat[: kernel.numel()], expected)


def test_convolutions_lie_channels_first_where_the_run_asks_for_it() -> None:
    resident, own = Resident(conv_net(), CPU, "channels_first"), conv_net()
    assert torch.equal(
        resident.parameters, torch.cat([p.detach().reshape(-1) for p in own.parameters()])
    )
    assert all(
        p.is_contiguous() and p.grad is not None and p.grad.is_contiguous()
        for p in resident.net.parameters()
    )


def test_everything_is_a_view_of_the_vector() -> None:
    resident = Resident(conv_net(), CPU)
    store = resident.flat.untyped_storage().data_ptr()
    floats = [
        *resident.net.parameters(),
        *(b for b in resident.net.buffers() if b.is_floating_point()),
    ]
    assert {tensor.untyped_storage().data_ptr() for tensor in floats} == {store}
    slopes = resident.gradient.untyped_storage().data_ptr()
    assert {
        p.grad.untyped_storage().data_ptr() for p in resident.net.parameters() if p.grad is not None
    } == {slopes}


def test_gradients_flow_into_the_flat_gradient() -> None:
    resident, own = Resident(conv_net(), CPU), conv_net()
    x = torch.rand(7, 2, 8, 8)
    for net in (resident.net, own):
        net.train()(x).square().sum().backward()
    slopes = [
        (p.grad.permute(0, 2, 3, 1) if p.dim() == 4 else p.grad).reshape(-1)  # type: ignore[union-attr]
        for p in own.parameters()
    ]
    torch.testing.assert_close(resident.gradient, torch.cat(slopes), rtol=1e-4, atol=1e-5)


def test_running_statistics_change_the_vector() -> None:
    resident = Resident(conv_net(), CPU)
    before = resident.dump()
    resident.net.train()(torch.rand(7, 2, 8, 8))
    changed = np.flatnonzero(resident.dump() != before)
    assert len(changed) == 12
    assert changed.min() == resident.n_parameters
    resident.load(before)
    assert torch.equal(resident.net[1].running_var, torch.ones(6))  # type: ignore[index]


def test_frozen_parameters_have_no_gradient() -> None:
    net = linear_net()
    net[1].bias.requires_grad_(False)  # type: ignore[index]
    assert Resident(net, CPU).net[1].bias.grad is None  # type: ignore[index]


@pytest.mark.parametrize(
    ("layer", "spans"),
    [
        (0, [slice(0, 108)]),
        (1, [slice(108, 114), slice(114, 120)]),
        (4, [slice(120, 228), slice(228, 232)]),
        (7, [slice(232, 280), slice(280, 283)]),
        (2, []),
    ],
)
def test_spans_are_where_a_layers_parameters_lie(layer: int, spans: list[slice]) -> None:
    resident = Resident(conv_net(), CPU)
    assert resident.span(resident.net[layer]) == spans  # type: ignore[index]
    for span in spans:
        resident.flat[span] = 7
    assert all(torch.all(p == 7) for p in resident.net[layer].parameters())  # type: ignore[index]


def test_spans_of_the_whole_cover_all_parameters() -> None:
    resident = Resident(conv_net(), CPU)
    spans = resident.span(resident.net)
    assert spans[0].start == 0
    assert [span.stop for span in spans[:-1]] == [span.start for span in spans[1:]]
    assert spans[-1].stop == resident.n_parameters


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (4, 2, 3, 3), (4, 1, 1, 1), ()])
def test_a_home_is_a_view_of_the_tensors_shape(shape: tuple[int, ...], layout: Layout) -> None:
    first, second = torch.rand(5), torch.rand(shape)
    _, home = place_tensors([first, second], layout)
    flat = torch.zeros(5 + second.numel())
    home.of(flat).copy_(second)
    assert (
        home.of(flat).shape
        == shape_view(flat[home.span], second.shape, layout).shape
        == second.shape
    )
    assert home.length == second.numel()
    assert not flat[:5].any()
    assert flat[5:].sort().values.tolist() == second.flatten().sort().values.tolist()


def large_net() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(LARGE, 1)
        )


@pytest.mark.parametrize(("net", "copied"), [(conv_net, True), (large_net, False)])
def test_large_weights_are_given_away_and_the_network_moves(
    net: Callable[[], nn.Module], copied: bool
) -> None:
    resident = Resident(net(), CPU)
    before = drawn(resident)
    given = resident.load(before).give()
    assert np.array_equal(given, before)
    assert np.shares_memory(given, resident.flat.numpy()) != copied
    assert resident.given != copied
    resident.move(make_blank) if resident.given else resident.load(before)
    assert not resident.given
    resident.flat.add_(1)
    assert np.array_equal(given, before), "what was given away is nobody's to write to"
    store = resident.flat.untyped_storage().data_ptr()
    floats = [
        *resident.net.parameters(),
        *(b for b in resident.net.buffers() if b.is_floating_point()),
    ]
    assert {tensor.untyped_storage().data_ptr() for tensor in floats} == {store}


def test_a_network_moves_with_what_it_had_or_with_new_weights() -> None:
    resident = Resident(large_net(), CPU)
    before = drawn(resident)
    resident.load(before).give()
    assert np.array_equal(resident.move(make_blank).dump(), before)
    resident.give()
    assert np.array_equal(resident.move(make_blank, -before).dump(), -before)


def test_frozen_parameters_lie_behind_the_trainable_ones_and_do_not_decay() -> None:
    net = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    net.get_submodule("0").requires_grad_(False)
    resident = Resident(net, torch.device("cpu"))
    frozen = net.get_submodule("0").get_parameter("weight")
    before = frozen.clone()
    assert resident.n_parameters == 6
    assert [(span.start, span.stop) for span in resident.span(net.get_submodule("1"))] == [
        (0, 4),
        (4, 6),
    ]
    Sgd(resident, LocalTraining(lr=0.1, weight_decay=0.5)).step()
    assert torch.equal(frozen, before)
