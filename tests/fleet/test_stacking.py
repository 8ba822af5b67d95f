"""Who is visited together, and that a phase cannot tell."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfl.errors import PhaseError, RayflError
from rayfl.fleet.inline import InlineFleet
from rayfl.fleet.stacking import TRIAL_CLIENTS, Pace, StackingPolicy
from rayfl.learn.batches import Batch
from rayfl.learn.fit import compute_outputs
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Fit, Fitting, Pull
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.protocol import Client, Out, Replies, Vector
from tests.fleet.toys import CLIENTS, holdings, network, spec


def train_twice(client: Client, *, w: Vector) -> Fitting[Out]:
    """Trains twice, and looks at its data in between."""
    once = yield Fit(w)
    seen = compute_outputs(client.learner, once.weights, client.x)
    twice = yield Fit(once.weights)
    report = {"seen": float(np.abs(seen).sum()), "samples": twice.samples}
    return Out(report, update=twice.weights, state={"w": twice.weights})


def draw_after_training(client: Client, *, w: Vector) -> Fitting[Out]:
    """Draws from its own and every global stream before, between and after two trainings."""
    drawn = [[*draw_globally(), client.rng.random()]]
    for _ in range(2):
        w = (yield Fit(w)).weights
        drawn.append([*draw_globally(), client.rng.random()])
    return Out({"drawn": drawn}, update=w)


def draw_globally() -> list[float]:
    return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002


def train_beside_a_teacher(client: Client, *, w: Vector) -> Fitting[Out]:
    """A wish that can be stacked, one that a loaded teacher makes unstackable, and another that
    can."""
    once = (yield Fit(w, pull=Pull(w, 0.1))).weights
    own = once + np.float32(client.id)
    teacher = client.learner.resident(own, "teacher").net.eval()
    answers: list[float] = []

    def distil(net: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            wanted = teacher(batch.x)
        answers.append(float(wanted.sum()))
        gap: Tensor = net(batch.x) - wanted
        return gap.square().mean()

    twice = yield Fit(once, loss=distil)
    third = yield Fit(twice.weights)
    return Out({"answers": answers}, update=third.weights)


def use_a_teacher_of_an_earlier_training(client: Client, *, w: Vector) -> Fitting[Out]:
    client.learner.resident(w, "teacher")
    trained = yield Fit(w)
    client.learner.resident(name="teacher")
    return Out(update=trained.weights)


def train_odd_ones_otherwise(client: Client, *, w: Vector) -> Fitting[Out]:
    """Clients that end early, wish for other kinds, or for what cannot be stacked."""
    if client.id == 0:
        return Out(update=w)
    if client.id == 1:
        trained = yield Fit(w, schedule=lambda step: 0.5)
    elif client.id == 3:
        trained = yield Fit(w, clip=0.1)
    else:
        trained = yield Fit(w)
        trained = yield Fit(trained.weights, after_step=lambda resident: None)
    return Out({"steps": trained.steps}, update=trained.weights)


def fail_at_three(client: Client, *, w: Vector) -> Fitting[Out]:
    trained = yield Fit(w)
    if client.id == 3:
        raise ValueError("three is odd")
    return Out(update=trained.weights)


def yield_weights(client: Client, *, w: Vector) -> Any:
    trained = yield w
    return Out(update=trained)


def fleet_with(stack: Any) -> InlineFleet:
    training = LocalTraining(stack=stack, batch_size=2, epochs=2, lr=0.1)
    made = replace(spec(), make_learner=lambda: Learner(network, training, Normalisation()))
    return InlineFleet(made, holdings())


def weights() -> Vector:
    return np.linspace(-1, 1, 15, dtype=np.float32)


def assert_same_updates(
    one: tuple[InlineFleet, Replies], other: tuple[InlineFleet, Replies]
) -> None:
    """Client by client, but for rounding; and at the same costs."""
    (here, mine), (there, theirs) = one, other
    assert list(mine) == list(theirs)
    for client in mine:
        expected = here.get(mine.ref(client))
        found = there.get(theirs.ref(client))
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert here.costs == there.costs


def run_both(phase: Any) -> tuple[tuple[InlineFleet, Replies], tuple[InlineFleet, Replies]]:
    """Alone and together."""
    found = []
    for stack in ("never", "always"):
        fleet = fleet_with(stack)
        found.append((fleet, fleet.map(phase, CLIENTS, w=weights())))
    return found[0], found[1]


def test_together_differs_by_rounding_only_and_costs_the_same() -> None:
    alone, together = run_both(train_twice)
    assert_same_updates(alone, together)
    seen = [report["seen"] for report in together[1].values()]
    assert seen == pytest.approx([report["seen"] for report in alone[1].values()], rel=1e-4)
    fleet = alone[0]
    samples = [2 * fleet.size(client) for client in CLIENTS]
    assert [report["samples"] for report in together[1].values()] == samples
    # Two trainings of two epochs, and one look in between.
    assert fleet.costs.backward == 2 * sum(samples)
    assert fleet.costs.forward == 2 * sum(samples) + sum(samples) // 2


def test_what_cannot_be_stacked_is_carried_out_alone_and_nothing_leaks() -> None:
    """Every client's teacher is its own, whoever else is visited at the same time."""
    alone, together = run_both(train_beside_a_teacher)
    assert_same_updates(alone, together)
    for client, report in together[1].items():
        expected = alone[1][client]["answers"]
        assert report["answers"] == pytest.approx(expected, rel=1e-3, abs=1e-4)
    assert len({str(report["answers"]) for report in together[1].values()}) == len(CLIENTS)


