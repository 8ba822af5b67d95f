"""An MLflow experiment as if it were a study: its finished runs grouped by what they are, seeds as
repetitions."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfl.config.schema import mask
from rayfl.errors import ConfigError, StorageError, broken, nearest
from rayfl.run.store import LAST, Record, read
from rayfl.study.result import CellResult, StudyResult, Value
from rayfl.study.schema import Choice, Layout, Score, Study
from rayfl.tracking.tracker import quiet_client

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

AXES = ("method", "dataset", "partition", "noise")
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
MOST_SETTINGS = 3
MOST_RUNS = 10_000


@dataclass(frozen=True)
class Tracked:
    """One finished run with its settings, flat, as MLflow has them."""

    tags: Mapping[str, str]
    settings: Mapping[str, str]
    record: Record

    @property
    def seed(self) -> int:
        return int(self.tags["seed"])


def experiment_result(name: str, uri: str) -> StudyResult:
    """All finished runs of an experiment as a study's result."""
    client = quiet_client(uri)
    try:
        found = list(tracked(client, name, uri))
    except (ConfigError, StorageError):
        raise
    except Exception as error:
        rule = "the MLflow store must answer"
        raise StorageError(
            broken(rule, f"{mask(uri)}: {str(mask(str(error))).splitlines()[0]}")
        ) from error
    if not found:
        raise ConfigError(
            broken(
                f"experiment '{name}' needs a finished run",
                "none",
                "Wait for one, or name another.",
            )
        )
    return as_study(name, found)


def tracked(client: MlflowClient, name: str, uri: str) -> Iterator[Tracked]:
    """The experiment's finished runs, oldest first, each with what it left."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        known = [each.name for each in client.search_experiments()]
        remedy = nearest(name, known) or f"There are: {', '.join(known)}"
        raise ConfigError(broken(f"{mask(uri)} has the experiment", name, remedy))
    runs = client.search_runs(
        [experiment.experiment_id],
        "attributes.status = 'FINISHED'",
        order_by=["attributes.start_time ASC"],
        max_results=MOST_RUNS,
    )
    local = directories(uri)
    for run in runs:
        if {*AXES, "seed", "config", "scenario"} <= set(run.data.tags):
            record = (
                read(local[run.info.run_id]) if run.info.run_id in local else fetched(client, run)
            )
            if record is not None:
                yield Tracked(run.data.tags, run.data.params, record)


def directories(uri: str) -> dict[str, Path]:
    """Run directories beside a store on this machine, by MLflow's run id."""
    found = {}
    if uri.startswith("sqlite:///"):
        for note in Path(uri.removeprefix("sqlite:///")).parent.glob("runs/*/tracking.json"):
            facts = json.loads(note.read_text())
            if "run_id" in facts and (note.parent / "result.json").exists():
                found[str(facts["run_id"])] = note.parent
    return found


def fetched(client: MlflowClient, run: Run) -> Record:
    """A run that lies elsewhere: its metrics, and the files that were logged with it."""
    directory = Path(tempfile.mkdtemp(prefix="rayfl-report-")) / (
        run.info.run_name or run.info.run_id
    )
    directory.mkdir()
    there = {file.path for file in client.list_artifacts(run.info.run_id)}
    for name in ("config.yaml", "arrays.npz", "figures"):
        if name in there:
            client.download_artifacts(run.info.run_id, name, str(directory))
    tags = run.data.tags
    began = {"digest": tags["config"], "scenario": tags["scenario"], "rayfl": tags.get("rayfl", "")}
    (directory / "run.json").write_text(
        json.dumps({**began, "tags": dict(tags), "time": run.info.start_time})
    )
    history = history_of(client, run)
    ended = {"rounds": len(history), "sha256": tags.get("model_sha256", ""), "history": history}
    (directory / "result.json").write_text(json.dumps(ended))
    record = read(directory)
    assert record is not None
    return record


def history_of(client: MlflowClient, run: Run) -> list[dict[str, Any]]:
    """Metrics by round, as a run's own result has them."""
    rounds: dict[int, dict[str, dict[str, float]]] = {}
    for name in run.data.metrics:
        kind = "clock" if name.startswith("time/") else "metrics"
        for point in client.get_metric_history(run.info.run_id, name):
            rounds.setdefault(point.step, {"metrics": {}, "clock": {}})[kind][name] = point.value
    return [{"round": number, **rounds[number]} for number in sorted(rounds) if number > 0]


# -- grouping --------------------------------------------------------------------------------------------------------


