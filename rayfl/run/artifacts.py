"""What a run leaves at its end, and how it is tracked: arrays, tables, figures, a model; in its
directory and in MLflow."""

from __future__ import annotations

import io
import json
import re
import time
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.config.schema import Config
from rayfl.durable import write_file
from rayfl.errors import ConfigError, DataError, ResourceError
from rayfl.federation.scenario import Scenario
from rayfl.run.assembly import NetworkRecipe, filled_network
from rayfl.run.client_table import FILE as CLIENTS, list_clients, write_clients
from rayfl.run.description import name_run
from rayfl.run.directory import refuse_unwritable
from rayfl.run.engine import Outcome
from rayfl.run.environment import cpu_capability
from rayfl.run.figures import draw_run_figures, optional_output
from rayfl.run.signals import Interrupted
from rayfl.run.standing import FILE as STANDING, write_standing
from rayfl.run.summary import summarise_history
from rayfl.run.tracked_facts import DIGEST_LETTERS, list_datasets, name_test_set, tag_run
from rayfl.tracking.store import choose_uri
from rayfl.tracking.system_metrics import sample_system
from rayfl.tracking.tracker import Tracker
from rayfl.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 130
HASTE_SECONDS = 0.5
"""How long a run that has ended badly waits for its tracking."""
THUMB = (256, 256)
"""The size of the picture that MLflow shows among charts before it is opened."""


def tracking_uri(config: Config) -> str:
    """Where MLflow keeps a run: as configured, by MLFLOW_TRACKING_URI, or below the output."""
    return choose_uri(config.output, config.tracking.uri)


@contextmanager
def track_run(
    config: Config, directory: Path, scenario: Scenario, shape: tuple[int, int, int]
) -> Iterator[Tracker]:
    """The run in MLflow, from all that is known before its first round to how it ended.

    What is refused before the first round leaves none."""
    with refuse_unwritable(directory):
        tracker = Tracker(directory, tracking_uri(config), config.tracking.enabled)
        _describe_run(tracker, config, scenario, shape)
    try:
        with sample_system(tracker, config.tracking.system_metrics):
            yield tracker
    except (Interrupted, KeyboardInterrupt):
        tracker.finish("KILLED", patience=HASTE_SECONDS)
        raise
    except (ConfigError, DataError, ResourceError):
        if tracker.journal.last_round:
            tracker.finish("FAILED", patience=HASTE_SECONDS)
        else:
            tracker.abandon()
        raise
    except BaseException:
        tracker.finish("FAILED", patience=HASTE_SECONDS)
        raise
    tracker.finish("FINISHED")


def _describe_run(
    tracker: Tracker, config: Config, scenario: Scenario, shape: tuple[int, int, int]
) -> None:
    from rayfl.federation.scenario_display import list_scenario_facts

    directory = tracker.journal.directory
    name = config.tracking.run_name or name_run(config, directory.name)
    tags = tag_run(config, scenario, directory)
    tracker.start(config.tracking.experiment, name, tags, flatten_settings(config.resolved()))
    tracker.datasets(list_datasets(config, scenario, shape))
    text = "\n".join(f"{key}: {value}" for key, value in list_scenario_facts(scenario))
    (directory / "scenario.txt").write_text(text + "\n", encoding="utf-8")
    for file in ("config.yaml", "scenario.txt"):
        tracker.artifact(directory / file)


