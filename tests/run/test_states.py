"""What a method keeps, logs and leaves: refused in the round that made it, or harmless."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

import rayfl
from rayfl.config.schema import Config
from rayfl.errors import PhaseError, StorageError
from tests.algorithms.conformance import Row, facts, run_toy, shortened, toy_config
from tests.run.odd_states import LEFT, ROUND

ROUNDS = 4


def config(folder: Path, **method: Any) -> Config:
    row = Row("odd", {"name": "tests.run.odd_states:Odd", **method})
    training = {"rounds": ROUNDS, "clients_per_round": 2, "epochs": 1, "batch_size": 16, "lr": 0.1}
    # No checkpoint before the end: what is refused is refused without one.
    return toy_config(row, folder, training=training, checkpoint={"every": 0})


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").glob("round-*.json"))


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "rule"),
    [
        ("set", "a method's state is made of arrays, .*; got set at Corrected.noisy. Keep"),
        ("nested", "; got set at Corrected.noisy['found'][1][1]. Keep anything else out"),
        ("object array", "; got an array of object at Corrected.noisy. Keep"),
        ("enum", "; got Stage at Corrected.noisy"),
        ("key", "have text or integer keys (Corrected.noisy); got np.int64(3). Write int("),
        ("foreign", "; got tests.run.shared_states:Borrowed at Corrected.noisy. Let the state"),
        ("init=False", "are made from all of their fields; got Counted, which has one with"),
        ("local", "defined at the top of a module; got tests.run.odd_states:hidden.<locals>"),
        ("fleet", "; got _ProtocolMeta at Corrected.noisy"),
    ],
)
def test_a_state_that_cannot_be_saved_or_read_again_is_refused_in_its_round(
    state: str, rule: str, tmp_path: Path
) -> None:
    match = re.escape(rule).replace(r"\.\*", ".*")
    with pytest.raises(StorageError, match=match):
        run_toy(config(tmp_path, state=state))
    # A run that lasted no longer than that round had nothing odd to be refused for.
    run_toy(shortened(config(tmp_path, state=state), ROUND))


def test_no_state_is_refused_with_what_was_forgotten(tmp_path: Path) -> None:
    rule = r"Odd\.round returns the state of the next round; got None in round 1\. Return replace"
    with pytest.raises(PhaseError, match=rule):
        run_toy(config(tmp_path, none=True))


@pytest.mark.parametrize("method", [{"state": "of rayfl"}, {"borrows": True, "state": "foreign"}])
def test_dataclasses_of_rayfl_and_of_the_first_state_are_read_again(
    method: dict[str, Any], tmp_path: Path
) -> None:
    whole, _ = run_toy(config(tmp_path, **method), directory="whole")
    run_toy(shortened(config(tmp_path, **method), 3), directory="parts")
    resumed, _ = run_toy(config(tmp_path, **method), directory="parts")
    assert facts(resumed) == facts(whole)


def test_a_file_does_not_choose_what_is_imported(tmp_path: Path) -> None:
    """Only modules that the method itself has imported count as those of its first state."""
    from rayfl.run.engine import Engine

    meta = {"modules": ["tests.run.shared_states", "antigravity", "os"]}
    assert Engine._known_modules(meta) == {"tests.run.shared_states", "os"}


# -- logged ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("logs", "got"),
    [
        ("stage", "stage='warm-up', which is a str"),
        ("losses", "losses=tensor([1., 2.]), which is a Tensor"),
        ("pair", "pair=[1.0, 2.0], which is a list"),
        ("nothing", "nothing=None, which is a NoneType"),
    ],
)
def test_what_is_logged_and_no_number_is_refused(logs: str, got: str, tmp_path: Path) -> None:
    rule = f"fleet.log takes one number for each name (round 1); got {got}. Log a float of it."
    with pytest.raises(PhaseError, match=f"^{re.escape(rule)}$"):
        run_toy(config(tmp_path, logs=logs))


@pytest.mark.parametrize(("logs", "value"), [("scalar", 1.5), ("count", 3.0), ("share", None)])
def test_numbers_of_all_kinds_are_logged(logs: str, value: float | None, tmp_path: Path) -> None:
    outcome, _ = run_toy(config(tmp_path, logs=logs))
    found = outcome.history[ROUND]["metrics"].get(logs)
    assert found == value
    json.dumps(outcome.history)


# -- left ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_no_array_that_is_left_ends_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = {
        "data": "digits",
        "clients": 3,
        "method": {"name": "tests.run.odd_states:Odd", "leaves": list(LEFT)},
        "model": {"name": "mlp", "hidden": [4]},
        "training": {"rounds": 2, "epochs": 0},
        "fleet": "inline",
        "output": str(tmp_path),
    }
    with caplog.at_level(logging.WARNING, "rayfl"):
        result = rayfl.run(settings)
    assert (result.directory / "result.json").is_file()
    assert (result.directory / "figures" / "learning_curve.png").is_file()
    for name in LEFT:
        drawn = result.directory / "figures" / f"{name.replace('/', '-')}.png"
        assert drawn.is_file() or f"the figure {name} could not be made (" in caplog.text
    assert not list(tmp_path.rglob("escaped.png"))
    again = rayfl.run(settings, resume=result.directory)
    assert again.sha256 == result.sha256


def test_an_array_of_objects_is_refused_in_its_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np

    monkeypatch.setitem(LEFT, "vector", lambda: np.array([{}]))
    rule = r"got an array of object at what the method left\['vector'\]"
    with pytest.raises(StorageError, match=rule):
        run_toy(config(tmp_path, leaves=["vector"]))
    assert saved(tmp_path) == []
