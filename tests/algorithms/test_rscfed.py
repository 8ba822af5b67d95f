"""RSCFed: its subsets, their weights and its clients' teachers, against hand-computed numbers and
the authors' code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rayfl.algorithms.parts.distance_weighting import dampen_by_size, find_distances
from rayfl.algorithms.rscfed import RSCFed, follow_teacher
from rayfl.learn.distance import measure_distance
from rayfl.learn.losses.squared_error import squared_error
from rayfl.learn.mixing import sharpen
from rayfl.learn.resident import Resident
from rayfl.learn.schedules import warm_decay
from rayfl.protocol import SERVER, Client, Out, Vector
from tests.algorithms.conformance import Row
from tests.algorithms.semi_toys import SERVED, run_row
from tests.algorithms.toys import fleet_of_numbers, leave
from tests.learn.kit import first_weights, make_client, make_learner
from tests.phases import run_phase

METHOD: dict[str, Any] = {"name": "rscfed", "server_epochs": 2, "ema": 0.9, "pretraining": 2}

# Adam takes steps of one size however little a loss weighs, so that clients would go astray.
PLAIN = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9, "normalise": "dataset", "rounds": 6}

ROWS = [
    Row(
        "rscfed",
        METHOD,
        {**SERVED, "training": PLAIN},
        # No beta, no teacher: means by size of the same three clients in each subset.
        neutral={**METHOD, "beta": 0.0, "subsets": 1, "subset_size": 4, "server_share": "size"},
        same_as={**METHOD, "beta": 0.0, "subsets": 1, "subset_size": 9, "server_share": "size"},
        refused=[
            ({"subsets": 0}, "subsets"),
            ({"beta": -1}, "beta"),
            ({"temperature": 0}, "temperature"),
            ({"server_share": 1.0}, "server_share"),
            ({"server_share": "half"}, "server_share"),
            ({"ema": 1.5}, "ema"),
        ],
    )
]


def model_of(k: int) -> Vector:
    """What the authors' functions were run on: two tensors, 2 x 3 and 3."""
    steps = np.arange(6.0) * (k + 1), np.arange(3.0) * (k + 1)
    return np.concatenate([np.sin(steps[0]), np.cos(steps[1])]).astype(np.float32)


def test_figures_of_the_authors_code() -> None:
    """FedAvg.py's FedAvg and model_dist, and the lines of train_main.py that make
    clt_freq_this_meta_dist, xmed-lab/RSCFed @ ae35f03, on four models of sizes 100, 150, 200 and
    250, with a factor of 100."""
    sizes = dict(enumerate((100.0, 150.0, 200.0, 250.0)))
    tensors = nn.ParameterList([torch.zeros(2, 3), torch.zeros(3)])
    network = Resident(tensors, torch.device("cpu"))
    models = [model_of(k) for k in sizes]
    mean = np.average(models, axis=0, weights=list(sizes.values())).astype(np.float32)
    far = {k: measure_distance(network, models[k], mean).total for k in sizes}
    assert list(far.values()) == pytest.approx([2.867089, 2.596181, 1.967887, 1.586258], abs=1e-5)
    omega = list(dampen_by_size(sizes, far, 100.0).values())
    assert omega == pytest.approx([0.0237355, 0.1109121, 0.3120814, 0.5532710], abs=1e-5)


def test_sharpening_and_the_distance_to_it() -> None:
    target = sharpen(torch.tensor([[0.5, 0.3, 0.2]]), 0.5)
    assert target[0].tolist() == pytest.approx([0.657895, 0.236842, 0.105263], abs=1e-6)
    student = torch.tensor([[0.4, 0.4, 0.2]]).log()
    gap = squared_error(student, target).sum()
    assert (gap.item(), 0.02 * gap.item()) == pytest.approx((0.102105, 0.002042), abs=1e-6)


@pytest.mark.parametrize(
    ("n", "expected"), [(0, 0), (1, 0.5), (9, 0.9), (999, 0.999), (5000, 0.999)]
)
def test_how_much_of_a_teacher_stays(n: int, expected: float) -> None:
    assert warm_decay(n, 0.999) == pytest.approx(expected)


def test_a_first_teacher_is_the_student_after_its_first_step() -> None:
    """It begins as what the client got, and its counter and optimiser go on with it."""
    client = make_client(16, make_learner(batch_size=16, lr=0.1, momentum=0.9), labels=False)
    w = first_weights(client.learner)
    out = run_phase(follow_teacher, client, w=w, method=RSCFed(strength=1.0))
    assert isinstance(out.update, np.ndarray)
    assert out.state["steps"] == out.report["steps"] == 1
    assert np.array_equal(out.state["teacher"], out.update)
    assert len(out.state["optimiser"])


