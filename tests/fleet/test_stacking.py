"""Who is visited together, and that a phase cannot tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rayfl.errors import PhaseError
from rayfl.fleet.inline import InlineFleet
from rayfl.fleet.stacking import TRIAL_CLIENTS, Lockstep, Pace
from rayfl.learn.fit import fit, outputs
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Fit, Training
from rayfl.learn.training import LocalTraining, Normalisation
from rayfl.protocol import Client, Out, Vector
from tests.fleet.toys import CLIENTS, holdings, network, spec


def left_to_the_place(client: Client, *, w: Vector) -> Training[Out]:
    """Trains twice, and looks at its data in between."""
    once = yield Fit(w)
    seen = outputs(client.learner, once, client.x)
    twice = yield Fit(once)
    return Out(
        {"n": len(client), "seen": float(np.abs(seen).sum())}, update=twice, state={"w": twice}
    )


def by_itself(client: Client, *, w: Vector) -> Out:
    once = fit(client, w)
    seen = outputs(client.learner, once, client.x)
    twice = fit(client, once)
    return Out(
        {"n": len(client), "seen": float(np.abs(seen).sum())}, update=twice, state={"w": twice}
    )


def fails_at_three(client: Client, *, w: Vector) -> Training[Out]:
    local = yield Fit(w)
    if client.id == 3:
        raise ValueError("three is odd")
    return Out({"n": 1}, update=local)


def fleet_with(stack: Any) -> InlineFleet:
    training = LocalTraining(stack=stack, batch_size=2, epochs=2, lr=0.1)
    made = replace(spec(), make_learner=lambda: Learner(network, training, Normalisation()))
    return InlineFleet(made, holdings())


def weights() -> Vector:
    return np.linspace(-1, 1, 15, dtype=np.float32)


def test_a_phase_that_leaves_training_to_the_place_has_the_bits_of_one_that_trains() -> None:
    one, other = fleet_with("never"), fleet_with("never")
    left, own = (
        one.map(left_to_the_place, CLIENTS, w=weights()),
        other.map(by_itself, CLIENTS, w=weights()),
    )
    assert dict(left) == dict(own)
    everyone = dict.fromkeys(CLIENTS, 1.0)
    assert one.get(left.mean(everyone)).tobytes() == other.get(own.mean(everyone)).tobytes()
    assert one.costs == other.costs


def test_together_differs_by_rounding_only_and_costs_the_same() -> None:
    one, other = fleet_with("never"), fleet_with("always")
    apart, together = (
        one.map(left_to_the_place, CLIENTS, w=weights()),
        other.map(left_to_the_place, CLIENTS, w=weights()),
    )
    everyone = dict.fromkeys(CLIENTS, 1.0)
    assert list(apart) == list(together)
    assert [report["seen"] for report in together.values()] == pytest.approx(
        [r["seen"] for r in apart.values()], rel=1e-4
    )
    np.testing.assert_allclose(
        other.get(together.mean(everyone)), one.get(apart.mean(everyone)), rtol=1e-4, atol=1e-6
    )
    assert one.costs == other.costs
    assert one.costs.backward == 2 * 2 * sum(one.size(client) for client in CLIENTS)


@pytest.mark.parametrize("stack", ["never", "always"])
def test_the_client_that_raises_is_named(stack: str) -> None:
    with pytest.raises(PhaseError, match=r"(?s)in round 0.*three is odd"):
        fleet_with(stack).map(fails_at_three, CLIENTS, w=weights())


# -- how many together -----------------------------------------------------------------------------


def lockstep(
    stack: Any, alone: list[float] | None = None, together: list[float] | None = None
) -> Lockstep:
    made = Lockstep(Learner(network, LocalTraining(stack=stack), Normalisation()))
    made.paces = {"alone": Pace(alone or []), "together": Pace(together or [])}
    return made


@pytest.mark.parametrize(
    ("made", "waiting", "group"),
    [
        (lockstep("never"), 50, 0),
        (lockstep("always"), 50, 50),
        (lockstep("always"), 1, 1),
        (lockstep("auto"), 50, 0),
        (lockstep("auto", [9.0]), 50, 0),
        (lockstep("auto", [9.0, 0.5]), 50, TRIAL_CLIENTS),
        (lockstep("auto", [9.0, 0.5], [0.1]), 50, TRIAL_CLIENTS),
        (lockstep("auto", [9.0, 0.5], [3.0, 0.4]), 50, 50),
        (lockstep("auto", [9.0, 0.5], [0.1, 0.6]), 50, 0),
    ],
)
def test_auto_tries_both_and_keeps_what_is_faster(made: Lockstep, waiting: int, group: int) -> None:
    assert made.group(left_to_the_place, waiting) == group


def test_a_phase_that_trains_by_itself_is_never_stacked() -> None:
    assert lockstep("always").group(by_itself, 50) == 0


def test_the_first_reading_warms_up_and_old_ones_are_forgotten() -> None:
    pace = Pace()
    for seconds in (5.0, 3.0, 2.0):
        pace.add(seconds)
    assert pace.seconds == 2.0
    for _ in range(20):
        pace.add(4.0)
    assert pace.seconds == 4.0
