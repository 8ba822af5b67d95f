"""Printed figures: which row belongs to which score, and formulas as numbers."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from rayfl.errors import ConfigError, DataError
from rayfl.study.cells import list_cells
from rayfl.study.printed_figures import find_printed, parse_number
from tests.study.tiny import WHERE, study

SYMBOLS = {"M": 1, "F": 1, "B": 1, "e": 5, "k": 2, "m": 2}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("95.57", 95.57),
        ("+1.41", 1.41),
        ("-7.24", -7.24),
        ("50,000", 50000),
        ("M", 1),
        ("2eF", 10),
        ("(k + 1)M", 3),
        ("(e + 2k + 1)F", 10),
        ("(4m + 2)eF + 2eB", 60),
        ("(k + e)B", 7),
        ("eF + eB", 10),
    ],
)
def test_numbers_and_formulas(text: str, value: float) -> None:
    assert parse_number(text, SYMBOLS) == pytest.approx(value)


@pytest.mark.parametrize(
    "text", ["-", "", "~20%", "xF", "M if M else F", "__import__('os')", "e ** e", "(k"]
)
def test_what_is_no_number(text: str) -> None:
    assert math.isnan(parse_number(text, SYMBOLS))


def test_a_formula_without_symbols_is_no_number() -> None:
    assert math.isnan(parse_number("2eF"))


def test_every_cell_finds_its_row(tmp_path: Path) -> None:
    found = {
        cell.key: find_printed(cell, cell.scores["accuracy"])
        for cell in list_cells(study(tmp_path))
    }
    assert (found["fedavg", "clean"].mean, found["fedavg", "clean"].std) == ("90.00", "1.0")
    assert found["fedavg", "noisy"].value == 80.0
    assert found["gain", "clean"].mean == "+1.50"
    assert found["rhfl", "clean"].mean == "-"
    assert math.isnan(found["rhfl", "clean"].value)
    assert found["fedprox", "clean"].mean == ""
    assert [figure.row for figure in found.values()] == [0, 1, None, None, 2, None, 3, None]


def test_a_choice_may_be_called_otherwise_in_print(tmp_path: Path) -> None:
    renamed = {"axes": {"noise": {"clean": {"title": "no noise", "printed": "clean"}}}}
    first = list_cells(study(tmp_path, renamed))[0]
    assert find_printed(first, first.scores["accuracy"]).mean == "90.00"


def test_a_study_without_printed_figures(tmp_path: Path) -> None:
    first = list_cells(study(tmp_path, {"printed": None}))[0]
    assert find_printed(first, first.scores["accuracy"]).row is None


def test_a_score_fits_one_row_at_most(tmp_path: Path) -> None:
    first = list_cells(
        study(tmp_path, {"printed": {"file": "printed.csv", "where": {"method": "{method}"}}})
    )[0]
    with pytest.raises(ConfigError, match="fits one row of the file at most; got 2"):
        find_printed(first, first.scores["accuracy"])


def test_braces_name_axes(tmp_path: Path) -> None:
    first = list_cells(
        study(
            tmp_path, {"printed": {"file": "printed.csv", "where": {**WHERE, "method": "{metod}"}}}
        )
    )[0]
    with pytest.raises(
        ConfigError,
        match=r"names axes in braces \(method, noise, score\); got 'metod'. Did you mean",
    ):
        find_printed(first, first.scores["accuracy"])


def test_a_missing_file_of_figures_is_named(tmp_path: Path) -> None:
    first = list_cells(study(tmp_path, {"printed": {"file": "gone.csv", "where": WHERE}}))[0]
    with pytest.raises(DataError, match=r"gone\.csv"):
        find_printed(first, first.scores["accuracy"])