def test_a_short_batch_counts_by_the_nominal_size() -> None:
    """A quarter of a batch has a quarter of the gradient."""
    moved = []
    for size in (4, 16):
        client = make_client(4, make_learner(batch_size=size, lr=0.1, momentum=0.0), labels=False)
        w = first_weights(client.learner)
        state = {"teacher": first_weights(client.learner, 1), "steps": 3}
        visited = Client(0, client.x, None, state, client.rng, client.learner, classes=3)
        method = RSCFed(strength=1.0, clip=None)
        out = run_phase(follow_teacher, visited, w=w, method=method)
        assert isinstance(out.update, np.ndarray)
        moved.append(out.update - w)
    np.testing.assert_allclose(moved[0], 4 * moved[1], atol=1e-6)
    assert np.abs(moved[0]).max() > 1e-4


TEAM = {SERVER: 100.0, 0: 150.0, 1: 150.0}
FAR = {SERVER: 4.0, 0: 1.0, 1: 1.0}


@pytest.mark.parametrize(
    ("settings", "server"),
    [
        ({}, 0.5),
        ({"server_share": 0.2}, 0.2),
        ({"server_share": "size"}, 0.25),
        ({"server_share": "size", "server_factor": 6.0}, 600 / 900),
        ({"server_share": "distance", "beta": 0.0}, 0.25),
    ],
)
def test_the_servers_part_of_a_subset(settings: dict[str, Any], server: float) -> None:
    omega = RSCFed(**settings).weigh_team(TEAM, FAR)
    assert omega[SERVER] == pytest.approx(server)
    assert omega[0] == omega[1] == pytest.approx((1 - server) / 2)


def test_by_distance_a_server_with_few_labels_starves() -> None:
    """Far from a mean that it has little part in, and with few images to excuse it."""
    omega = RSCFed(server_share="distance").weigh_team(TEAM, FAR)
    assert omega[SERVER] < 0.01


def test_a_subset_of_the_server_alone() -> None:
    assert RSCFed().weigh_team({SERVER: 3.0}, {SERVER: 0.0}) == {SERVER: 1.0}


def test_weights_are_those_of_the_mean_of_the_subsets() -> None:
    """They sum to 1, the server's is its share of each, and subsets are drawn anew every round."""
    fleet = fleet_of_numbers([3, 3, 3, 3, 3])
    fleet.sets["labelled"] = 4
    method = RSCFed()
    numbers = {client: [float(client)] for client in (SERVER, *range(5))}
    got = fleet.map(leave, [SERVER], models=numbers) | fleet.map(leave, range(5), models=numbers)
    weights = method.weigh_subsets(got, fleet, 0)
    assert sum(weights.values()) == pytest.approx(1)
    assert weights[SERVER] == pytest.approx(0.5)
    assert fleet.take_logged() == {"weights/server": pytest.approx(0.5)}
    teams = method.draw_teams(got, fleet, 0)
    assert [len(team) for team in teams] == [4, 4, 4]
    assert all(team[SERVER] == 4 for team in teams)
    assert teams == method.draw_teams(got, fleet, 0) != method.draw_teams(got, fleet, 1)


def test_one_of_several_updates_is_measured() -> None:
    fleet = fleet_of_numbers([1, 1])
    got = fleet.map(leave_two, [0, 1])
    found = find_distances(got, [fleet.put(np.zeros(1, np.float32))], key="w")
    assert {client: gaps.tolist() for client, gaps in found.items()} == {0: [0.0], 1: [1.0]}


def leave_two(client: Client) -> Out:
    """A model, and something else of another length."""
    return Out(update={"w": np.full(1, client.id, np.float32), "memory": np.zeros(3, np.float32)})


def test_fine_tuning_comes_after_the_average(tmp_path: Path) -> None:
    at_once = {"pretraining": 0}
    tuned = run_row(ROWS[0], tmp_path, 2, "tuned", method={**at_once, "finetune": True})
    beside = run_row(ROWS[0], tmp_path, 2, "beside", method=at_once)
    metrics = tuned.history[1]["metrics"]
    assert metrics["weights/server"] == 0
    assert beside.history[1]["metrics"]["weights/server"] == pytest.approx(0.5)
    assert tuned.sha256 != beside.sha256


def test_passes_of_a_round(tmp_path: Path) -> None:
    """Student and teacher see every image, and only the student's way goes back."""
    found = run_row(ROWS[0], tmp_path, 1, method={"pretraining": 0}).history[0]["metrics"]
    assert found["cost/forward"] == 2 * found["cost/backward"]
    assert found["cost/server_backward"] == 80
    assert found["cost/up_mb"] == pytest.approx(found["cost/down_mb"], rel=0.01)


def test_clients_rest_while_the_server_pretrains(tmp_path: Path) -> None:
    outcome = run_row(ROWS[0], tmp_path, 3, method={"pretraining": 3})
    found = [record["metrics"]["clients/participants"] for record in outcome.history]
    assert found == [0, 0, 4]
