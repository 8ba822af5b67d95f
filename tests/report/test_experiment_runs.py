"""An experiment read back from MLflow as a study."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from rayfl.errors import ConfigError, StorageError
from rayfl.report import experiment_runs as module
from rayfl.report.experiment_runs import (
    TrackedRun,
    find_owner,
    make_study,
    parse_title_number,
    read_experiment,
    read_history,
)
from rayfl.report.provenance import collect_facts, list_hashes
from rayfl.report.tables import build_table
from rayfl.tracking.experiment_view import CHARTS, METRICS, TAGS, arrange_experiment
from rayfl.tracking.store import open_client
from tests.report.conftest import Made
from tests.report.results import record

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*Any type hint:UserWarning"),
]
TITLE = "Small & <small>"


def tracked(
    tmp_path: Path, method: str = "fedavg", seed: int = 0, accuracy: float = 0.5, **settings: Any
) -> TrackedRun:
    tags = {
        "method": method,
        "dataset": "mnist",
        "partition": "iid",
        "noise": "symmetric",
        "seed": str(seed),
    }
    named = {name.replace("__", "."): value for name, value in settings.items()}
    return TrackedRun(
        tags, {"method.name": method, "seed": str(seed), **named}, record(tmp_path, (accuracy,))
    )


def test_runs_are_grouped_with_seeds_as_repetitions(made: Made) -> None:
    found = read_experiment(TITLE, made.uri)
    study = made.result
    assert found.seeds == [0, 1]
    assert [axis for axis in found.study.axes if len(found.used(axis)) > 1] == ["method"]
    assert sorted(found.used("method")) == ["fedavg", "fedds", "fedrn", "local_k"]
    for cell in found.cells:
        same = study.at(method=cell.choices["method"], noise="noisy")
        assert same is not None
        assert cell.scores["accuracy"].values == same.value.values
        assert sorted(cell.records) == [0, 1]
        assert cell.command.count("rayfl run ") == 2


def test_runs_that_lie_elsewhere_are_fetched(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    near = {cell.choices["method"]: cell for cell in read_experiment(TITLE, made.uri).cells}
    monkeypatch.setattr(module, "find_directories", lambda uri: {})
    for cell in read_experiment(TITLE, made.uri).cells:
        here = near[cell.choices["method"]]
        assert cell.scores == here.scores
        one, other = cell.records[0], here.records[0]
        assert one.directory != other.directory
        assert (one.digest, one.scenario, one.sha256, one.rounds) == (
            other.digest, other.scenario, other.sha256, other.rounds,
        )  # fmt: skip
        assert one.series("test/accuracy") == other.series("test/accuracy")
        assert one.series("time/train_s")[0] == [1, 2, 3]
        assert one.config == other.config
        assert sorted(one.arrays) == sorted(other.arrays)
        assert (one.directory / "figures" / "confusion.png").exists()


def test_settings_that_differ_are_told_in_titles_and_shared_ones_are_not(tmp_path: Path) -> None:
    found = [
        tracked(tmp_path, "fedrn", 0, method__k="1", method__alpha="0.6"),
        tracked(tmp_path, "fedrn", 1, method__k="1", method__alpha="0.6", output="elsewhere"),
        tracked(tmp_path, "fedrn", 0, method__k="2", method__alpha="0.6"),
        tracked(tmp_path, "fedavg", 0, training__lr="0.1"),
    ]
    study = make_study("x", found)
    assert study.used("method") == ["fedavg", "fedrn (k=1)", "fedrn (k=2)"]
    assert [len(cell.records) for cell in study.cells] == [2, 1, 1]
    assert study.study.axes["method"]["fedrn (k=2)"].set == {"fedrn k": 2.0}


def test_components_are_told_by_their_names(tmp_path: Path) -> None:
    low: dict[str, Any] = {"noise__rate__name": "ramp", "noise__rate__max": "0.4"}
    high = {**low, "noise__rate__max": "0.8"}
    found = [
        tracked(tmp_path, method__weighting__name="size", **low),
        tracked(
            tmp_path, method__weighting__name="dawid_skene", method__weighting__tol="1e-5", **low
        ),
        tracked(tmp_path, method__weighting__name="size", **high),
    ]
    study = make_study("x", found)
    assert study.used("noise") == ["symmetric (rate.max=0.4)", "symmetric (rate.max=0.8)"]
    assert study.used("method") == [
        "fedavg",
        "fedavg (weighting=dawid_skene)",
        "fedavg (weighting=size)",
    ]


def test_a_setting_that_older_runs_do_not_know_tells_nothing_apart(tmp_path: Path) -> None:
    study = make_study(
        "x", [tracked(tmp_path), tracked(tmp_path, seed=1, training__precision="fp32")]
    )
    assert study.used("method") == ["fedavg"]
    assert study.seeds == [0, 1]


def test_of_equal_repetitions_the_newest_counts(tmp_path: Path) -> None:
    study = make_study("x", [tracked(tmp_path, accuracy=0.5), tracked(tmp_path, accuracy=0.75)])
    (cell,) = study.cells
    assert cell.scores["accuracy"].values == (75.0,)
    assert math.isnan(cell.scores["accuracy"].std)


@pytest.mark.parametrize(
    ("key", "axis"),
    [
        ("method.k", "method"),
        ("training.lr", "method"),
        ("model.name", "method"),
        ("data.name", "dataset"),
        ("split.public.fraction", "dataset"),
        ("clients", "dataset"),
        ("partition.alpha", "partition"),
        ("noise.rate.max", "noise"),
        ("seed", None),
        ("seeds.data", None),
        ("output", None),
        ("tracking.uri", None),
    ],
)
def test_every_setting_belongs_to_an_axis_or_to_none(key: str, axis: str | None) -> None:
    assert find_owner(key) == axis


@pytest.mark.parametrize(
    ("title", "told"),
    [
        ("fedrn (k=1)", {"fedrn k": 1.0}),
        ("a (x=1e-05)", {"a x": 1e-5}),
        ("a (x=1, y=2)", {}),
        ("a (x=yes)", {}),
        ("a", {}),
    ],
)
def test_numbers_in_titles_are_settings(title: str, told: dict[str, float]) -> None:
    assert parse_title_number(title) == told


def test_an_unknown_experiment_is_refused_with_the_known_ones(made: Made) -> None:
    with pytest.raises(
        ConfigError, match=r"has the experiment; got smal\. There are: .*Small & <small>"
    ):
        read_experiment("smal", made.uri)


def test_a_store_that_does_not_answer_is_named_without_its_password() -> None:
    with pytest.raises(
        StorageError, match=r"must answer; got http://\*\*\*@127\.0\.0\.1:9: "
    ) as refused:
        read_experiment("x", "http://me:secret@127.0.0.1:9")
    assert "secret" not in str(refused.value)


def test_an_experiment_without_finished_runs_is_refused(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    open_client(uri).create_experiment("empty", artifact_location=tmp_path.as_uri())
    with pytest.raises(ConfigError, match=r"experiment 'empty' needs a finished run; got none"):
        read_experiment("empty", uri)


def test_the_history_has_rounds_in_order_and_clocks_apart(made: Made) -> None:
    client = open_client(made.uri)
    experiment = client.get_experiment_by_name(TITLE)
    run = client.search_runs([experiment.experiment_id], "tags.method = 'fedavg'")[0]
    history = read_history(client, run)
    assert [entry["round"] for entry in history] == [1, 2, 3]
    assert "time/train_s" in history[0]["clock"]
    assert not [name for entry in history for name in entry["metrics"] if name.startswith("time/")]


def test_a_report_knows_where_its_figures_come_from(made: Made) -> None:
    told = collect_facts(made.result)
    assert (told["runs"], told["seeds"]) == ("8", "0, 1")
    assert {"rayfl", "git", "machine", "python", "torch", "run between", "report written"} <= set(
        told
    )
    rows = list_hashes(made.result)
    assert len(rows) == 8
    assert {len(row["scenario"]) for row in rows} == {16}


def test_the_view_shows_tags_that_tell_runs_apart(made: Made) -> None:
    client = open_client(made.uri)
    number = client.get_experiment_by_name(TITLE).experiment_id
    arrange_experiment(client, number)
    arrange_experiment(client, number)
    tags = client.get_experiment(number).tags
    assert tags["mlflow.experimentKind"] == "custom_model_development"
    shown = tags["mlflow.sharedViewState.rayfl"]
    assert all(f"tags.`{name}`" in shown for name in TAGS)
    assert all(f"metrics.`{name}`" in shown for name in METRICS)
    assert CHARTS in shown


def test_an_experiment_is_told_row_by_row(made: Made) -> None:
    table = build_table(read_experiment(TITLE, made.uri))
    assert table.row_axes == ("method",)
    assert [table.column_title(column) for column in table.columns] == [
        "accuracy (%), last 10 rounds",
        "accuracy (%), best round",
    ]
