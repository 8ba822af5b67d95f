"""An MLflow experiment as if it were a study: its finished runs grouped by what they are, seeds as
repetitions."""

from __future__ import annotations

import atexit
import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfl.errors import ConfigError, StorageError, broken
from rayfl.run.store import LAST, Record, read_record
from rayfl.secrets import describe_error, mask_secrets
from rayfl.study.result import CellResult, StudyResult, Value
from rayfl.study.schema import Choice, ChoiceKey, Score, Study, TableLayout
from rayfl.tracking.experiment_names import explain_unknown
from rayfl.tracking.journal import read_note
from rayfl.tracking.store import open_client

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

AXES = ("method", "dataset", "partition", "noise")
NEEDED = {*AXES, "seed", "config", "scenario"}
"""Tags of a run that can be reported."""
OWN = {
    "dataset": ("data.", "split.", "clients", "labels"),
    "partition": ("partition.",),
    "noise": ("noise.", "public_noise.", "labelled_noise."),
}
"""Settings that belong to an axis other than the method, to which all the others belong."""
PLACE = (
    "seed",
    "fleet",
    "device",
    "resources.",
    "checkpoint.",
    "tracking.",
    "output",
    "data_root",
    "scenario",
)
"""Settings that tell repetitions of one thing apart, or nothing."""
TABLE = "labels.table"
MOST_SETTINGS = 3
MOST_RUNS = 10_000
SQLITE = "sqlite:///"
WHOLE = ("best/", "last10/", "system/")
"""Beginnings of metrics that are of no round: of the whole run, or of the machine."""
NUMBER_IN_TITLE = re.compile(r"(.*) \(([^=,]+)=(-?[\d.]+(?:e-?\d+)?)\)")
SCORES = {
    "accuracy": Score(title=f"accuracy (%), last {LAST} rounds", percent=True),
    "best": Score(title="accuracy (%), best round", percent=True, over="best"),
}

Settings = Mapping[str, str]
"""A run's settings, flat, as MLflow has them."""


@dataclass(frozen=True)
class TrackedRun:
    """One finished run."""

    tags: Mapping[str, str]
    settings: Settings
    record: Record

    @property
    def seed(self) -> int:
        """What tells it from its repetitions."""
        return int(self.tags["seed"])


def read_experiment(name: str, uri: str) -> StudyResult:
    """All finished runs of an experiment as a study's result.

    Parameters
    ----------
    name
        The experiment.
    uri
        The MLflow store that has it."""
    client = open_client(uri)
    try:
        found = list(_iterate_tracked(client, name, uri))
    except (ConfigError, StorageError):
        raise
    except Exception as error:
        rule = "the MLflow store must answer"
        got = f"{mask_secrets(uri)}: {describe_error(error, uri)}"
        raise StorageError(broken(rule, got)) from error
    if not found:
        rule = f"experiment '{name}' needs a finished run"
        raise ConfigError(broken(rule, "none", "Wait for one, or name another."))
    return make_study(name, found)


def _iterate_tracked(client: MlflowClient, name: str, uri: str) -> Iterator[TrackedRun]:
    """The experiment's finished runs, oldest first, each with what it left."""
    experiment = _find_experiment(client, name, uri)
    runs = client.search_runs(
        [experiment.experiment_id],
        "attributes.status = 'FINISHED'",
        order_by=["attributes.start_time ASC"],
        max_results=MOST_RUNS,
    )
    local = find_directories(uri)
    for run in runs:
        tags = run.data.tags
        if not set(tags) >= NEEDED:
            continue
        directory = local.get(run.info.run_id)
        record = _fetch_run(client, run) if directory is None else read_record(directory)
        if record is not None:
            yield TrackedRun(tags, run.data.params, record)


