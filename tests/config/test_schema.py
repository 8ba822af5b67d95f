"""Configurations: inheritance, overrides, what decides a result, and secrets that stay secret."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfl.algorithms.fedavg import FedAvg
from rayfl.config.files import apply_override, merge_settings
from rayfl.config.schema import Config, load_config, validate_config
from rayfl.errors import ConfigError
from rayfl.secrets import mask_secrets

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


def written(folder: Path, name: str = "run.yaml", **settings: Any) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(settings, allow_unicode=True))
    return path


# -- defaults and files ----------------------------------------------------------------------------


def test_an_empty_file_is_the_default_run(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("")
    assert load_config(path) == validate_config({}) == Config()
    assert Config().method == FedAvg()
    assert Config().output == Path("outputs").absolute()


def test_what_was_resolved_reads_as_the_same_configuration(tmp_path: Path) -> None:
    config = load_config(QUICKSTART)
    again = load_config(written(tmp_path, **config.resolved()))
    assert again == config
    assert again.digest == config.digest


def test_a_configuration_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Config().seed = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-2.5e+1", -25.0),
        (".5e1", 5.0),
        ("3", 3),
        ("0.5", 0.5),
        ("e5", "e5"),
    ],
)
def test_numbers_are_read_as_people_write_them(
    tmp_path: Path, text: str, value: float | str
) -> None:
    found = apply_override({}, f"x={text}")["x"]
    assert found == value
    assert type(found) is type(value)


# -- inheritance -----------------------------------------------------------------------------------


def test_a_file_builds_on_its_base_relative_to_itself(tmp_path: Path) -> None:
    written(tmp_path, "common/base.yaml", clients=7, training={"rounds": 3, "lr": 0.5})
    path = written(tmp_path, "mine/run.yaml", base="../common/base.yaml", training={"lr": 0.25})
    config = load_config(path)
    assert (config.clients, config.training.rounds, config.training.lr) == (7, 3, 0.25)


def test_later_bases_win_over_earlier_ones_and_bases_have_bases(tmp_path: Path) -> None:
    written(tmp_path, "root.yaml", clients=3, seed=1)
    written(tmp_path, "a.yaml", base="root.yaml", clients=4, evaluation={"every": 2})
    written(tmp_path, "b.yaml", clients=5)
    config = load_config(written(tmp_path, base=["a.yaml", "b.yaml"]))
    assert (config.clients, config.seed, config.evaluation.every) == (5, 1, 2)


@pytest.mark.parametrize(
    ("below", "above", "merged"),
    [
        ({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}}, {"a": {"b": 1, "c": 3}}),
        (
            {"m": {"name": "x", "mu": 1}},
            {"m": {"name": "x", "nu": 2}},
            {"m": {"name": "x", "mu": 1, "nu": 2}},
        ),
        ({"m": {"name": "x", "mu": 1}}, {"m": {"mu": 2}}, {"m": {"name": "x", "mu": 2}}),
        ({"m": {"name": "x", "mu": 1}}, {"m": {"name": "y"}}, {"m": {"name": "y"}}),
        ({"m": {"name": "x", "mu": 1}}, {"m": "y"}, {"m": "y"}),
        ({"hidden": [1, 2]}, {"hidden": [3]}, {"hidden": [3]}),
    ],
)
def test_merging_goes_key_by_key_but_another_component_starts_afresh(
    below: Mapping[str, Any], above: Mapping[str, Any], merged: Mapping[str, Any]
) -> None:
    assert merge_settings(below, above) == merged


def test_a_base_that_leads_back_to_itself_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "a.yaml", base="b.yaml")
    path = written(tmp_path, "b.yaml", base="a.yaml")
    with pytest.raises(
        ConfigError, match=r"must not lead back to itself; got .*b\.yaml -> .*a\.yaml -> .*b\.yaml"
    ):
        load_config(path)


@pytest.mark.parametrize("base", [3, {"file": "a.yaml"}, ["a.yaml", 3], None, True])
def test_a_base_is_a_file_name_or_a_list_of_them(tmp_path: Path, base: object) -> None:
    with pytest.raises(ConfigError, match="`base` is a file name or a list of them; got "):
        load_config(written(tmp_path, base=base))


def test_a_missing_base_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a readable YAML file; got .*nowhere\.yaml"):
        load_config(written(tmp_path, base="nowhere.yaml"))


# -- broken files ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("clients: [1, 2", "is not valid YAML"),
        ("clients: 3\nclients: 4", "the key 'clients' is written twice, line 1"),
        ("training: {lr: 1, lr: 2}", "the key 'lr' is written twice"),
        ("- clients", "a configuration is a mapping of keys to values; got list"),
        ("just words", "got str"),
        ("3: 4", "a configuration is a mapping"),
        ("clients: !!python/object/apply:os.getcwd []", "could not determine a constructor"),
        ("clients: !!timestamp nine", "is not valid YAML"),
        ("clients: !!bool maybe", "is not valid YAML"),
        ("clients: *unknown", "undefined alias"),
        ("? [a, b]\n: 1", "unhashable key"),
        ("clients: " + "[" * 2000, "is not valid YAML"),
        ("clients: \x00", "(special|control) characters are not allowed"),
    ],
)
def test_broken_yaml_is_refused_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as refusal:
        load_config(path)
    assert str(path) in str(refusal.value)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "binary.yaml"
    path.write_bytes(b"\xff\xfe\x00clients")
    with pytest.raises(ConfigError, match="a configuration is a readable YAML file"):
        load_config(path)


@pytest.mark.parametrize("name", ["missing.yaml", ""])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="a configuration is a readable YAML file"):
        load_config(tmp_path / name)


def test_small_texts_that_expand_immensely_are_refused_shortly(tmp_path: Path) -> None:
    levels = [f"l{i}: &l{i} [{', '.join([f'*l{i - 1}'] * 9)}]" for i in range(1, 12)]
    path = tmp_path / "laughs.yaml"
    path.write_text("\n".join(["l0: &l0 [x]", *levels, "training: *l11"]))
    with pytest.raises(ConfigError, match="at most 150,000 keys and values") as refusal:
        load_config(path)
    assert len(str(refusal.value)) < 5000


# -- overrides -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (["training.lr=0.5"], {"training": {"lr": 0.5}}),
        (["method.mu=0.1"], {"method": {"name": "fedprox", "mu": 0.1}}),
        (["method=fedavg"], {"method": "fedavg"}),
        (["method={name: moon, mu: 2}"], {"method": {"name": "moon", "mu": 2}}),
        (["model.hidden=[3, 4]"], {"model": {"hidden": [3, 4]}}),
        (["tracking.uri=http://h?a=b"], {"tracking": {"uri": "http://h?a=b"}}),
        (["tracking.uri="], {"tracking": {"uri": None}}),
        (["clients=3", "clients=4"], {"clients": 4}),
        (["clients.deep=1"], {"clients": {"deep": 1}}),
    ],
)
def test_overrides_reach_any_key(overrides: list[str], found: Mapping[str, Any]) -> None:
    settings: dict[str, Any] = {"method": "fedprox"}
    for override in overrides:
        settings = apply_override(settings, override)
    assert settings == {"method": "fedprox", **found}


def test_overrides_win_over_the_file_and_leave_the_rest(tmp_path: Path) -> None:
    path = written(tmp_path, clients=3, training={"lr": 0.5, "rounds": 4})
    config = load_config(path, ["training.lr=1e-2", "clients=9"])
    assert (config.clients, config.training.lr, config.training.rounds) == (9, 0.01, 4)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.lr", r"an override has the form key\.sub=value; got 'training\.lr'"),
        ("=3", "an override has the form"),
        ("training..lr=3", "an override has the form"),
        ("clients=[1", r"the value of override 'clients=\[1' is not valid YAML"),
        ("clients=!!timestamp 9", "is not valid YAML"),
    ],
)
def test_a_malformed_override_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(QUICKSTART, [override])


# -- seeds and digest ------------------------------------------------------------------------------


def test_each_purpose_has_the_common_seed_or_its_own() -> None:
    config = validate_config({"seed": 7, "seeds": {"model": 0}})
    assert (config.seeds_for("data"), config.seeds_for("model"), config.seeds_for("training")) == (
        7,
        0,
        7,
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"fleet": "inline"},
        {"device": "cpu"},
        {"resources": {"actors": 3}},
        {"checkpoint": {"every": 7}},
        {"tracking": {"enabled": False}},
        {"output": "elsewhere"},
        {"data_root": "elsewhere"},
        {"training": {"rounds": 99}},
    ],
)
def test_where_and_how_long_a_run_goes_is_not_in_its_digest(settings: Mapping[str, Any]) -> None:
    assert validate_config(settings).digest == Config().digest


@pytest.mark.parametrize(
    "settings",
    [
        {"seed": 1},
        {"seeds": {"data": 1}},
        {"clients": 11},
        {"noise": {"name": "symmetric", "rate": 0.4}},
        {"training": {"lr": 0.06}},
        {"model": {"name": "mlp", "hidden": [7]}},
        {"method": {"name": "fedavg", "weighting": "equal"}},
    ],
)
def test_what_decides_a_result_is_in_its_digest(settings: Mapping[str, Any]) -> None:
    assert validate_config(settings).digest != Config().digest


@pytest.mark.parametrize(
    "wrong", [math.nan, math.inf, -math.inf, -1e-300, "quick", None, [0.1], 1 << 5000]
)
def test_no_learning_rate_is_too_odd_to_be_refused_clearly(wrong: object) -> None:
    with pytest.raises(ConfigError, match=r"training\.lr"):
        validate_config({"training": {"lr": wrong}})


# -- secrets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "public"),
    [
        ("http://me:hunter2@host:5000/x", "http://***@host:5000/x"),
        ("postgresql+psycopg2://u:p%40ss@db/m", "postgresql+psycopg2://***@db/m"),
        ("https://token@host", "https://***@host"),
        ("http://host:5000/x", "http://host:5000/x"),
        ("sqlite:////tmp/a@b.db", "sqlite:////tmp/a@b.db"),
        ("two http://a:b@c and ftp://d:e@f", "two http://***@c and ftp://***@f"),
        ("me@example.org", "me@example.org"),
    ],
)
def test_credentials_inside_uris_become_stars(secret: str, public: str) -> None:
    assert mask_secrets(secret) == public
    assert mask_secrets({"a": [secret, 3]}) == {"a": [public, 3]}


def test_what_is_shown_and_saved_has_no_secrets() -> None:
    uri = "http://me:hunter2@host:5000"
    config = validate_config(
        {
            "tracking": {"uri": uri, "tags": {"see": uri}},
            "checkpoint": {"uri": "s3://k:hunter2@b/x"},
        }
    )
    assert config.tracking.uri == uri
    assert "hunter2" not in yaml.safe_dump(config.resolved())


@pytest.mark.parametrize(
    ("secret", "public"),
    [
        ("s3://AKIA:two/parts@bucket/x", "s3://***@bucket/x"),
        ("http://me:p@ss@host/x", "http://***@host/x"),
        ("http://host/x?secret_key=hunter2&y=1", "http://host/x?secret_key=***&y=***"),
        ("az://c/x?sv=1&sig=ab%2Fcd", "az://c/x?sv=***&sig=***"),
        ("['http://a:b@c', 'http://d:e@f']", "['http://***@c', 'http://***@f']"),
        ("s3://bucket/folder@version", "s3://bucket/folder@version"),
    ],
)
def test_so_do_those_that_look_like_a_path_or_a_query(secret: str, public: str) -> None:
    assert mask_secrets(secret) == public


def test_many_keys_are_read_as_fast_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "many.yaml"
    path.write_text("tracking: {tags: {" + ", ".join(f"k{i}: v" for i in range(50_000)) + "}}")
    assert len(load_config(path).tracking.tags) == 50_000


def test_numbers_of_immense_size_are_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"seed: must be less than .*; got int of immense size"):
        validate_config({"seed": 1 << 500_000})


TRAVEL = """
import pickle, sys
config = pickle.loads(sys.stdin.buffer.read())
print(config.method.__class__.__module__, config.digest)
"""


def test_a_configuration_that_travels_takes_the_folders_of_its_modules_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    source = (
        "from rayfl.algorithms.fedavg import FedAvg\n"
        "from rayfl.component import component\n"
        "@component\n"
        "class Mine(FedAvg): ...\n"
    )
    (tmp_path / "a_method_of_mine.py").write_text(source)
    config = load_config(written(tmp_path, method="a_method_of_mine:Mine"))
    words = [sys.executable, "-c", TRAVEL]
    there = subprocess.run(words, input=pickle.dumps(config), capture_output=True, check=False)
    assert there.stdout.decode().split() == ["a_method_of_mine", config.digest], there.stderr
    assert pickle.loads(pickle.dumps(config)) == config