def flatten_settings(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `training.lr`."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten_settings(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


# -- the end of a run ------------------------------------------------------------------------------


def conclude_run(
    tracker: Tracker,
    config: Config,
    scenario: Scenario,
    outcome: Outcome,
    recipe: NetworkRecipe,
) -> None:
    """Write what a finished run leaves: its result, and, where it is tracked, figures and a
    model."""
    directory = tracker.journal.directory
    with refuse_unwritable(directory):
        _save_arrays(directory / "arrays.npz", scenario, outcome)
        _save_result(directory / "result.json", scenario, outcome)
        write_clients(directory, list_clients(scenario, outcome.left, outcome.history))
        write_standing(directory, outcome.left, scenario)
    # One that was taken further has more rounds than it began with.
    tracker.tags({"model_sha256": outcome.sha256, "rounds": str(outcome.rounds)})
    if not tracker.enabled:
        return
    tracker.values(outcome.rounds, summarise_history(outcome.history))
    tracker.artifact(directory / "arrays.npz")
    _track_tables(tracker, directory)
    _track_figures(tracker, config, scenario, outcome)
    with optional_output("the model in MLflow's form"):
        folder = _save_model(directory / "model", recipe, outcome)
        tracker.model(folder, **_describe_model(config, scenario, outcome))


def _save_arrays(path: Path, scenario: Scenario, outcome: Outcome) -> None:
    """The confusion matrix, each client's true share of wrong labels, and whatever the method
    left."""
    arrays = dict(outcome.left)
    if outcome.verdict is not None:
        arrays["confusion"] = outcome.verdict.confusion
    if scenario.realised is not None:
        arrays["noise_rate"] = scenario.realised
    if scenario.attack is not None:
        arrays["hostile"] = np.isin(np.arange(scenario.clients), scenario.attack.clients)
    # On the disk before the result, which says that all is there.
    write_file(path, _pack_arrays(arrays))


def _pack_arrays(arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """What np.savez_compressed writes; it takes `file` for an argument, and a method names its
    arrays as it likes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return packed.getvalue()


def _save_result(path: Path, scenario: Scenario, outcome: Outcome) -> None:
    sizes = scenario.sizes()
    facts = {
        # What costs are compared with: the size of a model, and of a client.
        "parameters": len(next(iter(outcome.models.values()))),
        "mean_client_samples": float(sizes[sizes > 0].mean()),
        "classes": list(scenario.classes),
        "noise_rate": scenario.noise_rate(),
        "client_names": scenario.client_names,
        "capability": cpu_capability(),
    }
    ended = {
        "sha256": outcome.sha256,
        "rounds": outcome.rounds,
        "metrics": _list_last(outcome),
        "history": outcome.history,
        "facts": facts,
    }
    write_file(path, json.dumps(ended))


def _list_last(outcome: Outcome) -> dict[str, float]:
    """The last value of every metric."""
    metrics: dict[str, float] = {}
    for record in outcome.history:
        metrics |= record["metrics"]
    return metrics


def _track_tables(tracker: Tracker, directory: Path) -> None:
    """Tables of the clients and of those that stand out, which MLflow shows as such where a tag
    says so."""
    paths = [path for name in (CLIENTS, STANDING) if (path := directory / name).is_file()]
    for path in paths:
        tracker.artifact(path)
    shown = [{"path": path.name, "type": "table"} for path in paths]
    tracker.tags({"mlflow.loggedArtifacts": json.dumps(shown)})


# -- figures ---------------------------------------------------------------------------------------


def _track_figures(tracker: Tracker, config: Config, scenario: Scenario, outcome: Outcome) -> None:
    """The figures as files, and among the charts of the run's page."""
    directory = tracker.journal.directory
    title = f"{config.name_of('method')} on {scenario.dataset.name}, seed {config.seed}"
    confusion = None if outcome.verdict is None else outcome.verdict.confusion
    drawn = draw_run_figures(title, scenario, outcome.history, confusion, outcome.left)
    paths = _save_drawn(directory / "figures", drawn)
    for path in paths:
        tracker.artifact(path, "figures")
    with optional_output("the figures among the charts"):
        for path in paths:
            for picture in _save_pictures(directory / "images", path, outcome.rounds):
                tracker.artifact(picture, "images")
        tracker.tags({"mlflow.loggedImages": "True"})


def _save_drawn(folder: Path, drawn: Mapping[str, Figure]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for name, figure in drawn.items():
        # A name that a method gave may look like a path.
        path = folder / f"{name.replace('/', '-')}.png"
        with optional_output(f"the figure {name}"):
            figure.savefig(path, dpi=DPI)
            paths.append(path)
    return sorted(paths)


def _save_pictures(folder: Path, path: Path, step: int) -> list[Path]:
    """A figure under the names that MLflow's charts look for: whole, and small."""
    from PIL import Image

    folder.mkdir(exist_ok=True)
    moment = int(time.time() * 1000)
    # The same figure of the same round is the same picture, however often it is made.
    number = uuid.uuid5(uuid.NAMESPACE_URL, f"{path}{step}")
    stem = f"{path.stem}+step+{step}+timestamp+{moment}+{number}"
    whole, small = folder / f"{stem}.png", folder / f"{stem}+compressed.webp"
    with Image.open(path) as image:
        image.save(whole)
        image.thumbnail(THUMB)
        image.convert("RGB").save(small)
    return [whole, small]


# -- the model -------------------------------------------------------------------------------------


def _describe_model(config: Config, scenario: Scenario, outcome: Outcome) -> dict[str, Any]:
    """What the model is called, and how good it is on which images."""
    measured = [*_list_last(outcome), *summarise_history(outcome.history)]
    tested = ("test/", "best/", "last")
    title = f"{config.name_of('method').rpartition(':')[2]}-{scenario.dataset.name}"
    return {
        # MLflow refuses dots, slashes and colons.
        "name": re.sub(r"[^\w-]+", "-", title),
        "step": outcome.rounds,
        "metrics": [name for name in measured if name.startswith(tested)],
        "dataset": {
            "name": name_test_set(scenario),
            "digest": scenario.sha256[:DIGEST_LETTERS],
        },
        "tags": {
            "sha256": outcome.sha256,
            "scenario": scenario.sha256,
            "config": config.digest,
            "rayfl": __version__,
        },
        "params": {
            "method": config.name_of("method"),
            "model": config.name_of("model"),
            "seed": str(config.seed),
            "rounds": str(outcome.rounds),
        },
    }


def _save_model(folder: Path, recipe: NetworkRecipe, outcome: Outcome) -> Path:
    """The global model in MLflow's form, with a signature."""
    import mlflow

    from rayfl.tracking.saved_model import save_model

    height, width, channels = recipe.shape
    weights = next(iter(outcome.models.values()))
    network = filled_network(recipe, weights).eval()
    number = np.dtype(np.float32)
    inputs = mlflow.types.TensorSpec(number, (-1, channels, height, width))
    outputs = mlflow.types.TensorSpec(number, (-1, recipe.classes))
    schemas = [mlflow.types.Schema([spec]) for spec in (inputs, outputs)]
    save_model(network, mlflow.models.ModelSignature(*schemas), weights, folder)
    return folder
