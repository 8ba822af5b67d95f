"""Longest first, one list an actor, a shrinking tail; nothing is lost and nothing done twice."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from rayfl.fleet.on_ray.placement import (
    CALL_SECONDS,
    GRAIN_SECONDS,
    HEAD_SHARE,
    HandOutPlan,
    deal_longest_first,
)

Job = tuple[int, float]


def seconds(job: Job) -> float:
    return job[1]


def plan_of(times: Sequence[float], actors: int) -> HandOutPlan[Job]:
    return HandOutPlan(list(enumerate(times)), seconds, actors)


def drained(plan: HandOutPlan[Job]) -> list[list[Job]]:
    lists = []
    while plan:
        lists.append(plan.next())
    return lists


TIMES = st.lists(st.floats(1e-6, 100), max_size=60)


@given(TIMES, st.integers(1, 9))
@settings(deadline=None)
def test_no_task_is_lost_or_done_twice(times: list[float], actors: int) -> None:
    lists = drained(plan_of(times, actors))
    assert sorted(job for jobs in lists for job in jobs) == list(enumerate(times))
    assert all(lists)


@given(TIMES.filter(bool), st.integers(1, 5), st.data())
@settings(deadline=None)
def test_tasks_that_are_put_back_come_again(
    times: list[float], actors: int, data: st.DataObject
) -> None:
    plan, finished, deaths = plan_of(times, actors), [], 5
    while plan:
        batch = plan.next()
        if deaths and data.draw(st.booleans()):
            deaths -= 1
            plan.put_back(batch)
        else:
            finished += batch
    assert sorted(finished) == list(enumerate(times))


@given(TIMES.filter(bool), st.integers(1, 9))
@settings(deadline=None)
def test_every_actor_begins_with_something(times: list[float], actors: int) -> None:
    plan = plan_of(times, actors)
    assert len(plan.heads) == min(actors, len(times))


@given(TIMES, st.integers(1, 9))
@settings(deadline=None)
def test_the_heads_are_the_longest(times: list[float], actors: int) -> None:
    plan = plan_of(times, actors)
    shortest = min((seconds(job) for head in plan.heads for job in head), default=0.0)
    assert all(seconds(job) <= shortest for job in plan.tail)
    assert [seconds(job) for job in plan.tail] == sorted(map(seconds, plan.tail), reverse=True)


def test_longest_go_to_the_least_loaded() -> None:
    ordered = [(i, s) for i, s in enumerate([7.0, 5.0, 4.0, 3.0, 1.0])]
    heads, rest = deal_longest_first(ordered, [job[1] for job in ordered], 2, budget=100)
    assert [[job[0] for job in head] for head in heads] == [[0, 3], [1, 2, 4]]
    assert rest == []


def test_the_tail_is_small_and_shrinks() -> None:
    plan = plan_of([1.0] * 100, 4)
    assert sum(map(len, plan.heads)) == HEAD_SHARE * 100
    sizes = [len(jobs) for jobs in drained(plan)[4:]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 2
    assert sizes[-1] == 1


def test_short_work_is_handed_out_at_once() -> None:
    """Below the grain a further call costs more than it balances."""
    assert len(drained(plan_of([GRAIN_SECONDS / 100] * 50, 2))) == 2


def test_pieces_of_the_tail_are_worth_a_call() -> None:
    lists = drained(plan_of([GRAIN_SECONDS / 10] * 1000, 2))
    assert all(sum(map(seconds, jobs)) > GRAIN_SECONDS * 0.85 for jobs in lists[2:-1])


@pytest.mark.parametrize("actors", [2, 4, 8])
def test_a_skewed_cohort_ends_close_to_the_ideal(actors: int) -> None:
    """Actors that take the next list when idle finish together, though the predicted times are 30 %
    off."""
    rng = np.random.default_rng(actors)
    times = rng.lognormal(0, 1.2, 100)
    plan, clocks = plan_of(times.tolist(), actors), [0.0] * actors
    real = times * rng.uniform(0.7, 1.3, 100)
    while plan:
        first = int(np.argmin(clocks))
        clocks[first] += sum(real[job] for job, _ in plan.next())
    assert max(clocks) <= 1.15 * max(real.sum() / actors, real.max())


@pytest.mark.parametrize("tasks", [0, 1])
def test_more_actors_than_tasks(tasks: int) -> None:
    assert len(drained(plan_of([1.0] * tasks, 5))) == tasks


def test_hundreds_of_actors_get_lists_that_last_until_all_were_sent_one() -> None:
    """A tail of small pieces would come back faster than one coordinator can send."""
    actors = 256
    lists = drained(plan_of([0.02] * 100 * actors, actors))
    tail = lists[actors:-1]
    assert len(lists) < 4 * actors
    assert all(sum(map(seconds, jobs)) > CALL_SECONDS * actors - 0.02 for jobs in tail)
