"""Components validate themselves; registries find, build and describe them."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, ValidationError

from rayfl.algorithms.fedavg import FedAvg
from rayfl.algorithms.parts.weighting import Equal
from rayfl.component import (
    Count,
    Fraction,
    Natural,
    NonNegative,
    Positive,
    Registry,
    component,
    import_path,
    is_all_ours,
    slot,
)
from rayfl.config.files import read_file
from rayfl.errors import ConfigError
from rayfl.learn.losses.base import CrossEntropy

HERE = __name__


@component
class OwnFedAvg(FedAvg):
    """A method of somebody else's."""


@component
class OwnLoss(CrossEntropy):
    """A loss of somebody else's."""


def print_nothing() -> None:
    """A function of somebody else's."""


@component
class Wheel:
    """A part with one setting of each kind."""

    radius: Positive = 1.0
    spokes: Count = 8
    worn: Fraction = 0.0


@component
class Square:
    side: NonNegative
    rolls: Natural = 0


PARTS: Registry[Any] = Registry(
    "part", {"wheel": f"{HERE}:Wheel", "square": f"{HERE}:Square", "lost": "no.such:Part"}
)


@component
class Cart:
    wheel: Annotated[Any, slot(PARTS)] = Wheel()
    load: int = 0


class Shop(BaseModel):
    cart: Annotated[Any, slot(PARTS)]


# -- components ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        ({"radius": 0}, "greater than 0"),
        ({"radius": float("inf")}, "finite"),
        ({"spokes": 0}, "greater than or equal to 1"),
        ({"spokes": 2.5}, "valid integer"),
        ({"worn": 1.01}, "less than or equal to 1"),
        ({"worn": float("nan")}, "finite|greater than or equal to 0|less than or equal to 1"),
        ({"worn": "much"}, "valid number"),
        ({"colour": "red"}, "(?i)unexpected keyword"),
    ],
    ids=str,
)
def test_settings_are_validated(bad: dict[str, Any], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        Wheel(**bad)


def test_components_are_frozen_values() -> None:
    assert Wheel(spokes=4) == Wheel(spokes=4) != Wheel()
    assert hash(Wheel()) == hash(Wheel())
    with pytest.raises(dataclasses.FrozenInstanceError, match="spokes"):
        Wheel().spokes = 3  # type: ignore[misc]


def test_settings_are_given_by_name() -> None:
    with pytest.raises((TypeError, ValidationError), match=r"(?i)positional"):
        Wheel(2.0)  # type: ignore[call-arg]


def test_settings_without_default_are_required() -> None:
    with pytest.raises(ValidationError, match=r"(?i)field required|missing"):
        Square()  # type: ignore[call-arg]


# -- registries ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "spec",
    ["wheel", {"name": "wheel"}, f"{HERE}:Wheel", {"name": f"{HERE}:Wheel", "spokes": 8}, Wheel()],
    ids=str,
)
def test_a_part_is_a_name_or_a_mapping_or_a_path_or_itself(spec: Any) -> None:
    assert PARTS.build(spec) == Wheel()


@pytest.mark.parametrize("spec", [None, 3, [], {}, {"spokes": 3}, {"name": 3}, Wheel], ids=str)
def test_anything_else_is_refused(spec: Any) -> None:
    with pytest.raises(ConfigError, match="a part is a name or a mapping with the key 'name'; got"):
        PARTS.build(spec)


def test_an_unknown_name_comes_with_the_nearest_and_all_others() -> None:
    match = (
        r"unknown part 'weel'\. Did you mean 'wheel'\? "
        r"Known: lost, square, wheel; or write an import path"
    )
    with pytest.raises(ConfigError, match=match):
        PARTS.find("weel")


def test_an_unknown_name_that_resembles_nothing() -> None:
    with pytest.raises(ConfigError, match=r"unknown part 'xyz'\. Known: lost"):
        PARTS.find("xyz")


