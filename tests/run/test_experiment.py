"""One run from Python: what it returns, where it is kept, how it is resumed, and methods of a
user's own."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import rayfl
from rayfl.config.schema import validate_config
from rayfl.errors import ConfigError, DataError, ResourceError
from rayfl.federation.datasets.synthetic import Digits
from rayfl.run.artifacts import flatten_settings
from rayfl.run.directory import new_name, newest_unfinished
from rayfl.run.environment import (
    cpu_capability,
    describe_environment,
    describe_machine,
    git_commit,
)
from rayfl.run.progress import Silent
from rayfl.run.signals import Interrupted, Stop
from tests.run.small_run import SETTINGS

RAYFL = Path(sys.executable).with_name("rayfl")


def settings(output: Path, **more: Any) -> dict[str, Any]:
    return {**SETTINGS, "output": output, "fleet": "inline", **more}


def metrics_of(result: rayfl.Result) -> list[dict[str, Any]]:
    return [record["metrics"] for record in result.history]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> rayfl.Result:
    return rayfl.run(settings(tmp_path_factory.mktemp("result")))


# -- the result ------------------------------------------------------------------------------------


def test_the_history_has_every_round_with_metrics_and_times(result: rayfl.Result) -> None:
    assert [record["round"] for record in result.history] == [1, 2, 3, 4, 5, 6]
    for record in result.history:
        assert record["metrics"]["clients/participants"] == 4
        assert {"test/accuracy", "test/loss", "test/macro_f1", "test/recall/7"} <= set(
            record["metrics"]
        )
        assert all(seconds >= 0 for seconds in record["clock"].values())


def test_the_metrics_are_the_last_of_the_history_and_the_run_has_learned(
    result: rayfl.Result,
) -> None:
    assert result.metrics["test/accuracy"] == result.history[-1]["metrics"]["test/accuracy"]
    assert result.metrics["test/accuracy"] > 0.7
    assert result.metrics["test/loss"] < result.history[0]["metrics"]["test/loss"]


def test_the_confusion_counts_every_test_image_once(result: rayfl.Result) -> None:
    assert result.confusion is not None
    assert result.confusion.shape == (10, 10)
    assert result.confusion.sum() == 360
    assert result.confusion.trace() / 360 == result.metrics["test/accuracy"]


def test_the_model_works_on_images_as_the_evaluation_said(result: rayfl.Result) -> None:
    assert by_hand(result) == pytest.approx(result.metrics["test/accuracy"], abs=1e-9)


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
def test_a_convolutional_model_does_so_in_either_layout(layout: str, tmp_path: Path) -> None:
    training = {**SETTINGS["training"], "rounds": 3, "lr": 0.1, "layout": layout}
    model = {"name": "cnn4", "widths": [8, 8], "track_running_stats": True}
    result = rayfl.run(settings(tmp_path, model=model, training=training))
    assert result.metrics["test/accuracy"] > 0.2
    assert by_hand(result) == pytest.approx(result.metrics["test/accuracy"], abs=1e-9)


def by_hand(result: rayfl.Result) -> float:
    """The result's model on the test images."""
    import torch

    test = Digits().load(Path()).test
    images = torch.from_numpy(test.x.astype(np.float32) / 255).permute(0, 3, 1, 2)
    with torch.no_grad():
        answers = result.model.eval()(images).argmax(dim=1).numpy()
    return float((answers == test.y).mean())


def test_everything_about_a_run_lies_in_its_directory(result: rayfl.Result) -> None:
    directory = result.directory
    assert directory.parent == result.config.output / "runs"
    kept = json.loads((directory / "result.json").read_text())
    assert (kept["sha256"], kept["rounds"], kept["history"]) == (result.sha256, 6, result.history)
    assert kept["metrics"] == result.metrics
    assert validate_config(yaml.safe_load((directory / "config.yaml").read_text())) == result.config
    facts = json.loads((directory / "run.json").read_text())
    assert facts.pop("environment") == describe_environment()
    assert kept["facts"]["capability"] == cpu_capability()
    assert facts == {
        "digest": result.config.digest,
        "scenario": result.scenario_sha256,
        "rayfl": rayfl.__version__,
    }
    assert "360" in (directory / "scenario.txt").read_text()
    assert not list(directory.rglob("*.part"))


def test_a_run_gives_back_the_threads_and_the_signals_that_it_found(
    result: rayfl.Result, tmp_path: Path
) -> None:
    import torch

    before = (
        torch.get_num_threads(),
        signal.getsignal(signal.SIGINT),
        signal.getsignal(signal.SIGTERM),
    )
    rayfl.run(settings(tmp_path, training={"rounds": 1}))
    assert (
        torch.get_num_threads(),
        signal.getsignal(signal.SIGINT),
        signal.getsignal(signal.SIGTERM),
    ) == before


def test_a_run_works_in_a_thread_that_is_not_the_first(
    result: rayfl.Result, tmp_path: Path
) -> None:
    found: list[rayfl.Result] = []
    thread = threading.Thread(target=lambda: found.append(rayfl.run(settings(tmp_path))))
    thread.start()
    thread.join()
    assert found[0].sha256 == result.sha256


