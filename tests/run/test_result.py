"""A finished run as Python and notebooks have it: frames, figures, clients; loaded and compared."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayfl
from rayfl.errors import ConfigError, StorageError
from rayfl.run.description import describe_run, name_run
from rayfl.run.experiment import merge_given
from rayfl.run.summary import summarise_history

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's and torch's own, when a model is read

SETTINGS: dict[str, Any] = {
    "clients": 4,
    "noise": {"name": "symmetric", "rate": 0.5},
    "split": {"public": {"fraction": 0.1}},
    "model": {"name": "mlp", "hidden": [8]},
    "method": "fedds",
    "training": {"rounds": 3, "lr": 0.1},
    "fleet": "inline",
}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> rayfl.Result:
    return rayfl.run(SETTINGS, output=str(tmp_path_factory.mktemp("out")))


@pytest.fixture(scope="module")
def other(result: rayfl.Result) -> rayfl.Result:
    """The same with another method and seed, and untracked."""
    changes: dict[str, Any] = {"method": "fedavg", "seed": 1, "tracking": {"enabled": False}}
    return rayfl.run(SETTINGS, output=str(result.config.output), **changes)


def test_a_frame_has_a_line_a_round(result: rayfl.Result) -> None:
    frame = result.frame()
    assert list(frame.index) == [1, 2, 3]
    assert list(frame["test/accuracy"]) == [
        record["metrics"]["test/accuracy"] for record in result.history
    ]
    assert (frame["time/train_s"] > 0).all()


def test_clients_have_a_line_each_with_what_the_method_believes(result: rayfl.Result) -> None:
    clients = result.clients
    assert list(clients.index) == [0, 1, 2, 3]
    assert list(clients["samples"]) == list(result.scenario.sizes())
    realised = result.scenario.realised
    assert realised is not None
    assert np.allclose(clients["wrong labels"], realised, atol=1e-6)
    assert np.allclose(clients["reliability"], result.arrays["estimate/reliability"], atol=1e-6)


def test_labels_of_which_nobody_knows_the_truth_have_no_rate(tmp_path: Path) -> None:
    found = rayfl.run(SETTINGS, labels="given", method="fedavg", output=str(tmp_path))
    assert "wrong labels" not in found.clients
    assert "noise_by_client" not in found.figures
    assert found.noise_rate is None
    assert "0.00 %" not in (found.directory / "scenario.txt").read_text()


def test_figures_are_all_that_the_run_drew(result: rayfl.Result) -> None:
    saved = {path.stem for path in (result.directory / "figures").glob("*.png")}
    assert {name.replace("/", "-") for name in result.figures} == saved
    assert {"learning_curve", "confusion", "reliability", "noise_by_client"} <= saved
    assert result.figures._repr_html_().count("<svg") == len(saved)  # type: ignore[attr-defined]
    with pytest.raises(KeyError, match=r"there are the figures .*; got confuson"):
        result.figures["confuson"]


def test_a_plot_draws_the_metrics_that_are_named(result: rayfl.Result) -> None:
    figure = result.plot("test/loss", "time/train_s")
    assert [axes.get_ylabel() for axes in figure.axes] == ["test/loss", "time/train_s"]
    (line,) = figure.axes[0].lines
    assert list(line.get_ydata()) == list(result.frame()["test/loss"])  # type: ignore[arg-type]
    assert result.plot().axes[0].get_ylim() == (0, 1)
    with pytest.raises(ConfigError, match=r"the metric; got test/los. Did you mean 'test/loss'"):
        result.plot("test/los")


def test_a_notebook_shows_settings_numbers_and_the_curve(result: rayfl.Result) -> None:
    page = result._repr_html_()
    assert "fedds, digits over 4 clients, iid, noise symmetric 0.5" in page
    assert f"<td>{result.metrics['test/accuracy']:.4f}</td>" in page
    assert "<svg" in page
    assert len(repr(result)) < 120
    assert result.directory.name in repr(result)


def test_a_run_sums_itself_up_as_papers_do(result: rayfl.Result) -> None:
    accuracies = list(result.frame()["test/accuracy"])
    assert result.summary["best/test/accuracy"] == max(accuracies)
    assert result.summary["last10/test/accuracy"] == pytest.approx(np.mean(accuracies))
    assert result.summary["best/test/loss"] == min(result.frame()["test/loss"])
    assert not [name for name in result.summary if "recall/" in name]


def test_the_last_ten_rounds_are_the_last_ten() -> None:
    history = [{"metrics": {"test/accuracy": float(t)}} for t in range(30)]
    assert summarise_history(history) == {
        "best/test/accuracy": 29.0,
        "last10/test/accuracy": 24.5,
    }


# -- loading and comparing -------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["name", "end", "path"])
def test_a_run_is_loaded_as_it_was_returned(result: rayfl.Result, how: str) -> None:
    name = result.directory.name
    named = {"name": name, "end": name[-6:], "path": str(result.directory)}[how]
    found = rayfl.load(named, result.config.output)
    assert (found.sha256, found.scenario_sha256) == (result.sha256, result.scenario_sha256)
    assert found.history == result.history
    assert found.mlflow_run_id == result.mlflow_run_id
    assert np.array_equal(found.models[None], result.models[None])
    assert str(found.model) == str(result.model)
    assert found.clients.equals(result.clients)
    assert set(found.figures) == set(result.figures)


def test_what_cannot_be_loaded_says_why(
    result: rayfl.Result, other: rayfl.Result, tmp_path: Path
) -> None:
    output = result.config.output
    with pytest.raises(ConfigError, match=r"a run lies below .*; got nothing, which 0 runs answer"):
        rayfl.load("nothing", output)
    with pytest.raises(StorageError, match=r"which left no model: it was not tracked. Take it up"):
        rayfl.load(other.directory).models[None]
    (tmp_path / "config.yaml").write_text((result.directory / "config.yaml").read_text())
    with pytest.raises(ConfigError, match=r"a run that is loaded is over; .* --resume"):
        rayfl.load(tmp_path)


def test_runs_are_compared_by_what_they_differ_in(
    result: rayfl.Result, other: rayfl.Result
) -> None:
    both = rayfl.compare(result, other.directory.name, output=result.config.output)
    assert both.differing["method.name"] == ["fedds", "fedavg"]
    assert both.differing["seed"] == [0, 1]
    assert not [key for key in both.differing if key.startswith("tracking")]
    assert both.labels[0].startswith("fedds, seed=0")
    frame = both.frame()
    assert list(frame.index) == [result.directory.name, other.directory.name]
    assert list(frame["best/test/accuracy"]) == [
        each.summary["best/test/accuracy"] for each in (result, other)
    ]
    assert len(both.plot().axes[0].lines) == 2
    page = both._repr_html_()
    assert page.count("<tr>") == 3
    assert "<svg" in page


def test_equal_runs_stay_apart(result: rayfl.Result) -> None:
    assert len(set(rayfl.compare(result, result).labels)) == 1
    assert rayfl.compare(result, result).differing == {}


# -- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "fedds s0 0.5 symmetric iid digits 11-19 11:53:10"),
        ({"seed": 3, "noise": "none"}, "fedds s3 none iid digits 11-19 11:53:10"),
        (
            {
                "method": {"name": "fedprox", "mu": 0.1},
                "partition": {"name": "dirichlet", "alpha": 1},
            },
            "fedprox mu=0.1 s0 0.5 symmetric 1 dirichlet digits 11-19 11:53:10",
        ),
        (
            {"noise": {"name": "symmetric", "rate": {"name": "ramp", "min": 0, "max": 0.8}}},
            "fedds s0 symmetric ramp iid digits 11-19 11:53:10",
        ),
    ],
)
def test_names_tell_runs_apart_where_a_list_cuts_them(changes: dict[str, Any], name: str) -> None:
    config = rayfl.Config(**{**SETTINGS, **changes})
    assert name_run(config, "20261119-115310-fedds-057239") == name


def test_the_opening_line_says_what_runs() -> None:
    said = describe_run(rayfl.Config(**SETTINGS))
    assert said == (
        "fedds, digits over 4 clients, iid, noise symmetric 0.5, mlp hidden=[8], "
        "3 rounds of 4 clients, seed 0"
    )
    given = describe_run(rayfl.Config(**{**SETTINGS, "labels": "given", "noise": "none"}))
    assert "labels as they are" in given
    assert "clean" not in given


# -- keywords --------------------------------------------------------------------------------------


def test_settings_are_given_by_name(tmp_path: Path) -> None:
    file = tmp_path / "base.yaml"
    file.write_text("method: {name: fedprox, mu: 0.5}\ntraining: {rounds: 7, lr: 0.2}\n")
    merged = merge_given(file, {"training": {"rounds": 2}, "method.mu": 0.1, "seed": 4})
    assert merged == {
        "method": {"name": "fedprox", "mu": 0.1},
        "training": {"rounds": 2, "lr": 0.2},
        "seed": 4,
    }
    config = rayfl.Config(**SETTINGS)
    assert merge_given(config, {}) is config
    changed = merge_given(config, {"method": "fedavg"})
    assert rayfl.Config(**changed).name_of("method") == "fedavg"  # type: ignore[arg-type]


def test_an_unknown_setting_is_refused_like_one_of_a_file() -> None:
    with pytest.raises(ConfigError, match=r"metod is not a known key. Did you mean 'method'"):
        rayfl.run(metod="fedavg", fleet="inline")


def test_every_parameter_of_what_is_public_is_explained() -> None:
    import inspect

    for name in ("run", "load", "compare", "study", "sweep"):
        # Rooms that are called like functions have them inside.
        home = {"run": "rayfl.run.experiment", "study": "rayfl.study.whole"}.get(name)
        function = getattr(__import__(home, fromlist=[name]) if home else rayfl, name)
        described = inspect.getdoc(function) or ""
        for parameter in inspect.signature(function).parameters:
            assert re.search(rf"^\**{parameter}( :|$)", described, re.M), f"{name}: {parameter}"
