"""BatchNorm statistics measured over clients in one map."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.parts.batch_norm import (
    find_statistics,
    measure_statistics,
    remeasure_statistics,
)
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.resident import Resident, Vector
from rayfl.protocol import Client, Out
from tests.learn.kit import build_linear, build_normed, first_weights, make_client, make_learner
from tests.parts.fleets import open_fleet

CPU = torch.device("cpu")
CLIENTS = (0, 1, 2, 3)


def start_of(fleet: InlineFleet, i: int = 0) -> Vector:
    return first_weights(make_learner(build_normed), i)


def one_pass(w: Vector, batches: list[Vector]) -> Vector:
    """The model after torch's own cumulative statistics over these batches in turn."""
    network = Resident(build_normed(), CPU).load(w)
    for module in network.net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.momentum = None
    network.net.train()
    with torch.no_grad():
        for images in batches:
            network.net(torch.from_numpy(images))
    return network.dump()


def batches_of(fleet: InlineFleet, clients: tuple[int, ...], size: int) -> list[Vector]:
    held = fleet.executor.holdings
    found = []
    for client in clients:
        images = held.shard(client).x.transpose(0, 3, 1, 2).astype(np.float32) / 255
        found += [images[start : start + size] for start in range(0, len(images), size)]
    return found


def test_statistics_in_print() -> None:
    norm = nn.BatchNorm1d(1, momentum=None)
    for batch in ([0.0, 2.0], [4.0, 8.0]):
        norm(torch.tensor(batch)[:, None])
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert (norm.running_mean.item(), norm.running_var.item()) == (3.5, 5.0)


@pytest.mark.parametrize("size", [7, 250])
def test_clients_measure_what_one_pass_over_all_would(size: int) -> None:
    with open_fleet(build=build_normed) as fleet:
        w = start_of(fleet)
        ref = remeasure_statistics(fleet, fleet.put(w), CLIENTS, batch_size=size)
        found = fleet.get(ref)
        expected = one_pass(w, batches_of(fleet, CLIENTS, size))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    places = find_statistics(Resident(build_normed(), CPU))
    assert len(places) == 2 * (4 + 2)
    trained = np.setdiff1d(np.arange(len(w)), places)
    assert np.array_equal(found[trained], w[trained])
    assert not np.array_equal(found[places], w[places])


def test_order_and_earlier_statistics_do_not_matter() -> None:
    with open_fleet(build=build_normed) as fleet:
        w = start_of(fleet)
        other = w.copy()
        other[find_statistics(Resident(build_normed(), CPU))] = 3.0
        one = fleet.get(remeasure_statistics(fleet, fleet.put(w), CLIENTS))
        again = fleet.get(remeasure_statistics(fleet, fleet.put(other), CLIENTS[::-1]))
    assert np.array_equal(one, again)


def test_the_servers_set_counts_too() -> None:
    with open_fleet(build=build_normed) as fleet:
        w = start_of(fleet)
        alone = fleet.get(remeasure_statistics(fleet, fleet.put(w), [], "labelled", 6))
        images = fleet.executor.holdings.sets["labelled"].x
        rows = images.transpose(0, 3, 1, 2).astype(np.float32) / 255
        expected = one_pass(w, [rows[:6], rows[6:]])
        both = fleet.get(remeasure_statistics(fleet, fleet.put(w), [0], "labelled", 6))
    np.testing.assert_allclose(alone, expected, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(both, alone)


def test_nobody_measures_nothing() -> None:
    with open_fleet(build=build_normed) as fleet:
        w = fleet.put(start_of(fleet))
        assert remeasure_statistics(fleet, w, []) is w


def test_a_network_without_statistics_stays() -> None:
    with open_fleet(build=build_linear) as fleet:
        w = fleet.put(first_weights(make_learner(build_linear)))
        assert remeasure_statistics(fleet, w, CLIENTS) is w


def predict(client: Client, *, w: Vector) -> Out:
    net = client.learner.resident(w).net
    momenta = [m.momentum for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
    return Out({"momenta": momenta})


def test_the_network_is_left_as_it_was() -> None:
    with open_fleet(build=build_normed) as fleet:
        w = fleet.put(start_of(fleet))
        remeasure_statistics(fleet, w, CLIENTS)
        assert fleet.map(predict, [0], w=w)[0]["momenta"] == [0.1, 0.1]


def test_only_statistics_travel_up() -> None:
    client = make_client(20, make_learner(build_normed))
    out = measure_statistics(client, w=first_weights(client.learner), batch_size=8)
    assert isinstance(out.update, dict)
    assert out.update["statistics"].shape == (12,)
    assert out.report == {"batches": 3}


def one_pixel(i: int = 0) -> nn.Module:
    """BatchNorm over a single value an image, which one image cannot measure."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(i)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize(("size", "batches"), [(9, 2), (8, 2), (1, 0)])
def test_a_batch_too_small_to_be_normalised_is_left_out(size: int, batches: int) -> None:
    client = make_client(size, make_learner(one_pixel))
    out = measure_statistics(client, w=first_weights(client.learner), batch_size=4)
    assert out.report["batches"] == batches