def test_no_rounds_are_a_run_too(tmp_path: Path) -> None:
    none = rayfl.run(settings(tmp_path, training={"rounds": 0}))
    assert (none.history, none.metrics, none.confusion) == ([], {}, None)
    assert next(iter(none.models.values())).size == 64 * 16 + 16 + 16 * 10 + 10


# -- place and seed --------------------------------------------------------------------------------


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    "actors", [3, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, "auto"))]
)
def test_the_number_of_actors_never_changes_the_result(
    result: rayfl.Result, tmp_path: Path, actors: int | str
) -> None:
    place = {"actors": actors, "cpus_per_client": 1, "gpus_per_client": 0}
    again = rayfl.run(settings(tmp_path, fleet="ray", device="cpu", resources=place))
    assert again.sha256 == result.sha256
    assert metrics_of(again) == metrics_of(result)


@pytest.mark.parametrize(
    "seeds",
    [{"seed": 1}, {"seeds": {"data": 1}}, {"seeds": {"model": 1}}, {"seeds": {"training": 1}}],
)
def test_every_seed_changes_the_result(
    result: rayfl.Result, tmp_path: Path, seeds: Mapping[str, Any]
) -> None:
    other = rayfl.run(settings(tmp_path, **seeds))
    assert other.sha256 != result.sha256
    assert (other.scenario_sha256 == result.scenario_sha256) is (
        not {"seed", "data"} & {*seeds, *seeds.get("seeds", {})}
    )


def test_evaluation_may_be_rarer_but_never_misses_the_last_round(
    result: rayfl.Result, tmp_path: Path
) -> None:
    rare = rayfl.run(settings(tmp_path, evaluation={"every": 4}))
    assert [r["round"] for r in rare.history if "test/accuracy" in r["metrics"]] == [4, 6]
    assert rare.sha256 == result.sha256
    assert rare.metrics["test/accuracy"] == result.metrics["test/accuracy"]


# -- resuming --------------------------------------------------------------------------------------


class Stopping:
    """A progress that interrupts the run after some rounds, as a signal would."""

    def __init__(self, after: int) -> None:
        self.after = after

    def round(self, record: Mapping[str, Any]) -> None:
        if record["round"] == self.after:
            raise Interrupted(signal.SIGTERM)

    def note(self, text: str) -> None:
        """Nothing to say."""

    def close(self) -> None:
        """Nothing to close."""


def interrupted(config: Mapping[str, Any], after: int) -> Path:
    with pytest.raises(Interrupted, match="SIGTERM") as stop:
        rayfl.run(config, progress=Stopping(after))
    assert stop.value.directory is not None
    return stop.value.directory


@pytest.mark.parametrize("how", ["auto", "name", "directory", "end"])
@pytest.mark.parametrize("every", [0, 1])
def test_a_run_is_resumed_by_any_of_its_names(
    result: rayfl.Result, tmp_path: Path, how: str, every: int
) -> None:
    config = settings(tmp_path, checkpoint={"every": every, "min_seconds": 0})
    directory = interrupted(config, 3)
    names = {
        "auto": "auto",
        "name": directory.name,
        "directory": str(directory),
        "end": directory.name[-6:],
    }
    again = rayfl.run(config, resume=names[how])
    assert (again.directory, again.sha256) == (directory, result.sha256)
    assert metrics_of(again) == metrics_of(result)


def test_a_finished_run_can_be_taken_further(result: rayfl.Result, tmp_path: Path) -> None:
    short = rayfl.run(settings(tmp_path, training={**SETTINGS["training"], "rounds": 4}))
    longer = rayfl.run(settings(tmp_path), resume=short.directory)
    assert (longer.directory, longer.sha256) == (short.directory, result.sha256)


def test_auto_begins_anew_where_nothing_is_unfinished(tmp_path: Path) -> None:
    first = rayfl.run(settings(tmp_path, training={"rounds": 1}))
    second = rayfl.run(settings(tmp_path, training={"rounds": 1}), resume="auto")
    assert second.directory != first.directory


def test_auto_takes_the_newest_run_with_the_same_configuration(tmp_path: Path) -> None:
    config = validate_config(settings(tmp_path))
    for name, digest in (
        ("20260101-a", config.digest),
        ("20260102-b", config.digest),
        ("20260103-c", "other"),
    ):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"digest": digest}))
    (tmp_path / "runs" / "20260104-d").mkdir()
    (tmp_path / "runs" / "20260104-d" / "run.json").write_text("[damaged")
    assert newest_unfinished(tmp_path / "runs", config) == tmp_path / "runs" / "20260102-b"
    (tmp_path / "runs" / "20260102-b" / "result.json").write_text("{}")
    assert newest_unfinished(tmp_path / "runs", config) == tmp_path / "runs" / "20260101-a"


def test_a_run_is_not_resumed_with_another_configuration(result: rayfl.Result) -> None:
    other = settings(result.config.output, seed=5)
    rule = (
        r"a run is resumed with the configuration that it began with \(\w{12}\); got \w{12}\. "
        r"See .*config\.yaml"
    )
    with pytest.raises(ConfigError, match=rule):
        rayfl.run(other, resume=result.directory.name)


