"""Two studies, or two sweeps, that are started at once by a user: nothing is made twice, nothing is
lost, and the second one says who is at work."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rayfl.tracking.store import default_uri, open_client
from tests.reliability.clean_shell import Command
from tests.reliability.drills import noted

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.timeout(900),
]

PATIENCE = 300.0
ROUNDS = 15
RUN: dict[str, Any] = {
    "data": {"name": "blobs", "samples": 120, "test_samples": 60, "classes": 3},
    "clients": 3,
    "model": {"name": "mlp", "hidden": [4]},
    "method": {"name": "tests.reliability.methods:Stateful", "pause": 0.05},
    "training": {"rounds": ROUNDS, "lr": 0.05},
    "fleet": "inline",
    "device": "cpu",
    "output": "out",
}
PAUSES = {
    str(pause): {"title": str(pause), "set": {"method.pause": pause}} for pause in (0.05, 0.06)
}
SEEDS = 3
STUDY = {
    "title": "Six runs",
    "set": RUN,
    "axes": {"pause": PAUSES},
    "seeds": list(range(SEEDS)),
    "scores": {"s": {"title": "S", "metric": "test/accuracy"}},
    "table": {"rows": ["pause"], "columns": ["score"]},
}
SWEEP = {
    "name": "tiny",
    "set": RUN,
    "search": {"training.lr": {"grid": [0.1, 0.2]}},
    "over": "final",
    "at_once": 2,
}
Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start commands in one folder; whatever is left of them ends with the test."""
    for name, settings in (("study", STUDY), ("sweep", SWEEP)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))
    commands: list[Command] = []

    def started(*words: str) -> Command:
        commands.append(Command(tmp_path, *words))
        return commands[-1]

    yield started
    for command in commands:
        command.end()


def await_file(command: Command, pattern: str) -> None:
    begun = time.monotonic()
    while not list((command.printed.parent / "out").glob(pattern)):
        assert not command.is_over, command.text
        assert time.monotonic() - begun < PATIENCE, command.text
        time.sleep(0.05)


def check_runs(output: Path, experiment: str, count: int) -> None:
    """So many runs, each of whose rounds is noted and tracked once."""
    runs = sorted((output / "runs").iterdir())
    assert len(runs) == count
    for run in runs:
        steps = [
            entry["step"] for entry in noted(run / "journal.jsonl") if entry["kind"] == "metrics"
        ]
        assert steps == list(range(1, ROUNDS + 1))
    client = open_client(default_uri(output))
    found = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    tracked = [run for run in found if run.data.tags.get("kind") not in ("study", "sweep")]
    assert len(tracked) == count
    for run in tracked:
        points = client.get_metric_history(run.info.run_id, "test/accuracy")
        assert [point.step for point in points] == list(range(1, ROUNDS + 1))
        assert run.info.status == "FINISHED"


def test_two_studies_share_their_runs_out(start: Start, tmp_path: Path) -> None:
    words = ("study", "study.yaml", "-o", "out", "--ledger", "none", "--quiet")
    first = start(*words)
    await_file(first, "runs/*/journal.jsonl")
    second = start(*words)
    ended = [command.process.wait(PATIENCE) for command in (first, second)]
    assert ended == [0, 0], first.text + second.text
    check_runs(tmp_path / "out", str(STUDY["title"]), 2 * SEEDS)
    holder = rf"left to process {first.pid} on \S+ since 20"
    assert re.search(holder, second.text), second.text
    assert table_of(first) == table_of(second)


def table_of(command: Command) -> str:
    """What a study ends in."""
    return command.text[command.text.index(f"{STUDY['title']}\n===") :].partition("\nruns ")[0]


@pytest.mark.parametrize("more", [(), ("--resume",)], ids=["anew", "resumed"])
def test_of_two_sweeps_the_second_one_is_refused(
    start: Start, tmp_path: Path, more: tuple[str, ...]
) -> None:
    first = start("sweep", "sweep.yaml")
    await_file(first, "runs/*/trial.json")
    second = start("sweep", "sweep.yaml", *more)
    assert second.process.wait(PATIENCE) == 5, second.text
    held = rf"works on the sweep tiny .*held by process {first.pid} on \S+ since 20"
    assert re.search(held, second.text), second.text
    assert first.process.wait(PATIENCE) == 0, first.text
    check_runs(tmp_path / "out", "rayfl", 2)
    table = json.loads((tmp_path / "out" / "sweeps" / "tiny" / "table.json").read_text())
    assert [trial["status"] for trial in table["trials"]] == ["finished"] * 2
