"""Cells: the product of the axes, their settings, filters, and studies that are like others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rayfl.errors import ConfigError
from rayfl.study.cells import (
    Cell,
    apply_overrides,
    find_choice,
    is_study,
    list_cells,
    load_study,
    parse_filters,
)
from tests.study.tiny import study, study_file, write


def keys(found: list[Cell]) -> list[tuple[str, ...]]:
    return [cell.key for cell in found]


def test_cells_are_the_product_in_the_order_of_the_axes(tmp_path: Path) -> None:
    found = list_cells(study(tmp_path))
    methods = ["fedavg", "fedprox", "gain", "rhfl"]
    assert keys(found) == [(method, noise) for method in methods for noise in ("clean", "noisy")]
    assert [cell.runs for cell in found] == [True] * 4 + [False] * 4
    assert found[-1].missing == "RHFL is not built"
    assert found[1].label == "FedAvg, noisy"


def test_excluded_combinations_are_no_cells(tmp_path: Path) -> None:
    found = list_cells(
        study(tmp_path, {"exclude": [{"method": ["fedprox", "gain"], "noise": "noisy"}]})
    )
    assert ("fedprox", "noisy") not in keys(found)
    assert ("gain", "noisy") not in keys(found)
    assert len(found) == 6


def test_settings_grow_from_base_to_rules(tmp_path: Path) -> None:
    write(tmp_path / "base.yaml", {"training": {"lr": 0.5, "momentum": 0.9}, "clients": 7})
    changes = {
        "base": "base.yaml",
        "rules": [
            {"when": {"method": "fedprox", "noise": "noisy"}, "set": {"method.mu": 0.7}},
            {"when": {"method": ["fedavg"]}, "set": {"clients": 3}},
        ],
    }
    settings = {cell.key: cell.settings() for cell in list_cells(study(tmp_path, changes))}
    assert settings["fedavg", "clean"]["training"] == {
        "lr": 0.1,
        "momentum": 0.9,
        "rounds": 2,
        "batch_size": 64,
    }
    assert settings["fedavg", "clean"]["clients"] == 3
    assert settings["fedprox", "clean"]["clients"] == 4
    assert settings["fedprox", "clean"]["method"] == {"name": "fedprox", "mu": 0.5}
    assert settings["fedprox", "noisy"]["method"] == {"name": "fedprox", "mu": 0.7}
    assert settings["fedprox", "noisy"]["noise"] == {"name": "symmetric", "rate": 0.4}


def test_a_computed_cell_names_its_parts(tmp_path: Path) -> None:
    gain = next(cell for cell in list_cells(study(tmp_path)) if cell.key == ("gain", "noisy"))
    assert gain.computed == "method"
    assert keys(gain.parts()) == [("fedprox", "noisy"), ("fedavg", "noisy")]
    assert not gain.runs


def test_a_choice_replaces_scores_of_its_cells(tmp_path: Path) -> None:
    own = {"accuracy": {"title": "F1", "metric": "test/macro_f1"}}
    found = list_cells(study(tmp_path, {"axes": {"noise": {"noisy": {"scores": own}}}}))
    assert [cell.scores["accuracy"].title for cell in found[:2]] == ["accuracy (%)", "F1"]


# -- filters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["method=fedavg"], [("fedavg", "clean"), ("fedavg", "noisy")]),
        (["method=fedavg,rhfl", "noise=noisy"], [("fedavg", "noisy"), ("rhfl", "noisy")]),
        (["method=fedavg", "method=rhfl", "noise=clean"], [("fedavg", "clean"), ("rhfl", "clean")]),
        (["method=FedProx", "noise=clean"], [("fedprox", "clean")]),
        # What a difference is computed from comes along.
        (
            ["method=gain", "noise=clean"],
            [("fedavg", "clean"), ("fedprox", "clean"), ("gain", "clean")],
        ),
    ],
)
def test_only_keeps_what_it_names(
    tmp_path: Path, words: list[str], expected: list[tuple[str, ...]]
) -> None:
    found = study(tmp_path)
    assert sorted(keys(list_cells(found, parse_filters(found, words)))) == sorted(expected)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        (
            "methd=fedavg",
            r"a filter names an axis \(method, noise\); got methd. Did you mean 'method'?",
        ),
        (
            "method=fedavgg",
            "method is one of fedavg, fedprox, gain, rhfl; got fedavgg. Did you mean 'fedavg'?",
        ),
        ("method", "a filter has the form axis=choice"),
        ("method=", "a filter has the form axis=choice"),
    ],
)
def test_a_wrong_filter_names_the_nearest(tmp_path: Path, word: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_filters(study(tmp_path), [word])


def test_a_title_shared_by_two_choices_means_neither(tmp_path: Path) -> None:
    found = study(
        tmp_path, {"axes": {"noise": {"noisy": {"title": "same"}, "clean": {"title": "same"}}}}
    )
    with pytest.raises(ConfigError, match="noise is one of clean, noisy; got same"):
        find_choice(found, "noise", "same")


def test_overrides_hold_for_plain_settings() -> None:
    assert apply_overrides({"a": {"b": 1}}, ["a.b=2", "c=[1]"]) == {"a": {"b": 2}, "c": [1]}


# -- studies that are like others ------------------------------------------------------------------


def like(folder: Path, changes: dict[str, Any]) -> Path:
    study_file(folder)
    return write(folder / "other.yaml", {"like": "tiny.yaml", **changes})


def test_a_study_may_be_like_another(tmp_path: Path) -> None:
    changes = {
        "title": "Other",
        "set": {"clients": 6},
        "axes": {
            "noise": None,
            "method": {"fedavg": {"title": "FedAvg"}},
            "size": {"s": {"title": "S"}},
        },
        "table": {"columns": []},
        "printed": {"where": {"table": "U"}},
    }
    found = load_study(like(tmp_path, changes))
    assert found.title == "Other"
    assert list(found.axes) == ["method", "size"]
    assert list(found.axes["method"]) == ["fedavg"]
    assert found.common["clients"] == 6
    assert found.common["data"] == "digits"
    assert found.printed is not None
    assert found.printed.where["table"] == "U"
    assert found.printed.file == str(tmp_path / "printed.csv")


def test_a_study_takes_the_printed_figures_away(tmp_path: Path) -> None:
    assert load_study(like(tmp_path, {"title": "x", "printed": None})).printed is None


def test_files_are_found_from_another_folder(tmp_path: Path) -> None:
    study_file(tmp_path, {"base": "base.yaml"})
    write(tmp_path / "base.yaml", {"clients": 9, "seed": 3})
    found = load_study(write(tmp_path / "deep" / "other.yaml", {"like": "../tiny.yaml"}))
    assert found.common["seed"] == 3


def test_likeness_must_not_lead_back(tmp_path: Path) -> None:
    path = write(tmp_path / "a.yaml", {"like": "a.yaml"})
    with pytest.raises(ConfigError, match="`like` must not lead back to itself"):
        load_study(path)


def test_like_is_a_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="`like` is the name of a study file; got 3"):
        load_study(write(tmp_path / "a.yaml", {"like": 3}))


@pytest.mark.parametrize(
    ("settings", "expected"), [({"axes": {}}, True), ({"like": "x"}, True), ({"data": "x"}, False)]
)
def test_a_study_file_is_told_from_a_runs(
    tmp_path: Path, settings: dict[str, Any], expected: bool
) -> None:
    assert is_study(write(tmp_path / "x.yaml", settings)) is expected
