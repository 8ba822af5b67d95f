"""The story of one run, top to bottom: configuration, scenario, fleet, rounds, tracking, result."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray

from rayfl.config.schema import Config, validated
from rayfl.errors import ConfigError, RayflError, StorageError, broken
from rayfl.federation.dataset import Dataset
from rayfl.federation.datasets import data_root
from rayfl.federation.scenario import Scenario, open_federation
from rayfl.fleet.inline import InlineFleet
from rayfl.fleet.on_ray.connection import ahead, connected
from rayfl.run.assembly import NetworkRecipe, holdings_of, refuse_missing_sets, seen_by, spec_of
from rayfl.run.engine import Engine, Outcome, versions
from rayfl.run.progress import Progress, Silent
from rayfl.tracking.tracker import Tracker, default_uri
from rayfl.version import __version__

if TYPE_CHECKING:
    from torch import nn

    from rayfl.fleet.executor import Holdings
    from rayfl.fleet.on_ray.hiring import Hiring

log = logging.getLogger("rayfl")


class Interrupted(BaseException):
    """The driver was told to stop; `directory` is where the run can be taken up again."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number
        self.directory: Path | None = None


@dataclass(frozen=True)
class Result:
    """A finished run."""

    config: Config
    directory: Path
    history: list[dict[str, Any]]
    sha256: str
    scenario_sha256: str
    mlflow_run_id: str | None
    models: Mapping[int | None, NDArray[np.float32]]
    confusion: NDArray[np.int64] | None
    recipe: NetworkRecipe
    noise_rate: float | None
    """The share of wrong labels over all clients; None where nobody knows the truth."""

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of every metric."""
        return {name: value for record in self.history for name, value in record["metrics"].items()}

    @cached_property
    def model(self) -> nn.Module:
        """The global network (the first client's, for methods with several)."""
        return self.network(next(iter(self.models)))

    def network(self, client: int | None) -> nn.Module:
        """The network of one client, or the global one."""
        return loaded(self.recipe, self.models[client])


def run(
    config: Config | Mapping[str, Any],
    *,
    resume: str | Path | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    directory: Path | None = None,
    stop: Stop | None = None,
) -> Result:
    """Run one configuration. `resume` names a run, its directory, or `auto` for the newest
    unfinished one like it.

    With `directory` the caller says where: a run that is there already is taken up again. With
    `stop` a caller whose thread gets no signals can end the run as a signal would."""
    if not isinstance(config, Config):
        with ahead(config, address):
            return run(
                validated(config),
                resume=resume,
                address=address,
                progress=progress,
                directory=directory,
                stop=stop,
            )
    settings = config
    if directory is None or (directory / "config.yaml").is_file():
        directory = run_directory(settings, directory or resume)
    with stoppable(directory, stop or Stop()) as stop:
        dataset, scenario = open_federation(settings, settings.seeds_for("data"))
        shape, images = dataset.shape, Handover(dataset)
        del dataset
        with writing(directory):
            begin(settings, directory, scenario)
            tracker = Tracker(directory, tracking_uri(settings), settings.tracking.enabled)
            describe(tracker, settings, scenario)
        try:
            outcome = rounds(
                settings, images, scenario, directory, tracker, address, progress or Silent(), stop
            )
            recipe = NetworkRecipe(settings, shape, len(scenario.classes))
            with writing(directory):
                conclude(tracker, settings, scenario, directory, outcome, recipe)
        except BaseException as error:
            tracker.finish(
                "KILLED" if isinstance(error, (Interrupted, KeyboardInterrupt)) else "FAILED",
                patience=0.5,
            )
            raise
        tracker.finish("FINISHED")
    confusion = None if outcome.verdict is None else outcome.verdict.confusion
    return Result(
        config=settings,
        directory=directory,
        history=outcome.history,
        sha256=outcome.sha256,
        scenario_sha256=scenario.sha256,
        mlflow_run_id=tracker.run_id,
        models=outcome.models,
        confusion=confusion,
        recipe=recipe,
        noise_rate=scenario.noise_rate(),
    )


# -- the run's directory ---------------------------------------------------------------------------------------------


def run_directory(config: Config, resume: str | Path | None) -> Path:
    """The directory of a new run, or of the one to be taken up again."""
    runs = config.output / "runs"
    if resume is None:
        method = config.resolved()["method"]["name"].rpartition(":")[2]
        stamp = time.strftime("%Y%m%d-%H%M%S")
        return runs / f"{stamp}-{method}-{os.urandom(3).hex()}"
    if str(resume) == "auto":
        return newest_unfinished(runs, config) or run_directory(config, None)
    candidates = [Path(resume), runs / str(resume), *runs.glob(f"*{resume}")]
    found = next((path for path in candidates if (path / "config.yaml").is_file()), None)
    if found is None:
        known = ", ".join(sorted(path.name for path in runs.glob("*"))[-5:]) or "none"
        raise ConfigError(
            broken(
                "--resume takes a run below the output folder, or auto",
                str(resume),
                f"Last runs: {known}",
            )
        )
    saved = described(found)
    if saved.get("digest") != config.digest:
        rule = f"a run is resumed with the configuration that it began with ({saved.get('digest', 'none')[:12]})"
        raise ConfigError(broken(rule, config.digest[:12], f"See {found / 'config.yaml'}."))
    return found.absolute()


def newest_unfinished(runs: Path, config: Config) -> Path | None:
    """The newest run with this configuration that has not reached its last round."""
    alike = [
        path
        for path in runs.glob("*/run.json")
        if described(path.parent).get("digest") == config.digest
    ]
    open_ = [path.parent for path in alike if not (path.parent / "result.json").exists()]
    return max(open_, key=lambda path: path.name, default=None)


def described(directory: Path) -> dict[str, Any]:
    try:
        facts = json.loads((directory / "run.json").read_text())
    except (OSError, ValueError):
        return {}
    return facts if isinstance(facts, dict) else {}


def begin(config: Config, directory: Path, scenario: Scenario) -> None:
    """Write what the run is, before it starts."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.yaml").write_text(yaml.safe_dump(config.resolved(), sort_keys=False))
    facts = {"digest": config.digest, "scenario": scenario.sha256, "rayfl": __version__}
    (directory / "run.json").write_text(json.dumps(facts))
    (directory / "result.json").unlink(missing_ok=True)


@contextmanager
def writing(directory: Path) -> Iterator[None]:
    """What cannot be written is said in a sentence."""
    try:
        yield
    except OSError as error:
        remedy = "Free some space or set output."
        raise StorageError(
            f"the output folder must be writable; got {directory} ({error}). {remedy}"
        ) from error


# -- the rounds ------------------------------------------------------------------------------------------------------


class Handover:
    """A dataset that this process keeps only until somebody takes it: on a cluster it lies in the
    object store."""

    def __init__(self, dataset: Dataset) -> None:
        self.held = [dataset]

    def take(self) -> Dataset:
        return self.held.pop()


def rounds(
    config: Config,
    images: Handover,
    scenario: Scenario,
    directory: Path,
    tracker: Tracker,
    address: str | None,
    progress: Progress,
    stop: Stop,
) -> Outcome:
    """All rounds, in this process or on Ray; interrupted, they leave a checkpoint."""
    dataset = images.take()
    holdings = holdings_of(config, dataset, seen_by(config.method, scenario))
    refuse_missing_sets(config.method, holdings)
    uri = config.checkpoint.uri or str(directory / "checkpoints")
    features = (config.data_root or data_root()) / "features"
    engine = Engine(config, scenario, uri, {"run": directory.name}, dataset.shape, features)
    reached = 0

    def emit(record: dict[str, Any]) -> int:
        nonlocal reached
        if "note" in record:
            progress.note(record["note"])
        elif record["round"] > reached:
            reached = record["round"]
            tracker.metrics(reached, {**record["metrics"], **record["clock"]})
            progress.round(record)
        return reached

    try:
        if config.fleet == "inline":
            return inline_rounds(engine, config, dataset, scenario, holdings, emit)
        from rayfl.fleet.on_ray.coordinator import cluster_facts, drive

        with stop.later(), connected(address):
            hiring = hired(config, dataset, scenario, holdings)
            del dataset, holdings
            tracker.tags({"cluster": cluster_facts(), "actors": str(hiring.placement.actors)})
            outcome: Outcome = drive(engine, hiring, emit, stop.heed)
            return outcome
    finally:
        progress.close()


def hired(config: Config, dataset: Dataset, scenario: Scenario, holdings: Holdings) -> Hiring:
    """How the run's actors are hired: what fits the cluster, and what each of them is given."""
    from rayfl.fleet.on_ray.coordinator import placed, stored
    from rayfl.fleet.on_ray.gpu_probe import measured_share

    wanted = config.resources
    placement = placed(
        wanted.actors,
        wanted.cpus_per_client,
        wanted.gpus_per_client,
        config.device,
        config.training.cohort(config.clients),
        lambda: measured_share(
            spec_of(config, dataset, scenario, "cuda"), holdings, wanted.cpus_per_client
        ),
        wanted.keepers,
    )
    return stored(
        spec_of(config, dataset, scenario, "cuda" if placement.cuda else "cpu"), holdings, placement
    )


def inline_rounds(
    engine: Engine,
    config: Config,
    dataset: Dataset,
    scenario: Scenario,
    holdings: Holdings,
    emit: Any,
) -> Outcome:
    """The rounds in this process."""
    if config.device == "cuda":
        raise ConfigError("fleet: inline runs on the CPU; got device: cuda. Use fleet: ray.")
    fleet = InlineFleet(spec_of(config, dataset, scenario, "cpu"), holdings)
    try:
        return engine.run(fleet, emit)
    except (Interrupted, KeyboardInterrupt):
        engine.save()
        raise
    finally:
        fleet.close()


class Stop:
    """What SIGINT and SIGTERM do: interrupt at once, or, while Ray's own code runs, at the next
    `heed`."""

    def __init__(self) -> None:
        self.asked: int | None = None
        self.patient = False

    def __call__(self, number: int, _: object) -> None:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_IGN)
        self.asked = number
        if not self.patient:
            self.heed()

    def heed(self) -> None:
        """Raise what was asked for."""
        if self.asked is not None:
            raise Interrupted(self.asked)

    @contextmanager
    def later(self) -> Iterator[None]:
        """Exceptions must not be thrown into the middle of Ray's compiled code, which would mangle
        them."""
        self.patient = True
        try:
            yield
        finally:
            self.patient = False


