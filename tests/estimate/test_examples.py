from __future__ import annotations

import doctest
import importlib
import inspect

import pytest

import rayfl.estimate

MODULES = [
    "clustering",
    "dawid_skene",
    "gaussian_mixture",
    "label_correction",
    "label_quality",
    "lid",
    "mixture",
    "neighbour_votes",
    "neighbours",
    "probabilities",
    "scaling",
    "subspace",
]
RESULTS = {"Calibration", "Correction", "MixtureFit", "SelectionQuality", "Spectra", "LossSplit"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_are_true(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(f"rayfl.estimate.{name}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0


@pytest.mark.parametrize("name", sorted(set(rayfl.estimate.__all__) - RESULTS))
def test_every_public_name_shows_an_example(name: str) -> None:
    assert ">>>" in (inspect.getdoc(getattr(rayfl.estimate, name)) or "")