@pytest.mark.parametrize(
    ("path", "match"),
    [
        (
            "no_such_package.module:Name",
            "there is no module 'no_such_package.module' on the Python path",
        ),
        ("rayfl.no_such:Name", "there is no module 'rayfl.no_such' on the Python path"),
        (
            "rayfl.errors:ConfigEror",
            "module 'rayfl.errors' has no 'ConfigEror'. Did you mean 'ConfigError'",
        ),
        ("rayfl.errors:", "module 'rayfl.errors' has no ''"),
        (":Name", "importing '' failed"),
        (
            "lame:Name",
            "part 'lame:Name' needs the package 'not_installed_either', which is not installed",
        ),
        ("broken_one:Name", "importing 'broken_one' failed: "),
    ],
)
def test_a_path_that_leads_nowhere_says_which_half(
    path: str, match: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lame.py").write_text("import not_installed_either\n")
    (tmp_path / "broken_one.py").write_text("def f(:\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    with pytest.raises(ConfigError, match=match):
        import_path(path, "part")


def test_naming_a_part_imports_nothing_until_it_is_used() -> None:
    assert PARTS.names() == ["lost", "square", "wheel"]
    with pytest.raises(ConfigError, match=r"there is no module 'no\.such'"):
        PARTS.find("lost")


@pytest.mark.parametrize(
    "part", [Wheel(), Wheel(spokes=3, worn=0.5), Square(side=2), Cart(wheel=Square(side=1), load=2)]
)
def test_what_is_described_is_built_again(part: Any) -> None:
    assert PARTS.build(PARTS.describe(part)) == part


@pytest.mark.parametrize(("part", "name"), [(Wheel(), "wheel"), (Cart(), f"{HERE}:Cart")])
def test_descriptions_prefer_the_short_name(part: Any, name: str) -> None:
    assert PARTS.describe(part)["name"] == name


# -- slots -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["square", {"name": "square"}], ids=str)
def test_a_refusal_inside_carries_the_keys_path(spec: Any) -> None:
    with pytest.raises(ValidationError, match=r"(?s)cart.*side"):
        Shop(cart=spec)


@pytest.mark.parametrize(
    ("spec", "match"), [("weel", "Did you mean 'wheel'"), (4, "a part is a name or a mapping")]
)
def test_a_slot_that_cannot_be_filled_is_a_validation_error(spec: Any, match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        Shop(cart=spec)


def test_parts_within_parts_are_written_by_name() -> None:
    shop = Shop(cart={"name": f"{HERE}:Cart", "wheel": {"name": "square", "side": 2}})
    assert shop.cart == Cart(wheel=Square(side=2))
    dumped = shop.model_dump(mode="json")
    assert dumped["cart"]["wheel"] == {"name": "square", "side": 2.0, "rolls": 0}
    assert Shop(**dumped) == shop


# -- where modules of one's own lie ----------------------------------------------------------------


def test_a_module_that_is_nowhere_is_refused_with_the_folders_that_were_looked_in(
    tmp_path: Path, home: Path
) -> None:
    (tmp_path / "configs").mkdir()
    path = tmp_path / "configs" / "run.yaml"
    path.write_text("clients: 3")
    read_file(path)
    rule = (
        "method 'nowhere:X': there is no module 'nowhere' on the Python path, beside the "
        f"configuration in {path.parent} or in the working directory {home}"
    )
    with pytest.raises(ConfigError, match=f"^{re.escape(rule)}$"):
        import_path("nowhere:X", "method")


def test_a_module_beside_a_configuration_is_found_until_the_next_configuration_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mine", "base", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.yaml").write_text("clients: 3")
        (tmp_path / name / f"module_of_{name}.py").write_text("class Here: pass")
    (tmp_path / "mine" / "run.yaml").write_text("base: ../base/run.yaml")
    before = list(sys.path)
    read_file(tmp_path / "mine" / "run.yaml")
    for name in ("mine", "base"):
        assert import_path(f"module_of_{name}:Here", "method").__name__ == "Here"
    read_file(tmp_path / "other" / "run.yaml")
    assert [entry for entry in sys.path if entry not in before] == [str(tmp_path / "other")]
    # What Python puts first stays first.
    assert sys.path[0] == before[0]


# -- whose code it is ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "ours"),
    [
        (FedAvg(), True),
        (FedAvg(weighting=Equal()), True),
        ({"training": [FedAvg(), "sgd", 0.1]}, True),
        (Wheel(), False),
        ([FedAvg(), {"parts": (Wheel(),)}], False),
        (FedAvg(loss=OwnLoss()), False),
        (OwnFedAvg(), False),
        (print_nothing, False),
    ],
)
def test_code_from_outside_is_found_however_deep_it_lies(value: object, ours: bool) -> None:
    assert is_all_ours(value) is ours