@contextmanager
def stoppable(directory: Path, stop: Stop) -> Iterator[Stop]:
    """SIGINT and SIGTERM end the run in good order, where this is the main thread and so may handle
    them."""
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    except Interrupted as interruption:
        interruption.directory = directory
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- tracking --------------------------------------------------------------------------------------------------------


def tracking_uri(config: Config) -> str:
    return (
        config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(config.output)
    )


def describe(tracker: Tracker, config: Config, scenario: Scenario) -> None:
    """Everything that is known before the first round."""
    from rayfl.federation.describe_scenario import summary

    resolved = config.resolved()
    names = {key: resolved[key]["name"] for key in ("method", "model", "partition", "noise")}
    tags = {
        **{key: str(value) for key, value in names.items()},
        "dataset": scenario.dataset.name,
        "seed": str(config.seed),
        "scenario": scenario.sha256,
        "config": config.digest,
        "rayfl": __version__,
        "git": git_commit(),
        "fleet": config.fleet,
        **machine(),
        **versions(),
        **config.tracking.tags,
    }
    name = config.tracking.run_name or tracker.journal.path.parent.name
    tracker.start(config.tracking.experiment, name, tags, flattened(resolved))
    folder = tracker.journal.path.parent
    text = "\n".join(f"{key}: {value}" for key, value in summary(scenario))
    (folder / "scenario.txt").write_text(text + "\n")
    for file in ("config.yaml", "scenario.txt"):
        tracker.artifact(folder / file)