def _find_experiment(client: MlflowClient, name: str, uri: str) -> Experiment:
    """The experiment of this name, or a refusal with the names that there are."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        known = [each.name for each in client.search_experiments()]
        raise explain_unknown(name, known, uri)
    return experiment


def find_directories(uri: str) -> dict[str, Path]:
    """Run directories beside a store on this machine, by MLflow's run id."""
    if not uri.startswith(SQLITE):
        return {}
    found = {}
    store = Path(uri.removeprefix(SQLITE))
    for note in store.parent.glob("runs/*/tracking.json"):
        facts = read_note(note)
        if "run_id" in facts and (note.parent / "result.json").exists():
            found[str(facts["run_id"])] = note.parent
    return found


def _make_scratch() -> Path:
    """A folder for what is fetched, which is read as long as there are figures to draw."""
    folder = Path(tempfile.mkdtemp(prefix="rayfl-report-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _fetch_run(client: MlflowClient, run: Run) -> Record:
    """A run that lies elsewhere: its metrics, and the files that were logged with it."""
    folder = _make_scratch()
    directory = folder / str(run.info.run_id)
    directory.mkdir()
    there = {file.path for file in client.list_artifacts(run.info.run_id)}
    for name in ("config.yaml", "arrays.npz", "clients.json", "figures"):
        if name in there:
            client.download_artifacts(run.info.run_id, name, str(directory))
    # The two files that a run's directory has and MLflow has not are made again of what it knows.
    tags = run.data.tags
    began = {
        "digest": tags["config"],
        "scenario": tags["scenario"],
        "rayfl": tags.get("rayfl", ""),
        "tags": dict(tags),
        "time": run.info.start_time,
    }
    (directory / "run.json").write_text(json.dumps(began))
    history = read_history(client, run)
    ended = {
        "rounds": len(history),
        "sha256": tags.get("model_sha256", ""),
        "history": history,
    }
    (directory / "result.json").write_text(json.dumps(ended))
    record = read_record(directory)
    assert record is not None
    return record


def read_history(client: MlflowClient, run: Run) -> list[dict[str, Any]]:
    """Metrics by round, as a run's own result has them."""
    rounds: dict[int, dict[str, dict[str, float]]] = {}
    for name in run.data.metrics:
        if name.startswith(WHOLE):
            continue
        kind = "clock" if name.startswith("time/") else "metrics"
        for point in client.get_metric_history(run.info.run_id, name):
            entry = rounds.setdefault(point.step, {"metrics": {}, "clock": {}})
            entry[kind][name] = point.value
    # Round 0 is what was measured before the first one.
    return [{"round": number, **rounds[number]} for number in sorted(rounds) if number > 0]


# -- grouping --------------------------------------------------------------------------------------


def make_study(name: str, found: Sequence[TrackedRun]) -> StudyResult:
    """Runs by method, dataset, partition and noise; settings that differ are told in the titles."""
    cells: dict[ChoiceKey, dict[int, TrackedRun]] = {}
    for run, key in zip(found, _title_runs(found), strict=True):
        # Of equal repetitions the newest.
        cells.setdefault(key, {})[run.seed] = run
    axes = {}
    for axis, titles in zip(AXES, zip(*cells, strict=True), strict=True):
        axes[axis] = {title: _make_choice(title) for title in sorted(set(titles))}
    seeds = sorted({run.seed for run in found})
    study = Study(
        title=f"Experiment {name}",
        axes=axes,
        seeds=seeds,
        scores=SCORES,
        table=TableLayout(rows=[*AXES[1:], "method"], columns=["score"]),
    )
    results = [_make_cell(key, runs) for key, runs in cells.items()]
    return StudyResult(name=name, study=study, cells=results, seeds=seeds)


def _make_choice(title: str) -> Choice:
    return Choice(title=title, set=parse_title_number(title))


def _make_cell(key: ChoiceKey, runs: Mapping[int, TrackedRun]) -> CellResult:
    choices = dict(zip(AXES, key, strict=True))
    records = {seed: runs[seed].record for seed in sorted(runs)}
    scores = {name: _measure_score(score, records) for name, score in SCORES.items()}
    configs = [record.directory / "config.yaml" for record in records.values()]
    command = "\n".join(f"rayfl run {config}" for config in configs)
    return CellResult(choices, choices, records=records, scores=scores, command=command)


def _measure_score(score: Score, records: Mapping[int, Record]) -> Value:
    """A score of every repetition that has it."""
    assert score.metric is not None
    known = {}
    for seed, record in records.items():
        value = 100 * record.score(score.metric, score.over, score.window)
        if math.isfinite(value):
            known[seed] = value
    return Value(
        score.title,
        tuple(known.values()),
        tuple(known),
        digits=score.digits,
    )


# -- titles ----------------------------------------------------------------------------------------


def _title_runs(found: Sequence[TrackedRun]) -> list[ChoiceKey]:
    """For each run its titles on all axes."""
    others = []
    for axis in AXES[1:]:
        tags = [(run.tags[axis],) for run in found]
        others.append(_title_axis(axis, found, tags))
    places = list(zip(*others, strict=True))
    # Settings of a method matter only among runs of it in one place.
    keys = [(run.tags["method"], *place) for run, place in zip(found, places, strict=True)]
    methods = _title_axis("method", found, keys)
    return [(method, *place) for method, place in zip(methods, places, strict=True)]


def _title_axis(
    axis: str,
    found: Sequence[TrackedRun],
    keys: Sequence[ChoiceKey],
) -> list[str]:
    """The tag of each run on an axis, with those of its settings in which runs of the same key
    differ."""
    own = [_choose_settings(run, axis) for run in found]
    alike: dict[ChoiceKey, list[Settings]] = {}
    for settings, key in zip(own, keys, strict=True):
        alike.setdefault(key, []).append(settings)
    titles = []
    for run, settings, key in zip(found, own, keys, strict=True):
        told = _list_differences(settings, alike[key], axis)
        if len(told) > MOST_SETTINGS:
            told = [*told[:MOST_SETTINGS], "..."]
        tag = run.tags[axis]
        titles.append(f"{tag} ({', '.join(told)})" if told else tag)
    return titles


def _choose_settings(run: TrackedRun, axis: str) -> Settings:
    """The settings that belong to an axis."""
    own = {key: value for key, value in run.settings.items() if find_owner(key) == axis}
    if TABLE in own:
        # Beside `true` and `given` as one of three values, and not as a setting that these lack.
        own["labels"] = "/".join(Path(own.pop(TABLE)).parts[-2:])
    return own


def _list_differences(
    own: Settings,
    alike: Sequence[Settings],
    axis: str,
) -> list[str]:
    """Settings in which one of several differs: first components by their names, then what equal
    ones are set to."""
    told = []
    components = [name for name in own if name.endswith(".name")]
    for name in components:
        if _has_several_values(name, alike):
            told.append(f"{_shorten_name(name, axis)}={own[name]}")
            # Settings of another component are no difference of this one's.
            alike = [other for other in alike if other.get(name) == own[name]]
    for name, value in own.items():
        if value != "None" and _has_several_values(name, alike):
            told.append(f"{_shorten_name(name, axis)}={value}")
    return told


def _has_several_values(name: str, alike: Sequence[Settings]) -> bool:
    """Whether runs that have a setting differ in it; earlier versions did not have them all."""
    values = {other[name] for other in alike if name in other}
    return len(values) > 1


def parse_title_number(title: str) -> dict[str, float]:
    """The number in `fedrn (k=1)` as a setting, which a sensitivity is drawn over; nothing where
    more is told."""
    found = NUMBER_IN_TITLE.fullmatch(title)
    if found is None:
        return {}
    tag, setting, number = found.groups()
    return {f"{tag} {setting}": float(number)}


def find_owner(key: str) -> str | None:
    """The axis that a setting belongs to; None for settings of place and repetition."""
    if key.startswith(PLACE):
        return None
    for axis, prefixes in OWN.items():
        if key.startswith(prefixes):
            return axis
    return "method"


def _shorten_name(name: str, axis: str) -> str:
    """`k` for `method.k`, `rate` for `noise.rate.name`: what the axis says already is left out."""
    short = name.removesuffix(".name").removesuffix(".total")
    for prefix in (f"{axis}.", "data.", "split."):
        short = short.removeprefix(prefix)
    return short
