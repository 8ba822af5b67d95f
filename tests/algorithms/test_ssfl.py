"""SSFL: its groups, what everybody counts in them, and a network without batch statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.ssfl import SSFL, Grouped, meet, normalise_in_groups, split_at_random
from rayfl.protocol import SERVER
from tests.algorithms.conformance import Row
from tests.algorithms.semi_toys import SERVED, STRONG, run_row
from tests.algorithms.toys import fleet_of_numbers, leave

METHOD: dict[str, Any] = {
    "name": "ssfl",
    "server_epochs": 2,
    "local": {"name": "fixmatch", "strong": STRONG},
}

ROWS = [
    Row(
        "ssfl",
        METHOD,
        {**SERVED, "training": {**SERVED["training"], "rounds": 6}},
        # Of one group it does not matter which model its clients begin with, nor who trains for it.
        neutral={**METHOD, "groups": 1, "start": "group", "replicas": "independent"},
        same_as={**METHOD, "groups": 1, "start": "global", "replicas": "once"},
        refused=[
            ({"groups": 0}, "groups"),
            ({"start": "server"}, "start"),
            ({"replicas": "twice"}, "replicas"),
            ({"normaliser": -1}, "normaliser"),
        ],
    )
]


def test_the_server_is_in_every_group() -> None:
    """Server 10, users 1 and 2, users 3 and 4."""
    fleet = fleet_of_numbers([1, 1, 1, 1, 1])
    numbers = {SERVER: [10.0], **{client: [float(client)] for client in range(5)}}
    clients = fleet.map(leave, [1, 2, 3, 4], models=numbers)
    got = fleet.map(leave, [SERVER], models=numbers) | clients
    teams = SSFL().form_teams([[1, 2], [3, 4]], clients)
    of_groups = [fleet.get(got.mean(team))[0] for team in teams]
    assert of_groups == pytest.approx([13 / 3, 17 / 3])
    assert fleet.get(got.mean(meet(teams)))[0] == pytest.approx(5)
    (one,) = SSFL(groups=1).form_teams([[1, 2, 3, 4]], clients)
    assert fleet.get(got.mean(meet([one])))[0] == pytest.approx(4)


def test_what_everybody_counts() -> None:
    """Of five clients in two groups the server has more than a sixth, and groups are unequal."""
    teams = [{SERVER: 1.0, 0: 1.0, 1: 1.0, 2: 1.0}, {SERVER: 1.0, 3: 1.0, 4: 1.0}]
    weights = meet(teams)
    assert weights[SERVER] == pytest.approx(0.291667, abs=1e-6)
    assert (weights[0], weights[3]) == pytest.approx((1 / 8, 1 / 6))
    assert sum(weights.values()) == pytest.approx(1)


def test_an_empty_group_is_the_servers_model() -> None:
    fleet = fleet_of_numbers([1])
    clients = fleet.map(leave, [0], models={0: [3.0]})
    assert SSFL().form_teams([[0], []], clients)[1] == {SERVER: 1.0}


@pytest.mark.parametrize(("clients", "sizes"), [(5, [3, 2]), (1, [1, 0]), (20, [10, 10])])
def test_groups_are_drawn_anew(clients: int, sizes: list[int]) -> None:
    drawn = [split_at_random(list(range(clients)), 2, np.random.default_rng(i)) for i in range(2)]
    for groups in drawn:
        assert [len(group) for group in groups] == sizes
        assert sorted(client for group in groups for client in group) == list(range(clients))
    assert (drawn[0] != drawn[1]) == (clients > 1)


def test_group_normalisation_by_hand() -> None:
    norm = nn.GroupNorm(1, 4)
    x = torch.tensor([1.0, 2.0, 3.0, 6.0]).view(1, 4, 1, 1)
    expected = [-1.069043, -0.534522, 0.0, 1.603565]
    assert norm(x).flatten().tolist() == pytest.approx(expected, abs=1e-5)
    torch.testing.assert_close(norm(5 * x), norm(x), atol=1e-5, rtol=0)


def test_every_batchnorm_is_replaced() -> None:
    """By 32 groups, or as many as divide the channels."""
    inner = nn.Sequential(nn.Conv2d(1, 6, 1), nn.BatchNorm2d(6))
    net = normalise_in_groups(nn.Sequential(inner, nn.Conv2d(6, 64, 1), nn.BatchNorm2d(64)), 32)
    norms = [module for module in net.modules() if isinstance(module, nn.GroupNorm)]
    assert [(norm.num_groups, norm.num_channels) for norm in norms] == [(2, 6), (32, 64)]
    assert not any(isinstance(module, nn.BatchNorm2d) for module in net.modules())
    x = torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(net(x)[:1], net(x[:1]))


def test_clients_begin_with_their_groups_model(tmp_path: Path) -> None:
    hashes = {
        run_row(ROWS[0], tmp_path, 2, f"{start} {replicas}", method=settings).sha256
        for start in ("group", "global")
        for replicas in ("once", "independent")
        for settings in ({"start": start, "replicas": replicas},)
    }
    assert len(hashes) == 4


def test_the_first_round_begins_with_one_model() -> None:
    fleet = fleet_of_numbers([1])
    state = SSFL().init(fleet, fleet.put(np.zeros(1, np.float32)))
    assert isinstance(state, Grouped)
    assert state.groups == ()


@pytest.mark.parametrize("replicas", ["once", "independent"])
def test_what_a_round_costs(replicas: str, tmp_path: Path) -> None:
    outcome = run_row(
        ROWS[0], tmp_path, 3, replicas, method={"pretraining": 3, "replicas": replicas}
    )
    metrics = [record["metrics"] for record in outcome.history]
    assert [found["clients/participants"] for found in metrics] == [0, 0, 4]
    times = 2 if replicas == "independent" else 1
    assert [found["cost/server_backward"] for found in metrics] == [80, 40, 80 * times]
    assert metrics[2]["cost/up_mb"] == metrics[2]["cost/down_mb"]
