"""The two fleets, each started once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rayfl.fleet.base import BaseFleet
from rayfl.fleet.inline import InlineFleet
from rayfl.fleet.on_ray.ray_fleet import RayFleet
from tests.fleet.toys import await_actors, cleared, holdings, ray_fleet, spec


@pytest.fixture(scope="session")
def pool(cluster: None) -> Iterator[BaseFleet]:
    """Two actors."""
    fleet = ray_fleet(2)
    yield fleet
    fleet.close()


@pytest.fixture
def on_ray(pool: BaseFleet) -> BaseFleet:
    return cleared(pool)


@pytest.fixture
def ray_pool(on_ray: BaseFleet) -> RayFleet:
    """With both actors there: on a busy machine one that an earlier test killed takes its time."""
    assert isinstance(on_ray, RayFleet)
    await_actors(on_ray)
    on_ray.seconds_per_sample = 0.0
    on_ray.expectation.known.clear()
    return on_ray


@pytest.fixture
def here() -> Iterator[BaseFleet]:
    fleet = InlineFleet(spec(), holdings())
    yield fleet
    fleet.close()


@pytest.fixture(params=["here", "on_ray"])
def fleet(request: pytest.FixtureRequest) -> BaseFleet:
    """Each fleet in turn: they differ in nothing but speed."""
    found: BaseFleet = request.getfixturevalue(request.param)
    return found