def conclude(
    tracker: Tracker,
    config: Config,
    scenario: Scenario,
    directory: Path,
    outcome: Outcome,
    recipe: NetworkRecipe,
) -> None:
    """What a finished run leaves: result, figures, model."""
    metrics = {
        name: value for record in outcome.history for name, value in record["metrics"].items()
    }
    save_arrays(directory / "arrays.npz", scenario, outcome)
    ended = {
        "sha256": outcome.sha256,
        "rounds": outcome.rounds,
        "metrics": metrics,
        "history": outcome.history,
    }
    facts = facts_of(scenario, outcome)
    (directory / "result.part").write_text(json.dumps({**ended, "facts": facts}))
    os.replace(directory / "result.part", directory / "result.json")
    tracker.tags({"model_sha256": outcome.sha256})
    if not tracker.enabled:
        return
    tracker.artifact(directory / "arrays.npz")
    for path in figures_of(directory / "figures", config, scenario, outcome):
        tracker.artifact(path, "figures")
    tracker.model(saved_model(directory / "model", recipe, outcome))


def save_arrays(path: Path, scenario: Scenario, outcome: Outcome) -> None:
    """The confusion matrix, each client's true share of wrong labels, and whatever the method
    left."""
    arrays = dict(outcome.left)
    if outcome.verdict is not None:
        arrays["confusion"] = outcome.verdict.confusion
    if scenario.realised is not None:
        arrays["noise_rate"] = scenario.realised
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def facts_of(scenario: Scenario, outcome: Outcome) -> dict[str, Any]:
    """What costs are compared with: the size of a model and of a client; and the names of the
    classes."""
    sizes = scenario.sizes()
    return {
        "parameters": len(next(iter(outcome.models.values()))),
        "mean_client_samples": float(sizes[sizes > 0].mean()),
        "classes": list(scenario.classes),
        "noise_rate": scenario.noise_rate(),
    }


