"""What MLflow's users expect of a run: datasets, a model that is found by its metrics, tables,
pictures, the machine, a description; and nothing of a run that never began."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import rayfl
from rayfl import cli
from rayfl.errors import ConfigError
from rayfl.tracking import system_metrics
from rayfl.tracking.carrier import Carrier, sync_journals
from rayfl.tracking.journal import Journal
from rayfl.tracking.store import default_uri, open_client
from rayfl.tracking.tracker import Tracker
from tests.tracking.tracker_toys import SETTINGS, uri_of

# MLflow uses what SQLAlchemy is about to drop, and warns of type hints of its own when its models
# are imported.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]


def run_of(result: rayfl.Result) -> Any:
    return open_client(uri_of(result)).get_run(result.mlflow_run_id)


def model_of(result: rayfl.Result) -> Any:
    """The newest model of a run."""
    model_id = Journal(result.directory).noted()["model_id"]
    return open_client(uri_of(result)).get_logged_model(model_id)


def test_datasets_are_inputs_with_the_hash_of_the_scenario(tracked: rayfl.Result) -> None:
    inputs = run_of(tracked).inputs.dataset_inputs
    found = {each.dataset.name: each for each in inputs}
    assert set(found) == {"digits", "digits test"}
    assert {each.dataset.digest for each in inputs} == {tracked.scenario_sha256[:36]}
    assert [tag.value for tag in found["digits"].tags] == ["training"]
    profile = json.loads(found["digits"].dataset.profile)
    assert profile["clients"] == 4
    assert profile["wrong_labels"] == pytest.approx(tracked.noise_rate, abs=1e-6)


def test_the_model_is_found_by_its_metrics_and_linked_to_run_and_dataset(
    tracked: rayfl.Result,
) -> None:
    client = open_client(uri_of(tracked))
    experiment = run_of(tracked).info.experiment_id
    level = tracked.metrics["test/accuracy"]
    wanted = f"metrics.`test/accuracy` > {level - 1e-6}"
    found = client.search_logged_models([experiment], filter_string=wanted)
    model = model_of(tracked)
    assert model.model_id in {each.model_id for each in found}
    assert str(model.status) == "READY"
    assert (model.name, model.source_run_id) == ("fedavg-digits", tracked.mlflow_run_id)
    assert model.tags["sha256"] == tracked.sha256
    (accuracy,) = [metric for metric in model.metrics if metric.key == "test/accuracy"]
    assert (accuracy.value, accuracy.step) == (pytest.approx(level), 5)
    assert (accuracy.dataset_name, accuracy.dataset_digest) == (
        "digits test",
        tracked.scenario_sha256[:36],
    )
    outputs = run_of(tracked).outputs.model_outputs
    assert model.model_id in {each.model_id for each in outputs}


def test_a_model_that_is_carried_twice_is_there_once(tracked: rayfl.Result) -> None:
    client = open_client(uri_of(tracked))
    experiment = run_of(tracked).info.experiment_id
    before = len(client.search_logged_models([experiment]))
    journal = Journal(tracked.directory)
    noted = journal.noted()
    journal.write_note(carried=1)
    Carrier(journal, uri_of(tracked)).carry()
    assert len(client.search_logged_models([experiment])) == before
    assert journal.noted() == noted


@pytest.mark.parametrize("kind", ["best", "last10"])
def test_a_run_is_summed_up_beside_its_last_values(tracked: rayfl.Result, kind: str) -> None:
    found = run_of(tracked).data.metrics
    for name in ("test/accuracy", "test/loss"):
        key = f"{kind}/{name}"
        assert found[key] == pytest.approx(tracked.summary[key])


def test_clients_are_a_table_and_figures_are_among_the_charts(tracked: rayfl.Result) -> None:
    client = open_client(uri_of(tracked))
    tags = run_of(tracked).data.tags
    assert json.loads(tags["mlflow.loggedArtifacts"]) == [{"path": "clients.json", "type": "table"}]
    assert tags["mlflow.loggedImages"] == "True"
    table = json.loads((tracked.directory / "clients.json").read_text())
    assert table["columns"] == ["client", "samples", "classes", "wrong labels"]
    assert len(table["data"]) == 4
    names = [item.path for item in client.list_artifacts(tracked.mlflow_run_id, "images")]
    last = [name for name in names if name.startswith("images/confusion+step+5+timestamp+")]
    assert sorted(name.rpartition(".")[2] for name in last) == ["png", "webp"]


def test_a_run_says_what_it_is_and_where_it_comes_from(tracked: rayfl.Result) -> None:
    tags = run_of(tracked).data.tags
    assert tags["mlflow.note.content"].startswith("fedavg, digits over 4 clients, iid, noise")
    assert f"rayfl run {tracked.directory}/config.yaml" in tags["mlflow.note.content"]
    assert tags["mlflow.source.type"] == "LOCAL"
    assert tags["mlflow.source.name"]
    assert len(tags["mlflow.source.git.commit"]) == 40


def test_the_machine_is_watched_while_a_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(system_metrics, "SECONDS", 0.01)
    tracker = Tracker(tmp_path, "unused", enabled=False)
    tracker.enabled = True  # nothing is carried, all is noted
    with system_metrics.sample_system(tracker):
        time.sleep(0.2)
    samples = [entry for entry in tracker.journal.entries() if entry["kind"] == "values"]
    assert [entry["step"] for entry in samples] == list(range(len(samples)))
    assert len(samples) >= 2
    names = set(samples[-1]["values"])
    assert {"system/cpu_utilization_percentage", "system/system_memory_usage_percentage"} <= names
    assert 0 < samples[-1]["values"]["system/system_memory_usage_percentage"] <= 100
    assert tracker.journal.last_round == 0
    with system_metrics.sample_system(tracker, wanted=False):
        pass
    assert len(list(tracker.journal.entries())) == len(samples)


def test_what_people_look_for_comes_first_in_a_run(tmp_path: Path) -> None:
    tracker = Tracker(tmp_path, "unused", enabled=False)
    values = {"cost/forward": 1.0, "test/recall/0": 0.1, "test/loss": 2.0, "test/accuracy": 0.5}
    tracker.metrics(1, values)
    (entry,) = tracker.journal.entries()
    assert list(entry["values"]) == ["test/accuracy", "test/loss", "test/recall/0", "cost/forward"]


def test_a_run_that_never_began_leaves_nothing(tmp_path: Path, uri: str) -> None:
    tracker = Tracker(tmp_path / "runs" / "a", uri)
    tracker.start("abandoned", "a", {}, {})
    while tracker.run_id is None:
        time.sleep(0.05)
    run_id = tracker.run_id
    tracker.abandon()
    assert open_client(uri).get_run(run_id).info.lifecycle_stage == "deleted"
    assert not (tmp_path / "runs" / "a" / "journal.jsonl").exists()
    assert sync_journals(tmp_path, uri) == {}


def test_a_configuration_that_is_refused_leaves_no_run(tmp_path: Path) -> None:
    place = {"output": tmp_path, "device": "cuda"}
    with pytest.raises(ConfigError, match="fleet: inline runs on the CPU"):
        rayfl.run({**SETTINGS, **place})
    with pytest.raises(ConfigError, match="needs the set 'public'"):
        rayfl.run({**SETTINGS, "output": tmp_path}, method="fedds")
    assert sync_journals(tmp_path, default_uri(tmp_path)) == {}
    experiment = open_client(default_uri(tmp_path)).get_experiment_by_name("rayfl")
    found = [] if experiment is None else [experiment.experiment_id]
    assert not found or not open_client(default_uri(tmp_path)).search_runs(found)


# -- commands --------------------------------------------------------------------------------------


def test_a_model_is_promoted_with_its_links(tracked: rayfl.Result) -> None:
    words = ["promote", tracked.directory.name[-6:], "best-digits", "--alias", "champion"]
    done = CliRunner().invoke(
        cli.rayfl, [*words, "-o", str(tracked.config.output)], catch_exceptions=False
    )
    assert f"{tracked.directory.name} is version 1 of best-digits" in done.output
    version = open_client(uri_of(tracked)).get_model_version_by_alias("best-digits", "champion")
    assert (version.run_id, version.tags["sha256"]) == (tracked.mlflow_run_id, tracked.sha256)
    named = json.loads(model_of(tracked).tags["mlflow.modelVersions"])
    assert named == [{"name": "best-digits", "version": "1"}]


def test_an_untracked_run_cannot_be_promoted(tmp_path: Path) -> None:
    result = rayfl.run({**SETTINGS, "output": tmp_path, "tracking": {"enabled": False}})
    words = ["promote", result.directory.name, "x", "-o", str(tmp_path)]
    with pytest.raises(
        ConfigError, match=r"a run that is promoted has a model in MLflow; got .*sync"
    ):
        CliRunner().invoke(cli.rayfl, words, catch_exceptions=False)


def test_the_ui_of_an_empty_folder_says_so_and_makes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rayfl ui shows a store that has runs; .*Run something"):
        CliRunner().invoke(cli.rayfl, ["ui", "-o", str(tmp_path)], catch_exceptions=False)
    assert list(tmp_path.iterdir()) == []
    Journal(tmp_path / "runs" / "a").append(
        "start", experiment="e", run_name="r", tags={}, params={}
    )
    with pytest.raises(ConfigError, match="1 runs lie there untracked: rayfl sync -o"):
        CliRunner().invoke(cli.rayfl, ["ui", "-o", str(tmp_path)], catch_exceptions=False)


def test_the_ui_starts_no_workers_of_mlflow_s_jobs(
    tracked: rayfl.Result, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[list[str]] = []
    seen: dict[str, str] = {}

    def serve(words: list[str], environment: dict[str, str]) -> int:
        started.append(words)
        seen.update(environment)
        return 0

    monkeypatch.setattr("rayfl.tracking.ui_server.serve_until_stopped", serve)
    words = ["ui", "-o", str(tracked.config.output), "--port", "5099"]
    done = CliRunner().invoke(cli.rayfl, words, catch_exceptions=False)
    assert seen["MLFLOW_SERVER_ENABLE_JOB_EXECUTION"] == "false"
    assert "PATH" in seen
    assert started[0][-4:] == ["--host", "127.0.0.1", "--port", "5099"]
    assert "mine: http://127.0.0.1:5099/#/experiments/" in done.output


def test_a_dataset_that_another_run_adds_meanwhile_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """MLflow looks for it and then adds it; between the two, somebody else did."""
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    log_inputs = MlflowClient.log_inputs
    tried: list[str] = []

    def meet(self: Any, run_id: str, *given: Any, **named: Any) -> None:
        tried.append(run_id)
        if len(tried) == 1:
            raise MlflowException("UNIQUE constraint failed: datasets.experiment_id")
        log_inputs(self, run_id, *given, **named)

    monkeypatch.setattr(MlflowClient, "log_inputs", meet)
    result = rayfl.run({**SETTINGS, "output": tmp_path})
    assert result.mlflow_run_id is not None
    run = open_client(uri_of(result)).get_run(result.mlflow_run_id)
    assert len(tried) == 2
    assert run.inputs.dataset_inputs
    assert "does not answer" not in caplog.text
