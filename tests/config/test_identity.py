"""What a run is known by: a hash of its settings that a new setting does not change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field

from rayfl.component import Fraction, Registry, component, neutral, slot, without_neutral
from rayfl.config.schema import Config, load_config, validate_config

CONFIGS = Path(__file__).parents[2] / "configs"
FROZEN = {
    "quickstart.yaml": "8b21d6d8950579228cd62bcaf35bdf50b2b31423cc89cd37001d9bc9a454d09e",
    "methods/fb_nll.yaml": "f4a269d890374d7fe725b60290ec7c189f417295570e37e48b40b6861bb1a972",
    "methods/fedcr.yaml": "456bb7bdef6e8d23fa07cf9752a08f69cf70f7e9f70426aa394dab08193e6503",
    "methods/fedds.yaml": "51ab660454265e0b80a79b8a1e5955381ea736d18e96ed547e5a59b4770aac26",
    "paper/fedrn_cifar10.yaml": "7a1025a5f233e098057c9c1b8c3936a0d18b754013954ee755b54ccea368a237",
    "paper/fedds_cifar100.yaml": "b455717687f9ec11c6f733c182e9bfb09685acb27a8cceee849ee951dc678a1b",
}
"""Digests of runs that people have stored. A change here orphans them: declare a neutral value for
a new setting instead."""


WITHOUT = {"paper/fedrn_cifar10.yaml": ["method.judging_batch=null"]}
"""What a file asks for since its run was stored: without it, it is that run."""


def load_stored(name: str) -> Config:
    return load_config(CONFIGS / name, WITHOUT.get(name, []))


@pytest.mark.parametrize("name", FROZEN)
def test_stored_runs_are_known_for_ever(name: str) -> None:
    assert load_stored(name).digest == FROZEN[name]


@pytest.mark.parametrize("name", WITHOUT)
def test_what_a_file_asks_for_since_then_makes_another_run(name: str) -> None:
    assert load_config(CONFIGS / name).digest != FROZEN[name]


def test_so_is_the_default() -> None:
    default = "89deaa0f87d77644f40c6252cefad84b6f02344b659f31ab9049101dc3fa3365"
    assert Config().digest == default


class Speed(BaseModel):
    """A section that did not exist when the runs were stored."""

    lanes: Annotated[int, neutral(1)] = 1
    mode: Annotated[str, neutral("plain")] = "plain"


class Grown(Config):
    """The configuration of a later version."""

    clip: Annotated[float | None, neutral(None)] = None
    speed: Speed = Field(default_factory=Speed)


@pytest.mark.parametrize("name", FROZEN)
def test_a_new_setting_with_a_neutral_value_orphans_nothing(name: str) -> None:
    stored = load_stored(name)
    settings = {**stored.model_dump(exclude={"method", "model", "noise"})}
    later = Grown.model_validate({**settings, **stored.resolved()})
    assert later.digest == FROZEN[name]


@pytest.mark.parametrize(
    "more", [{"clip": 1.0}, {"speed": {"lanes": 2}}, {"speed": {"mode": "quick"}}]
)
def test_with_another_value_it_is_another_run(more: Mapping[str, Any]) -> None:
    digests = {Grown(**settings).digest for settings in ({}, more)}
    assert len(digests) == 2


@pytest.mark.parametrize(
    "quick",
    [
        {"precision": "bf16"},
        {"stack": "auto"},
        {"layout": "channels_first"},
        {"kernels": "reached"},
        {"compile": "default"},
    ],
    ids=str,
)
def test_settings_of_speed_count_where_they_change_bits(quick: Mapping[str, Any]) -> None:
    assert validate_config({"training": quick}).digest != Config().digest


# -- the mechanism ---------------------------------------------------------------------------------


@component
class Loss:
    """Has a neutral setting itself."""

    smoothing: Annotated[Fraction, neutral(0.0)] = 0.0
    scale: float = 1.0


LOSSES: Registry[Loss] = Registry("loss", {"plain": f"{__name__}:Loss"})


@component
class Averaging:
    """A slot with a neutral component."""

    loss: Annotated[Any, slot(LOSSES), neutral("plain")] = Field(
        default="plain", validate_default=True
    )
    other: Annotated[Any, slot(LOSSES)] = Field(default="plain", validate_default=True)


METHODS: Registry[Averaging] = Registry("method", {"averaging": f"{__name__}:Averaging"})


def decisive(spec: Mapping[str, Any]) -> dict[str, Any]:
    built = METHODS.build({"name": "averaging", **spec})
    return without_neutral(built, METHODS.describe(built))


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ({}, {"other": {"name": "plain", "scale": 1.0}}),
        (
            {"loss": {"name": "plain", "smoothing": 0.1}},
            {
                "loss": {"name": "plain", "smoothing": 0.1, "scale": 1.0},
                "other": {"name": "plain", "scale": 1.0},
            },
        ),
        (
            {"loss": {"name": "plain", "scale": 2.0}},
            {
                "loss": {"name": "plain", "scale": 2.0},
                "other": {"name": "plain", "scale": 1.0},
            },
        ),
        (
            {"other": {"name": "plain", "smoothing": 0.5}},
            {"other": {"name": "plain", "smoothing": 0.5, "scale": 1.0}},
        ),
    ],
)
def test_it_goes_down_into_components(spec: Mapping[str, Any], kept: Mapping[str, Any]) -> None:
    assert decisive(spec) == {"name": "averaging", **kept}


def test_equal_is_not_enough_where_a_hash_is_made() -> None:
    class Odd(BaseModel):
        number: Annotated[Any, neutral(1)] = 1

    assert without_neutral(Odd(), {"number": 1}) == {}
    assert without_neutral(Odd(number=True), {"number": True}) == {"number": True}
    assert without_neutral(Odd(number=1.0), {"number": 1.0}) == {"number": 1.0}
