"""`rayfl run -m`: a grid without a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfl.commands.grid import format_grid
from rayfl.config.grid import expand_grid, list_varied, split_values
from rayfl.errors import ConfigError
from tests.front.cli import invoked, invoked_json, refused

TINY = {
    "data": {"name": "blobs", "samples": 100, "test_samples": 20, "classes": 3},
    "clients": 3,
    "model": {"name": "mlp", "hidden": [4]},
    "noise": {"name": "symmetric", "rate": 0.2},
    "training": {"rounds": 1},
    "fleet": "inline",
    "tracking": {"enabled": False},
}


@pytest.fixture
def tiny(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    path = home / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.1", ["0.1"]),
        ("fedavg,fedrn", ["fedavg", "fedrn"]),
        ("0, 1 ,2", ["0", "1", "2"]),
        ("0..3", ["0", "1", "2", "3"]),
        ("-1..1,7", ["-1", "0", "1", "7"]),
        ("[64,32]", ["[64,32]"]),
        ("[64,32],[128]", ["[64,32]", "[128]"]),
        ("{name: fedprox, mu: 0.1},fedavg", ["{name: fedprox, mu: 0.1}", "fedavg"]),
        ("'a,b',\"c,d\"", ["'a,b'", '"c,d"']),
        ("", [""]),
        ("1..2..3", ["1..2..3"]),
        ("../data", ["../data"]),
    ],
)
def test_values_are_parted_by_commas_outside_brackets_and_quotes(
    text: str, values: list[str]
) -> None:
    assert split_values(text) == values


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,,b", "values are parted by single commas; got 'a,,b'"),
        ("a,", "single commas"),
        ("3..1", "from the lower to the higher number; got 3..1"),
        ("0..99999999999", "a grid has at most 10000 runs"),
    ],
)
def test_what_is_no_list_of_values_is_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        split_values(text)


def test_a_grid_is_every_combination_the_last_key_changing_fastest() -> None:
    words = ["method=fedavg,fedprox", "clients=3", "seed=0..1"]
    assert expand_grid(words) == [
        ("method=fedavg", "clients=3", "seed=0"),
        ("method=fedavg", "clients=3", "seed=1"),
        ("method=fedprox", "clients=3", "seed=0"),
        ("method=fedprox", "clients=3", "seed=1"),
    ]
    assert list_varied(words) == ["method", "seed"]
    with pytest.raises(ConfigError, match="at most 10000 runs; got 1000000"):
        expand_grid(["a=0..999", "b=0..999"])


@pytest.mark.slow
def test_a_grid_runs_and_ends_in_a_table_over_seeds(tiny: Path) -> None:
    lines = invoked("run", "-m", "tiny.yaml", "method=fedavg,fedprox", "seed=0,1").splitlines()
    assert lines[0] == "4 runs"
    table = lines[-3:]
    assert table[0].split() == [
        "method",
        "accuracy",
        "loss",
        "macro",
        "F1",
        "wrong",
        "labels",
        "runs",
    ]
    assert [row.split()[0] for row in table[1:]] == ["fedavg", "fedprox"]
    assert all(row.split()[-1] == "2" and "+-" in row for row in table[1:])
    assert len(list(tiny.parent.glob("outputs/runs/*/result.json"))) == 4


@pytest.mark.slow
def test_for_programs_it_is_one_value(tiny: Path) -> None:
    found = invoked_json("run", "-m", "tiny.yaml", "seed=0,1")
    assert [each["values"] for each in found] == [{"seed": "0"}, {"seed": "1"}]
    assert all(0 <= each["metrics"]["test/accuracy"] <= 1 for each in found)
    assert len({each["model_sha256"] for each in found}) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["method=fedavg,fedpox"], "Did you mean 'fedprox'?"),
        (["method=fedavg,fedds"], "1 of 2 runs cannot be made; none was begun\nmethod=fedds: "),
        (["clients=3,5000"], "1 of 2 runs cannot be made; none was begun\nclients=5000: "),
        (["training.lr=0.1,-1"], "training.lr: must be greater than or equal to 0; got -1"),
    ],
)
def test_nothing_is_begun_before_every_run_is_known_to_be_one(
    tiny: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    code, text = refused(capsys, "run", "-m", "tiny.yaml", *words)
    assert code == 2
    assert said in text
    assert list(tiny.parent.iterdir()) == [tiny]


def test_one_run_is_taken_up_again_and_no_grid(
    tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = refused(capsys, "run", "-m", "tiny.yaml", "seed=0,1", "--resume", "auto")
    assert code == 2
    assert "--resume takes up one run" in text


def test_a_run_that_failed_is_told_from_those_that_ended() -> None:
    ended: dict[str, Any] = {
        "metrics": {"test/accuracy": 0.5, "test/loss": 1.0},
        "wrong_labels": None,
    }
    found: list[dict[str, Any]] = [
        {"values": {"seed": "0"}, **ended},
        {"values": {"seed": "1"}, "error": "it broke"},
    ]
    assert format_grid(found)[1].split() == ["0.5000", "1.0000", "-", "-", "1", "of", "2"]
