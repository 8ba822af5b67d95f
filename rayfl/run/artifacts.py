"""What is known of a run before it starts and what it leaves at its end: tags, figures, arrays, a
model; in its directory and in MLflow."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rayfl.config.schema import Config
from rayfl.config.secrets import mask_secrets
from rayfl.durable import write_file
from rayfl.federation.scenario import Scenario
from rayfl.run.assembly import NetworkRecipe, filled_network
from rayfl.run.directory import refuse_unwritable
from rayfl.run.engine import Outcome
from rayfl.run.environment import (
    cpu_capability,
    describe_machine,
    git_commit,
    library_versions,
)
from rayfl.run.signals import Interrupted
from rayfl.run.standing import tell_standing
from rayfl.tracking.store import default_uri
from rayfl.tracking.tracker import Tracker
from rayfl.version import __version__

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("rayfl")

DPI = 130
HASTE_SECONDS = 0.5
"""How long a run that has ended badly waits for its tracking."""


def tracking_uri(config: Config) -> str:
    """Where MLflow keeps a run: as configured, by MLFLOW_TRACKING_URI, or below the output."""
    given = config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI")
    return given or default_uri(config.output)


@contextmanager
def track_run(config: Config, directory: Path, scenario: Scenario) -> Iterator[Tracker]:
    """The run in MLflow, from all that is known before its first round to how it ended."""
    with refuse_unwritable(directory):
        tracker = Tracker(directory, tracking_uri(config), config.tracking.enabled)
        _describe_run(tracker, config, scenario, directory)
    try:
        yield tracker
    except (Interrupted, KeyboardInterrupt):
        tracker.finish("KILLED", patience=HASTE_SECONDS)
        raise
    except BaseException:
        tracker.finish("FAILED", patience=HASTE_SECONDS)
        raise
    tracker.finish("FINISHED")


def _describe_run(tracker: Tracker, config: Config, scenario: Scenario, directory: Path) -> None:
    from rayfl.federation.scenario_display import list_scenario_facts

    tags = {
        **{slot: config.name_of(slot) for slot in ("method", "model", "partition", "noise")},
        "dataset": scenario.dataset.name,
        "seed": str(config.seed),
        "scenario": scenario.sha256,
        "config": config.digest,
        "rayfl": __version__,
        "git": git_commit(),
        "fleet": config.fleet,
        **describe_machine(),
        **library_versions(),
        **config.tracking.tags,
    }
    experiment = mask_secrets(config.tracking.experiment)
    name = mask_secrets(config.tracking.run_name) or directory.name
    tracker.start(experiment, name, tags, flatten_settings(config.resolved()))
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
    directory: Path,
    outcome: Outcome,
    recipe: NetworkRecipe,
) -> None:
    """Write what a finished run leaves: its result, and, where it is tracked, figures and a
    model."""
    with refuse_unwritable(directory):
        _save_arrays(directory / "arrays.npz", scenario, outcome)
        _save_result(directory / "result.json", scenario, outcome)
        tell_standing(tracker, directory, outcome.left, scenario)
    tracker.tags({"model_sha256": outcome.sha256})
    if not tracker.enabled:
        return
    tracker.artifact(directory / "arrays.npz")
    for path in _save_figures(directory / "figures", config, scenario, outcome):
        tracker.artifact(path, "figures")
    with _optional_output("the model in MLflow's form"):
        tracker.model(_save_model(directory / "model", recipe, outcome))


def _save_arrays(path: Path, scenario: Scenario, outcome: Outcome) -> None:
    """The confusion matrix, each client's true share of wrong labels, and whatever the method
    left."""
    arrays = dict(outcome.left)
    if outcome.verdict is not None:
        arrays["confusion"] = outcome.verdict.confusion
    if scenario.realised is not None:
        arrays["noise_rate"] = scenario.realised
    np.savez_compressed(path, **arrays)  # type: ignore[arg-type]


def _save_result(path: Path, scenario: Scenario, outcome: Outcome) -> None:
    sizes = scenario.sizes()
    metrics: dict[str, float] = {}
    for record in outcome.history:
        metrics |= record["metrics"]
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
        "metrics": metrics,
        "history": outcome.history,
        "facts": facts,
    }
    write_file(path, json.dumps(ended))


def _save_figures(folder: Path, config: Config, scenario: Scenario, outcome: Outcome) -> list[Path]:
    """The run's figures, and those of its scenario, as PNG files."""
    from rayfl.federation.scenario_display import draw_scenario_figures
    from rayfl.plots.run_figures import (
        draw_confusion,
        draw_estimate,
        draw_learning_curve,
        draw_left_array,
    )

    method = config.name_of("method")
    title = f"{method} on {scenario.dataset.name}, seed {config.seed}"
    drawn: dict[str, Figure] = {}
    with _optional_output("the figures of the scenario"):
        drawn |= draw_scenario_figures(scenario)
    with _optional_output("the figure learning_curve"):
        drawn["learning_curve"] = draw_learning_curve(outcome.history, title)
    if outcome.verdict is not None:
        with _optional_output("the figure confusion"):
            confusion = outcome.verdict.confusion
            drawn["confusion"] = draw_confusion(confusion, scenario.classes, title)
    for name, array in outcome.left.items():
        short = name.rpartition("/")[2]
        with _optional_output(f"the figure {name}"):
            if not name.startswith("estimate/"):
                drawn[name] = draw_left_array(name, array)
            elif scenario.realised is not None:
                drawn[short] = draw_estimate(short, array, scenario.realised)
    return _save_drawn(folder, drawn)


def _save_drawn(folder: Path, drawn: Mapping[str, Figure]) -> list[Path]:
    folder.mkdir(exist_ok=True)
    paths = []
    for name, figure in drawn.items():
        # A name that a method gave may look like a path.
        path = folder / f"{name.replace('/', '-')}.png"
        with _optional_output(f"the figure {name}"):
            figure.savefig(path, dpi=DPI)
            paths.append(path)
    return sorted(paths)


@contextmanager
def _optional_output(what: str) -> Iterator[None]:
    """The result stands: what is wrong with something to look at is said, and does not end the
    run."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        log.warning("%s could not be made (%s)", what, reason)


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
    save_model(network, mlflow.models.ModelSignature(*schemas), folder)
    return folder
