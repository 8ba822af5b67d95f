"""Listings of what a configuration can name: none is left out, and each says what it has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import rayfl
from rayfl import cli
from rayfl.commands.listings import LISTINGS
from rayfl.commands.registries import find_registry

ROOT = Path(rayfl.__file__).parent
DEFINED = re.compile(r"^(\w+)(?:: .*)? = Registry\(", re.MULTILINE)


def find_registries() -> set[str]:
    """The homes of all registries of the package, as their sources have them."""
    found = set()
    for path in ROOT.rglob("*.py"):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        module = ".".join(parts).removesuffix(".__init__")
        found |= {f"{module}:{name}" for name in DEFINED.findall(path.read_text())}
    return found


def test_every_registry_can_be_listed() -> None:
    found = find_registries()
    assert found
    listed = {listing.home for listing in LISTINGS.values()}
    assert found == listed, "each registry has a row in rayfl/commands/listings.py"


@pytest.mark.parametrize("plural", LISTINGS)
def test_every_component_says_what_it_is(plural: str) -> None:
    result = CliRunner().invoke(cli.rayfl, [plural], catch_exceptions=False)
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines] == find_registry(plural).names()
    assert all(len(line.split()) > 2 for line in lines)


@pytest.mark.parametrize("plural", LISTINGS)
def test_one_component_is_shown_with_its_settings(plural: str) -> None:
    name = find_registry(plural).names()[0]
    result = CliRunner().invoke(cli.rayfl, [plural, name], catch_exceptions=False)
    assert result.output.startswith(f"{name}\n\n")
    assert "\nsettings:\n  " in result.output


@pytest.mark.parametrize("plural", LISTINGS)
def test_the_help_says_what_is_listed(plural: str) -> None:
    result = CliRunner().invoke(cli.rayfl, [plural, "--help"], catch_exceptions=False)
    assert LISTINGS[plural].subject in " ".join(result.output.split())


def test_a_method_says_what_its_metrics_mean() -> None:
    result = CliRunner().invoke(cli.rayfl, ["methods", "client_selection"], catch_exceptions=False)
    assert "\nmetrics of its own:\n  noise_ratio/noise_correlation: Pearson's" in result.output