def figures_of(folder: Path, config: Config, scenario: Scenario, outcome: Outcome) -> list[Path]:
    """The run's figures, and those of its scenario, as PNG files."""
    from rayfl.federation.describe_scenario import figures
    from rayfl.plots.run_figures import (
        confusion_figure,
        estimate_figure,
        learning_curve,
        left_figure,
    )

    folder.mkdir(exist_ok=True)
    title = f"{config.resolved()['method']['name']} on {scenario.dataset.name}, seed {config.seed}"
    drawn = {"learning_curve": learning_curve(outcome.history, title), **figures(scenario)}
    if outcome.verdict is not None:
        drawn["confusion"] = confusion_figure(outcome.verdict.confusion, scenario.classes, title)
    for name, array in outcome.left.items():
        if not name.startswith("estimate/"):
            drawn[name] = left_figure(name, array)
        elif scenario.realised is not None:
            drawn[name.rpartition("/")[2]] = estimate_figure(
                name.rpartition("/")[2], array, scenario.realised
            )
    for name, figure in drawn.items():
        figure.savefig(folder / f"{name}.png", dpi=130)
    return sorted(folder.iterdir())


def saved_model(folder: Path, recipe: NetworkRecipe, outcome: Outcome) -> Path:
    """The global model in MLflow's form, with a signature."""
    import mlflow

    from rayfl.tracking.tracker import save_model

    height, width, channels = recipe.shape
    network = loaded(recipe, next(iter(outcome.models.values()))).eval()
    inputs = mlflow.types.TensorSpec(np.dtype(np.float32), (-1, channels, height, width))
    outputs = mlflow.types.TensorSpec(np.dtype(np.float32), (-1, recipe.classes))
    signature = mlflow.models.ModelSignature(
        mlflow.types.Schema([inputs]), mlflow.types.Schema([outputs])
    )
    save_model(network, signature, folder)
    return folder


def loaded(recipe: NetworkRecipe, weights: NDArray[np.float32]) -> nn.Module:
    """A network of its own with these weights, in the usual memory layout."""
    import torch

    from rayfl.learn.resident import Resident

    filled = Resident(recipe(), torch.device("cpu"), recipe.config.training.layout).load(weights)
    network = recipe()
    network.load_state_dict(
        {name: tensor.contiguous() for name, tensor in filled.net.state_dict().items()}
    )
    return network


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `training.lr`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        inner = isinstance(value, Mapping) and value
        flat |= flattened(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return flat


def git_commit() -> str:
    """The commit of the working directory, with a plus where it was changed; or `none`."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+"],
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return "none"
    return found.stdout.strip()


def machine() -> dict[str, str]:
    """Facts of the system that bits and speed depend on."""
    import platform

    facts = [platform.machine(), platform.system(), f"{os.cpu_count()} cores"]
    return {
        "machine": ", ".join(facts),
        "host": hashlib.sha256(platform.node().encode()).hexdigest()[:8],
    }


__all__ = ["Interrupted", "RayflError", "Result", "run"]