def as_study(name: str, found: Sequence[Tracked]) -> StudyResult:
    """Runs by method, dataset, partition and noise; settings that differ are told in the titles."""
    keys = titled(found)
    cells: dict[tuple[str, ...], dict[int, Tracked]] = {}
    for run, key in zip(found, keys, strict=True):
        cells.setdefault(key, {})[run.seed] = run  # of equal repetitions the newest
    titles = {axis: sorted({key[i] for key in cells}) for i, axis in enumerate(AXES)}
    axes = {
        axis: {title: Choice(title=title, set=numbers_told(title)) for title in titles[axis]}
        for axis in AXES
    }
    scores = {
        "accuracy": Score(title=f"accuracy (%), last {LAST} rounds", percent=True),
        "best": Score(title="accuracy (%), best round", percent=True, over="best"),
    }
    seeds = sorted({run.seed for run in found})
    study = Study(
        title=f"Experiment {name}", axes=axes, seeds=seeds, scores=scores,
        table=Layout(rows=[*AXES[1:], "method"], columns=["score"]),
    )  # fmt: skip
    results = [
        cell_of(dict(zip(AXES, key, strict=True)), runs, scores) for key, runs in cells.items()
    ]
    return StudyResult(name=name, study=study, cells=results, seeds=seeds)


def cell_of(
    choices: Mapping[str, str], runs: Mapping[int, Tracked], scores: Mapping[str, Score]
) -> CellResult:
    seeds = sorted(runs)
    records = {seed: runs[seed].record for seed in seeds}
    worth = {
        name: measured(score, [records[seed] for seed in seeds], seeds)
        for name, score in scores.items()
    }
    command = "\n".join(f"rayfl run {records[seed].directory / 'config.yaml'}" for seed in seeds)
    return CellResult(choices, choices, records=records, scores=worth, command=command)


def measured(score: Score, records: Sequence[Record], seeds: Sequence[int]) -> Value:
    """A score of every repetition that has it."""
    assert score.metric is not None
    values = [100 * record.score(score.metric, score.over, score.window) for record in records]
    known = [
        (seed, value) for seed, value in zip(seeds, values, strict=True) if math.isfinite(value)
    ]
    return Value(
        score.title, tuple(v for _, v in known), tuple(s for s, _ in known), digits=score.digits
    )


def titled(found: Sequence[Tracked]) -> list[tuple[str, ...]]:
    """For each run its titles on all axes."""
    others = {axis: titles_of(axis, found, [run.tags[axis] for run in found]) for axis in AXES[1:]}
    where = list(zip(*others.values(), strict=True))
    methods = titles_of(
        "method",
        found,
        [(run.tags["method"], *place) for run, place in zip(found, where, strict=True)],
    )
    return [(method, *place) for method, place in zip(methods, where, strict=True)]


def titles_of(axis: str, found: Sequence[Tracked], keys: Sequence[Any]) -> list[str]:
    """The tag of each run on an axis, with those of its settings in which runs of the same key
    differ."""
    settings = [
        {key: value for key, value in run.settings.items() if owner(key) == axis} for run in found
    ]
    titles = []
    for run, key, own in zip(found, keys, settings, strict=True):
        alike = [other for other, other_key in zip(settings, keys, strict=True) if other_key == key]
        shown = differing(own, alike, axis)
        shown = [*shown[:MOST_SETTINGS], "..."] if len(shown) > MOST_SETTINGS else shown
        titles.append(f"{run.tags[axis]} ({', '.join(shown)})" if shown else run.tags[axis])
    return titles


def differing(own: Mapping[str, str], alike: Sequence[Mapping[str, str]], axis: str) -> list[str]:
    """Settings in which one of several differs: first components by their names, then what equal
    ones are set to."""
    shown = []
    for name in [name for name in own if name.endswith(".name")]:
        if varies(name, alike):
            shown.append(f"{short(name, axis)}={own[name]}")
            alike = [other for other in alike if other.get(name) == own[name]]
    shown += [
        f"{short(name, axis)}={own[name]}"
        for name in own
        if own[name] != "None" and varies(name, alike)
    ]
    return shown


def varies(name: str, alike: Sequence[Mapping[str, str]]) -> bool:
    """Whether runs that have a setting differ in it; earlier versions did not have them all."""
    return len({other[name] for other in alike if name in other}) > 1


def numbers_told(title: str) -> dict[str, float]:
    """The number in `fedrn (k=1)` as a setting, which a sensitivity is drawn over; nothing where
    more is told."""
    told = re.fullmatch(r"(.*) \(([^=,]+)=(-?[\d.]+(?:e-?\d+)?)\)", title)
    return {f"{told[1]} {told[2]}": float(told[3])} if told else {}


def owner(key: str) -> str | None:
    """The axis that a setting belongs to; None for settings of place and repetition."""
    if key.startswith(PLACE):
        return None
    return next((axis for axis, prefixes in OWN.items() if key.startswith(prefixes)), "method")


def short(name: str, axis: str) -> str:
    """`k` for `method.k`, `rate` for `noise.rate.name`: what the axis says already is left out."""
    name = name.removesuffix(".name").removesuffix(".total")
    return name.removeprefix(f"{axis}.").removeprefix("data.").removeprefix("split.")
