"""Messages about configurations: the key's path, what is allowed, the value, the nearest
spelling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rayfl.component import WIDEST, show_value
from rayfl.config.explain import (
    SHOWN,
    is_branch,
    known_keys,
    list_fields,
    phrase_rule,
)
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError


def message(settings: Mapping[str, Any]) -> list[str]:
    """The lines of the refusal, without the first that names the file."""
    with pytest.raises(ConfigError, match=r"^here:\n") as refusal:
        validate_config(settings, "here")
    return [line.strip() for line in str(refusal.value).splitlines()[1:]]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"training": {"lr": -1}}, "training.lr: must be greater than or equal to 0; got -1"),
        ({"clients": 0}, "clients: must be greater than or equal to 1; got 0"),
        (
            {"round": 5},
            "round is not a known key. Did you mean 'training.rounds'? Known here: "
            + ", ".join(known_keys(Config, {}, [])),
        ),
        (
            {"clients": 3, "training": {"clients_per_round": 4}},
            "the configuration: training.clients_per_round is at most clients (3); got 4. Lower "
            "it, or set more clients",
        ),
        (
            {"clients": 2.5},
            "clients: must be a valid integer, got a number with a fractional part; got 2.5",
        ),
        ({"training": 3}, "training: must be a valid dictionary or instance of Training; got 3"),
        (
            {"device": "gpu"},
            "device: must be 'auto', 'cpu' or 'cuda'; got 'gpu'. Did you mean 'cpu'?",
        ),
        ({"labels": "tru"}, "labels: must be 'true' or 'given'; got 'tru'. Did you mean 'true'?"),
        (
            {"partition": {"name": "dirichlet", "alpha": 0}},
            "partition.alpha: must be greater than 0; got 0",
        ),
        (
            {"model": {"name": "mlp", "hidden": [5, 0]}},
            "model.hidden.1: must be greater than or equal to 1; got 0",
        ),
        ({"noise": "symmetric"}, "noise.rate is required and missing"),
        ({"noise": 7}, "noise: a noise is a name or a mapping with the key 'name'; got 7"),
        ({"tracking": {"tags": {"a": 1}}}, "tracking.tags.a: must be a valid string; got 1"),
        (
            {"training": {"fraction": 0.5, "clients_per_round": 3}},
            "training: give fraction or clients_per_round, not both; "
            "got {'clients_per_round': 3, 'fraction': 0.5}",
        ),
        (
            {"seed": 1 << 63},
            "seed: must be less than 9223372036854775808; got 9223372036854775808",
        ),
    ],
)
def test_one_sentence_says_path_rule_and_value(settings: Mapping[str, Any], line: str) -> None:
    assert message(settings) == [line]


@pytest.mark.parametrize(
    ("settings", "start", "known"),
    [
        (
            {"traning": {}},
            "traning is not a known key. Did you mean 'training'? Known here: ",
            "tracking, training",
        ),
        (
            {"training": {"lrr": 1}},
            "training.lrr is not a known key. Did you mean 'lr'? Known here: augment",
            "steps",
        ),
        (
            {"training": {"a-(b": 1}},
            "training.a-(b is not a known key. Known here: augment",
            "steps",
        ),
        ({"X-y": 1}, "X-y is not a known key. Known here: bits, checkpoint", "clients"),
        (
            {"model": {"name": "mlp", "hiden": [3]}},
            "model.hiden is not a known key. Did you mean 'hidden'? Known here: ",
            "hidden",
        ),
        (
            {"method": {"name": "fedavg", "weighting": {"name": "size", "x": 1}}},
            "method.weighting.x is not a known key. Known here: none",
            "",
        ),
        (
            {"training": {"normalise": {"men": [0.5]}}},
            "training.normalise.men is not a known key. Did you mean 'mean'? Known here: mean, std",
            "",
        ),
        (
            {"method": "fedavgg"},
            "method: unknown method 'fedavgg'. Did you mean 'fedavg'? Known: ",
            "fedavg, fed",
        ),
        (
            {"method": {"name": "fedavg", "weighting": "siz"}},
            "method.weighting: unknown weighting 'siz'. Did you mean 'size'? Known: ",
            "import path such as my_package.my_module:Name",
        ),
    ],
)
def test_an_unknown_word_comes_with_the_nearest_and_all_known(
    settings: Mapping[str, Any], start: str, known: str
) -> None:
    line = message(settings)[0]
    assert line.startswith(start)
    assert known in line


def test_everything_that_is_wrong_is_said_at_once() -> None:
    lines = message({"clients": 0, "training": {"lr": -1, "rouns": 2}, "noise": "sym"})
    assert [line.split(":")[0].split(" ")[0] for line in lines] == [
        "clients",
        "noise",
        "training.lr",
        "training.rouns",
    ]


def test_long_lists_of_mistakes_are_cut() -> None:
    lines = message({f"wrong{i}": i for i in range(SHOWN + 4)})
    assert len(lines) == SHOWN + 1
    assert lines[-1] == "... and 4 more"


def test_keys_that_are_not_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="here: keys are text"):
        validate_config({1: 2}, "here")  # type: ignore[dict-item]


@pytest.mark.parametrize(
    "value", ["x" * 1000, list(range(1000)), {"a": "x" * 1000}, 1 << 4000, {"d": [["e"] * 99] * 9}]
)
def test_values_are_shown_short(value: object) -> None:
    assert len(show_value(value)) <= WIDEST


@pytest.mark.parametrize("value", [0, None, "word", [1, "a"], {"a": 1}])
def test_short_values_are_shown_whole(value: object) -> None:
    assert show_value(value) == repr(value)


@pytest.mark.parametrize(
    ("part", "branch"),
    [
        ("constrained-int", True),
        ("function-plain[f()]", True),
        ("Normalisation", True),
        ("literal['auto']", True),
        ("training", False),
        (3, False),
        ("a b-c", False),
    ],
)
def test_branches_of_unions_are_no_keys(part: object, branch: bool) -> None:
    assert is_branch(part) is branch


@pytest.mark.parametrize(
    ("rule", "sentence"),
    [
        ("be greater than 0", "must be greater than 0"),
        ("have at least 1 item", "must have at least 1 item"),
        ("give one, not both", "give one, not both"),
    ],
)
def test_rules_are_sentences(rule: str, sentence: str) -> None:
    assert phrase_rule(rule) == sentence


@pytest.mark.parametrize(
    ("settings", "path", "keys"),
    [
        ({}, (), sorted(Config.model_fields)),
        ({}, ("checkpoint",), ["every", "min_seconds", "uri"]),
        ({"model": "mlp"}, ("model",), ["hidden"]),
        ({"model": "no_such"}, ("model",), []),
        ({"clients": 3}, ("clients",), []),
        ({"method": {"name": "fedavg", "weighting": "size"}}, ("method", "weighting"), []),
        ({}, ("nowhere", "at", "all"), []),
    ],
)
def test_known_keys_follow_the_settings_into_components(
    settings: Mapping[str, Any], path: tuple[str, ...], keys: list[str]
) -> None:
    assert known_keys(Config, settings, path) == keys


def test_plain_values_have_no_fields() -> None:
    assert list_fields(int) == list_fields(None) == []