def test_an_unknown_run_is_refused_with_the_last_ones(result: rayfl.Result) -> None:
    rule = (
        "--resume takes a run below the output folder, or auto; got nothing. "
        f"Last runs: {result.directory.name}"
    )
    with pytest.raises(ConfigError, match=re.escape(rule)):
        rayfl.run(settings(result.config.output), resume="nothing")


def test_every_new_run_has_a_name_of_its_own(tmp_path: Path) -> None:
    config = validate_config(settings(tmp_path))
    assert len({new_name(config) for _ in range(20)}) == 20


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "kind", "message"),
    [
        (
            {"device": "cuda"},
            ConfigError,
            "fleet: inline runs on the CPU; got device: cuda. Use fleet: ray.",
        ),
        (
            {"method": "oracle", "labels": "given"},
            DataError,
            "needs true labels; got a scenario with labels: given",
        ),
        ({"data": {"name": "folder", "path": "/nowhere"}}, DataError, "/nowhere"),
    ],
)
def test_what_cannot_be_run_is_refused(
    tmp_path: Path, more: Mapping[str, Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        rayfl.run(settings(tmp_path, **more))


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("place", "device", "message"),
    [
        (
            {"actors": 9},
            "cpu",
            "9 client actors of 1 CPU and 0 GPU must fit the cluster; got 8 CPUs and 2 GPUs",
        ),
        ({"cpus_per_client": 9}, "cpu", "room for 0. Lower resources.actors"),
        (
            {"gpus_per_client": 0},
            "cuda",
            "device: cuda needs resources.gpus_per_client above 0; got 0",
        ),
        ({"gpus_per_client": 3}, "cpu", "needs a GPU in the cluster; got 2 GPUs"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_before_anything_starts(
    tmp_path: Path, place: Mapping[str, Any], device: str, message: str
) -> None:
    resources = {"gpus_per_client": 0, **place}
    with pytest.raises(ResourceError, match=re.escape(message)):
        rayfl.run(settings(tmp_path, fleet="ray", device=device, resources=resources))


# -- a method of the user's own --------------------------------------------------------------------

MY_METHODS = '''
from dataclasses import replace

from rayfl.methods import FedAvg, Fit, Out, Positive, component


def cautious(client, *, w, method):
    trained = yield Fit(w)
    return Out(update=w + (trained.weights - w) * method.keep)


@component
class MyAvg(FedAvg):
    """Goes a part of the way only."""

    keep: Positive = 0.5

    def round(self, state, fleet, t):
        got = fleet.map(cautious, fleet.sample(t), w=state.model, method=self)
        return replace(state, model=self.aggregate(got, fleet))
'''


@pytest.mark.long
def test_a_method_in_a_file_beside_the_configuration_runs_on_ray_without_registration(
    tmp_path: Path,
) -> None:
    (tmp_path / "my_methods.py").write_text(MY_METHODS)
    config = settings(
        Path("out"), method={"name": "my_methods:MyAvg", "keep": 0.75}, resources={"actors": 2}
    )
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({**config, "output": "out"}))
    found = {}
    for fleet in ("ray", "inline"):
        words = [str(RAYFL), "run", "mine.yaml", "--quiet", f"fleet={fleet}"]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        found[fleet] = done.stdout.splitlines()[-1]
    assert found["ray"] == found["inline"]
    assert len(list((tmp_path / "out" / "runs").glob("*-MyAvg-*/result.json"))) == 2


# -- small parts -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "flat"),
    [
        ({"a": {"b": 1, "c": {"d": [2]}}, "e": None}, {"a.b": 1, "a.c.d": [2], "e": None}),
        ({"tags": {}}, {"tags": {}}),
        ({}, {}),
    ],
)
def test_flattening_keeps_every_leaf(tree: Mapping[str, Any], flat: Mapping[str, Any]) -> None:
    assert flatten_settings(tree) == flat


def test_outside_a_repository_there_is_no_commit(home: Path) -> None:
    assert git_commit() == "none"


def test_the_machine_is_described_without_its_name() -> None:
    import platform

    facts = describe_machine()
    assert "cores" in facts["machine"]
    assert platform.node() not in str(facts)


class Swallowing(Silent):
    """Asks to stop in the second round, in a way that nobody notices."""

    def __init__(self, stop: Stop) -> None:
        self.stop = stop

    def round(self, record: Mapping[str, Any]) -> None:
        if record["round"] == 2:
            self.stop.asked = signal.SIGTERM


def test_a_stop_that_a_method_has_swallowed_is_heeded_after_the_round(home: Path) -> None:
    stop = Stop()
    with pytest.raises(Interrupted, match="SIGTERM"):
        rayfl.run(settings(home), stop=stop, progress=Swallowing(stop))
    (manifest,) = sorted(home.glob("runs/*/checkpoints/round-*.json"))[-1:]
    assert manifest.stem == "round-000002"