def test_kinds_and_lengths_of_phases_may_be_mixed() -> None:
    alone, together = run_both(train_odd_ones_otherwise)
    assert_same_updates(alone, together)
    assert "steps" not in together[1][0]


@pytest.mark.parametrize("stack", ["never", "always"])
def test_what_was_loaded_before_a_training_is_refused_after_it(stack: str) -> None:
    with pytest.raises(RayflError, match=r"given weights before it is used in a visit.*'teacher'"):
        fleet_with(stack).map(use_a_teacher_of_an_earlier_training, CLIENTS, w=weights())


def test_draws_after_a_training_do_not_tell_how_it_was_carried_out() -> None:
    """`auto` decides by measured speed, which must not decide what is drawn."""
    found = []
    for count in (0, 1, 2, 5):
        fleet = fleet_with("auto")
        fleet.executor.policy.count_together = lambda phase, waiting, n=count: min(n, waiting)  # type: ignore[method-assign, misc]
        got = fleet.map(draw_after_training, CLIENTS, w=weights())
        found.append({client: report["drawn"] for client, report in got.items()})
        fleet.close()
    assert found[0] == found[1] == found[2] == found[3]
    drawn = [number for report in found[0].values() for part in report for number in part]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.parametrize("stack", ["never", "always"])
def test_the_client_that_raises_is_named(stack: str) -> None:
    with pytest.raises(PhaseError, match=r"(?s)in round 0.*three is odd"):
        fleet_with(stack).map(fail_at_three, CLIENTS, w=weights())


@pytest.mark.parametrize("stack", ["never", "always"])
def test_what_is_no_wish_is_refused(stack: str) -> None:
    rule = r"a phase that trains yields Fit\(weights, ...\); got ndarray\. Wrap the weights in one"
    with pytest.raises(RayflError, match=rule):
        fleet_with(stack).map(yield_weights, CLIENTS, w=weights())


# -- how many together -----------------------------------------------------------------------------


def policy(
    stack: Any, alone: list[float] | None = None, together: list[float] | None = None
) -> StackingPolicy:
    made = StackingPolicy(Learner(network, LocalTraining(stack=stack), Normalisation()))
    made.paces = {"alone": Pace(alone or []), "together": Pace(together or [])}
    return made


@pytest.mark.parametrize(
    ("made", "waiting", "group"),
    [
        (policy("never"), 50, 0),
        (policy("always"), 50, 50),
        (policy("always"), 1, 1),
        (policy("auto"), 50, 0),
        (policy("auto", [9.0]), 50, 0),
        (policy("auto", [9.0, 0.5]), 50, TRIAL_CLIENTS),
        (policy("auto", [9.0, 0.5], [0.1]), 50, TRIAL_CLIENTS),
        (policy("auto", [9.0, 0.5], [3.0, 0.4]), 50, 50),
        (policy("auto", [9.0, 0.5], [0.1, 0.6]), 50, 0),
    ],
)
def test_auto_tries_both_and_keeps_what_is_faster(
    made: StackingPolicy, waiting: int, group: int
) -> None:
    assert made.count_together(train_twice, waiting) == group


def look(client: Client) -> Out:
    return Out({"size": len(client)})


def test_a_phase_that_does_not_train_is_never_stacked() -> None:
    assert policy("always").count_together(look, 50) == 0


@pytest.mark.parametrize(("phase", "readings"), [(look, 0), (train_twice, 5)])
def test_only_trainings_are_measured(phase: Any, readings: int) -> None:
    """A look at every update would make clients look faster alone than any stack."""
    fleet = fleet_with("never")
    inputs: dict[str, Any] = {"w": weights()} if phase is train_twice else {}
    fleet.map(phase, CLIENTS, **inputs)
    assert len(fleet.executor.policy.paces["alone"].readings) == readings


def test_the_first_reading_warms_up_and_old_ones_are_forgotten() -> None:
    pace = Pace()
    for seconds in (5.0, 3.0, 2.0):
        pace.add(seconds)
    assert pace.seconds == 2.0
    for _ in range(20):
        pace.add(4.0)
    assert pace.seconds == 4.0
