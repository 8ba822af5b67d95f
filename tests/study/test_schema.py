"""What a study file may say, and how it is told what it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfl.errors import ConfigError
from rayfl.study.cells import load_study
from rayfl.study.schema import FIGURES, Score, apply_changes, is_meant
from tests.study.tiny import study, study_file, write


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"titel": "x"}, "titel is not a known key. Did you mean 'title'?"),
        ({"axes": {"method": {"x": {}}}}, "axes.method.x.title is required and missing"),
        (
            {"axes": {"method": {"gain": {"difference": ["fedprox", "fedavgg"]}}}},
            "Did you mean 'fedavg'?",
        ),
        (
            {"axes": {"method": {"gain": {"difference": ["gain", "fedavg"]}}}},
            "computed from choices of method that are",
        ),
        (
            {"table": {"rows": ["methods"]}},
            "table names axes .*; got methods. Did you mean 'method'?",
        ),
        (
            {"exclude": [{"noise": "dirty"}]},
            "exclude name axes and their choices; got noise: dirty",
        ),
        (
            {"rules": [{"when": {"nose": "clean"}, "set": {}}]},
            "got nose: clean. Did you mean 'noise'?",
        ),
        ({"figures": ["curve"]}, "figures.0: must be 'curves'.*Did you mean 'curves'?"),
        ({"seeds": []}, "seeds"),
        ({"scores": {"accuracy": {"over": "worst"}}}, "scores.accuracy.over"),
        ({"scaling": {"least": {"clients": -1}}}, "scaling.least.clients"),
    ],
)
def test_a_mistake_is_named_with_its_place(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        study(tmp_path, changes)


def test_a_study_needs_axes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="axes is required and missing"):
        load_study(write(tmp_path / "s.yaml", {"title": "x"}))


def test_a_study_of_one_axis_and_a_title_has_defaults(tmp_path: Path) -> None:
    found = load_study(
        write(tmp_path / "s.yaml", {"title": "x", "axes": {"method": {"a": {"title": "A"}}}})
    )
    assert found.seeds == [0, 1, 2]
    assert found.scores == {"accuracy": Score(title="accuracy (%)", percent=True)}
    assert found.table.rows == ["method"]
    assert found.printed is None


@pytest.mark.parametrize("name", FIGURES)
def test_the_reports_figures_may_be_asked_for(tmp_path: Path, name: str) -> None:
    assert study(tmp_path, {"figures": [name]}).figures == [name]


def test_axes_are_shown_rows_first_and_the_unnamed_last(tmp_path: Path) -> None:
    more = {"axes": {"extra": {"one": {"title": "one"}}}}
    assert study(tmp_path, more).shown_axes() == ["method", "noise", "extra"]


@pytest.mark.parametrize(
    ("settings", "changes", "expected"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}, {"a": {"b": 3, "c": 2}}),
        ({"a": {"b": 1, "c": 2}}, {"a.b": 3}, {"a": {"b": 3, "c": 2}}),
        ({"m": "fedprox"}, {"m.mu": 1}, {"m": {"name": "fedprox", "mu": 1}}),
        (
            {"split": {"public": {"fraction": 0.1}}},
            {"split.public": {"total": 5}},
            {"split": {"public": {"total": 5}}},
        ),
        ({"m": {"name": "x", "k": 1}}, {"m": {"name": "y"}}, {"m": {"name": "y"}}),
        ({"a": 1}, {}, {"a": 1}),
    ],
)
def test_changes_merge_and_dotted_keys_replace(
    settings: dict[str, Any], changes: dict[str, Any], expected: dict[str, Any]
) -> None:
    before = repr(settings)
    assert apply_changes(settings, changes) == expected
    assert repr(settings) == before


@pytest.mark.parametrize(
    ("combination", "holds"),
    [
        ({"a": "x"}, True),
        ({"a": ["y", "x"]}, True),
        ({"a": "x", "b": "q"}, False),
        ({}, True),
        ({"b": ["q"]}, False),
    ],
)
def test_a_combination_means_cells(combination: dict[str, str | list[str]], holds: bool) -> None:
    assert is_meant(combination, {"a": "x", "b": "z"}) is holds


def test_a_missing_base_is_named(tmp_path: Path) -> None:
    found = load_study(study_file(tmp_path, {"base": "nowhere.yaml"}))
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        _ = found.common
