"""The points that a sweep spans, and the configurations they are."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from rayfl.config.files import parse_yaml
from rayfl.errors import ConfigError
from rayfl.tuning.driver import sweep as run_sweep
from rayfl.tuning.points import (
    config_of,
    format_values,
    plan_points,
    refuse_bad_points,
    settings_of,
)
from rayfl.tuning.result import _quote_overrides
from rayfl.tuning.schema import Domain
from tests.tuning.tiny import FEDPROX, sweep_for


def test_a_grid_is_every_combination_and_draws_are_made_at_each_of_its_points(
    tmp_path: Path,
) -> None:
    grid = sweep_for(
        tmp_path,
        {"training.lr": {"grid": [1, 2]}, "method": {"grid": ["fedavg", FEDPROX]}},
        samples=9,
    )
    assert [point.label for point in plan_points(grid)] == [
        "training.lr=1 method=fedavg",
        "training.lr=1 method={name: fedprox, mu: 0.1}",
        "training.lr=2 method=fedavg",
        "training.lr=2 method={name: fedprox, mu: 0.1}",
    ]
    search = {"training.lr": {"grid": [1, 2]}, "training.momentum": {"uniform": [0, 0.5]}}
    mixed = sweep_for(tmp_path, search, searcher="random", samples=3)
    points = plan_points(mixed)
    assert [point.values["training.lr"] for point in points] == [1, 1, 1, 2, 2, 2]
    assert len({point.values["training.momentum"] for point in points}) == 6
    assert points == plan_points(mixed), (
        "the same draws every time: a resumed sweep has the same points"
    )
    assert points != plan_points(mixed.model_copy(update={"seed": 1}))


bounds = st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)).filter(
    lambda pair: pair[1] > 1.01 * pair[0]
)


@given(
    pair=bounds,
    kind=st.sampled_from(["uniform", "loguniform"]),
    seed=st.integers(0, 99),
    factor=st.floats(0.1, 9),
)
def test_draws_and_changes_stay_within_bounds(
    pair: tuple[float, float], kind: str, seed: int, factor: float
) -> None:
    domain = Domain(**{kind: pair})
    value = domain.draw(np.random.default_rng(seed))
    for number in (value, domain.within(value * factor), *domain.corners()):
        assert pair[0] * (1 - 1e-12) <= number <= pair[1] * (1 + 1e-12)


@pytest.mark.parametrize(
    ("domain", "all_values"),
    [
        ({"randint": [2, 5]}, {2, 3, 4}),
        ({"quniform": [0.05, 0.35, 0.1]}, {0.1, 0.2, 0.3}),
        ({"choice": ["a", FEDPROX["mu"]]}, {"a", 0.1}),
    ],
)
def test_a_domain_has_just_these_values(domain: dict[str, Any], all_values: set[Any]) -> None:
    rng, made = np.random.default_rng(0), Domain(**domain)
    assert {made.draw(rng) for _ in range(200)} == all_values
    assert {*made.corners()} <= all_values
    if made.values is None:
        assert {made.within(value * 7) for value in all_values} == {max(all_values)}


def test_a_mapping_is_laid_onto_the_base_and_a_component_of_another_name_replaces_it(
    tmp_path: Path,
) -> None:
    sweep = sweep_for(
        tmp_path, {"method": {"grid": [FEDPROX]}}, set={"method": {"name": "fedprox", "mu": 1}}
    )
    assert settings_of(sweep, {"method": {"mu": 2}}, 0)["method"] == {"name": "fedprox", "mu": 2}
    assert settings_of(sweep, {"method": {"name": "fedavg"}}, 0)["method"] == {"name": "fedavg"}
    assert settings_of(sweep, {"method.mu": 3, "training": {"lr": 0.2}}, 4)["training"] == {
        "rounds": 4,
        "lr": 0.2,
    }
    assert config_of(sweep, {"training.lr": 0.2}, 4).seed == 4


def test_bad_points_are_all_named_before_anything_is_written(tmp_path: Path) -> None:
    sweep = sweep_for(
        tmp_path / "out",
        {"training.lr": {"grid": [0.1, -1]}, "method": {"grid": ["fedavg", "fedx"]}},
    )
    with pytest.raises(
        ConfigError, match="3 of 4 points are no configuration; nothing was started"
    ) as refused:
        run_sweep(sweep)
    assert "training.lr=-1 method=fedavg seed=0:\n  training.lr: must be greater than" in str(
        refused.value
    )
    assert "unknown method 'fedx'" in str(refused.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("searcher", ["optuna", "random"])
def test_the_ends_of_a_range_are_tried_before_a_search_that_asks_as_it_goes(
    tmp_path: Path, searcher: str
) -> None:
    search = {"training.momentum": {"uniform": [0, 1]}}
    sweep = sweep_for(
        tmp_path, search, searcher=searcher, scheduler="none" if searcher == "optuna" else "pbt"
    )
    with pytest.raises(ConfigError, match=r"training\.momentum: must be less than 1; got 1"):
        refuse_bad_points(sweep, plan_points(sweep))


json_values = st.recursive(
    st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text("ab: '\"{}[],#", max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3)
    ),
    max_leaves=5,
)


@given(value=json_values)
def test_overrides_say_exactly_the_point_to_a_shell(value: Any) -> None:
    (word,) = shlex.split(_quote_overrides({"a.b": value}))
    path, _, text = word.partition("=")
    assert (path, parse_yaml(text, "")) == ("a.b", value)
    assert "\n" not in format_values({"a.b": value})
