"""A queue: the order in which runs are made, what is skipped, what waits, and what is left."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from rayfl.commands.queue import queue_command
from rayfl.errors import ConfigError
from rayfl.ledger.ledger import Ledger
from rayfl.study.cells import load_study
from rayfl.study.order import StudyOrder
from rayfl.study.queue import load_queue
from tests.study.tiny import study_file

ROOT = Path(__file__).resolve().parents[2]


def write_queue(home: Path, *entries: Mapping[str, Any]) -> Path:
    (home / "results").mkdir(exist_ok=True)
    path = home / "results" / "queue.yaml"
    written = [{"study": "tiny.yaml", **entry} for entry in entries]
    path.write_text(yaml.safe_dump({"output": "out", "queue": written}))
    return path


def invoke(home: Path, *words: object) -> Result:
    given = ["--ledger", str(home / "results"), *map(str, words)]
    return CliRunner().invoke(queue_command, given)


def find_titles(output: str) -> list[str]:
    """The runs that were made, in their order."""
    return re.findall(r"^\[\d+/\d+\] (.*)$", output, flags=re.MULTILINE)


def test_runs_are_made_in_the_order_of_the_entries_and_of_their_seeds(home: Path) -> None:
    study_file(home)
    clean: Sequence[str] = ["noise=clean"]
    write_queue(
        home,
        {"only": ["method=fedprox", "noise=noisy"], "seeds": [1]},
        {"only": clean, "seeds": [0, 1], "overrides": ["training.rounds=1"]},
        {"only": ["method=fedavg"], "seeds": [0]},
    )
    done = invoke(home, "--quiet")
    assert done.exit_code == 0, done.output
    assert find_titles(done.output) == [
        "FedProx, noisy, seed 1",
        "FedAvg, clean, seed 0",
        "FedProx, clean, seed 0",
        "FedAvg, clean, seed 1",
        "FedProx, clean, seed 1",
        "FedAvg, clean, seed 0",
        "FedAvg, noisy, seed 0",
    ]
    assert len(list(Ledger(home / "results"))) == 7
    assert "in all 7 rows, nothing left, 2 wait" in done.output
    again = invoke(home, "--quiet")
    assert find_titles(again.output) == []


def test_the_state_says_what_is_left_and_how_long_it_takes(home: Path) -> None:
    study_file(home)
    write_queue(home, {"only": ["noise=clean"], "seeds": [0]})
    before = invoke(home, "--state").output
    assert "tiny noise=clean, seeds 0: 0 recorded, 2 left, 2 runs of unknown length" in before
    assert "1 wait (RHFL is not built)" in before
    assert not (home / "out").exists()
    invoke(home, "--quiet")
    write_queue(home, {"seeds": [0, 1]}, {"only": ["method=rhfl"]})
    after = invoke(home, "--state").output
    assert "tiny, seeds 0,1: 2 recorded, 6 left, about " in after
    assert "unknown" not in after
    assert "0 recorded, 0 left, 6 wait" in after
    assert "in all 2 rows, 6 left, about" in after


def test_no_run_begins_after_the_time_is_over(home: Path) -> None:
    study_file(home)
    write_queue(home, {"seeds": [0]})
    done = invoke(home, "--quiet", "--hours", 1e-9)
    assert find_titles(done.output) == []
    assert "4 left" in done.output


def test_what_cannot_be_configured_waits_and_the_rest_is_run(home: Path) -> None:
    gone = {"axes": {"method": {"fedprox": {"set": {"method": "nobody"}}}}}
    study_file(home, gone)
    write_queue(home, {"only": ["noise=clean"], "seeds": [0]})
    done = invoke(home, "--quiet")
    assert done.exit_code == 0, done.output
    assert find_titles(done.output) == ["FedAvg, clean, seed 0"]
    assert "1 recorded, 0 left, 2 wait" in done.output


def test_a_failure_is_told_and_does_not_stop_the_queue(home: Path) -> None:
    (home / "file").write_text("")
    broken = {"method": "fedavg", "checkpoint": {"uri": str(home / "file" / "x")}}
    study_file(home, {"axes": {"method": {"fedavg": {"set": broken}}}})
    write_queue(home, {"only": ["noise=clean"], "seeds": [0]})
    done = invoke(home, "--quiet")
    assert done.exit_code == 1
    assert find_titles(done.output) == ["FedAvg, clean, seed 0", "FedProx, clean, seed 0"]
    assert "1 runs failed; the same command tries them again" in done.output
    assert [row.axes["method"] for row in Ledger(home / "results")] == ["fedprox"]


def test_a_queue_of_something_else_is_refused(home: Path) -> None:
    path = home / "queue.yaml"
    path.write_text("queue: [{studies: x}]\n")
    with pytest.raises(ConfigError, match="queue"):
        load_queue(path)


def test_the_repositorys_queue_names_cells_that_there_are() -> None:
    queue = load_queue(ROOT / "results" / "queue.yaml")
    assert "fleet=inline" in queue.overrides
    for entry in queue.queue:
        path = ROOT / entry.study
        assert load_study(path).title
        assert StudyOrder(path, only=tuple(entry.only)).cells, entry
