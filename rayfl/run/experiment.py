"""The story of one run: from a configuration to a finished directory, an MLflow run and a
result."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

from rayfl.config.files import merge_settings, put_setting, read_config
from rayfl.config.schema import Config
from rayfl.errors import ConfigError, broken
from rayfl.federation.datasets import find_data_root
from rayfl.fleet.on_ray.connection import connect_ahead
from rayfl.run import checkpoint
from rayfl.run.artifacts import conclude_run, track_run, tracking_uri
from rayfl.run.assembly import NetworkRecipe, build_holdings, narrow_scenario
from rayfl.run.description import describe_run
from rayfl.run.directory import (
    begin_directory,
    claim_directory,
    newest_unfinished,
    refuse_unwritable,
)
from rayfl.run.engine import Engine
from rayfl.run.places import RunPlace, open_place
from rayfl.run.preflight import PreparedRun, prepare_run
from rayfl.run.progress import Doing, Progress, Teller, choose_doing, choose_progress
from rayfl.run.result import Result
from rayfl.run.signals import Interrupted, Stop, stop_on_signals
from rayfl.tracking import store

log = logging.getLogger("rayfl")


def run(
    config: Config | Mapping[str, Any] | str | Path | PreparedRun | None = None,
    *,
    resume: str | Path | None = None,
    address: str | None = None,
    progress: Progress | bool | None = None,
    directory: Path | None = None,
    stop: Stop | None = None,
    **settings: Any,
) -> Result:
    """Run one configuration.

    >>> rayfl.run(method="fedprox", clients=5, training={"rounds": 2})  # doctest: +SKIP

    Parameters
    ----------
    config : Config, mapping, str, Path or PreparedRun, optional
        A configuration, the plain values of one, or its file; by default all is as `Config` has
        it. Or one that has been looked at already.
    resume : str or Path, optional
        A run to take up again: its name or its directory, or `auto` for the newest unfinished one
        like it that nobody is at work on.
    address : str, optional
        A Ray cluster; by default RAY_ADDRESS, or a Ray of our own on this machine.
    progress : Progress or bool, optional
        Told of every round. By default a bar on a terminal and in a notebook, and nothing
        elsewhere; False for nothing anywhere.
    directory : Path, optional
        Where the run is to lie; one that is there already is taken up again.
    stop : Stop, optional
        With it a caller whose thread gets no signals can end the run as a signal would.
    **settings
        Settings by name, laid onto `config` by the rules of `base`: `method="fedavg"`,
        `noise={"name": "symmetric", "rate": 0.4}`; with dots as `**{"training.lr": 0.1}`.

    Returns
    -------
    Result
        History, networks, figures, and where everything lies.

    Raises
    ------
    RayflError
        What a user can mend, in a sentence.
    Interrupted
        The run was told to stop; its checkpoint is written.
    """
    ahead = _look_ahead(config, settings, address, choose_doing(progress))
    with stop_on_signals(stop) as stop, ahead as prepared:
        return _claim_and_run(prepared, directory, resume, address, progress, stop)


def _look_ahead(
    config: Config | Mapping[str, Any] | str | Path | PreparedRun | None,
    settings: Mapping[str, Any],
    address: str | None,
    doing: Doing,
) -> AbstractContextManager[PreparedRun]:
    """What is to be run, with nothing known to be wrong with it."""
    if not isinstance(config, PreparedRun):
        return prepare_run(merge_given(config, settings), address, doing=doing)
    if settings:
        rule = "settings are laid onto a configuration before it is looked at"
        raise ConfigError(broken(rule, ", ".join(settings), "Give them to prepare_run."))
    return nullcontext(config)


def _claim_and_run(
    prepared: PreparedRun,
    directory: Path | None,
    resume: str | Path | None,
    address: str | None,
    progress: Progress | bool | None,
    stop: Stop,
) -> Result:
    _refuse_bad_uris(prepared.config)
    with (
        claim_directory(prepared.config, directory, resume) as folder,
        closing(choose_progress(progress, prepared.config.training.rounds)) as watched,
    ):
        return _run_in(folder, prepared, address, watched, stop)


def merge_given(
    config: Config | Mapping[str, Any] | str | Path | None, settings: Mapping[str, Any]
) -> Config | Mapping[str, Any]:
    """What a caller gave as one: a configuration as it is, or plain values.

    Parameters
    ----------
    config : Config, mapping, str, Path or None
        A configuration, the plain values of one, or its file.
    settings : mapping
        Laid onto it; names may have dots.
    """
    if isinstance(config, Config):
        if not settings:
            return config
        config = config.model_dump(mode="json")
    if isinstance(config, (str, Path)):
        config = read_config(Path(config))
    merged = dict(config or {})
    for name, value in settings.items():
        if "." in name:
            merged = put_setting(merged, name.split("."), value)
        else:
            merged = merge_settings(merged, {name: value})
    return merged


def _refuse_bad_uris(config: Config) -> None:
    """What could never be written to is refused before anything is written at all."""
    if config.checkpoint.uri is not None:
        checkpoint.refuse_bad_uri(config.checkpoint.uri)
    if config.tracking.enabled:
        store.refuse_bad_uri(tracking_uri(config))


def _run_in(
    folder: Path, prepared: PreparedRun, address: str | None, progress: Progress, stop: Stop
) -> Result:
    """The run itself, in a directory that is its own."""
    config = prepared.config
    scenario = prepared.scenario
    recipe = NetworkRecipe(config, prepared.shape, len(scenario.classes))
    progress.note(describe_run(config))
    for warning in config.method.list_warnings(config.training, config.clients):
        log.warning("%s: %s", config.name_of("method"), warning)
    with ExitStack() as while_running:
        progress.note("connecting to Ray" if config.fleet == "ray" else "the first round")
        while_running.enter_context(connect_ahead({"fleet": config.fleet}, address))
        place = while_running.enter_context(open_place(config, address, stop))
        said = _take_in(place, prepared)
        if said:
            progress.note(f"starting {said['actors']} actors")
        with refuse_unwritable(folder):
            begin_directory(config, folder, scenario)
        # From here on there is something to go on with.
        stop.directory = folder
        with track_run(config, folder, scenario, prepared.shape) as tracker:
            tracker.tags(said)
            uri = config.checkpoint.uri or str(folder / "checkpoints")
            features = (config.data_root or find_data_root()) / "features"
            meta = {"run": folder.name}
            engine = Engine(config, scenario, uri, meta, prepared.shape, features)
            with Teller(tracker, progress) as teller:
                outcome = place.run(engine, teller)
            while_running.close()
            conclude_run(tracker, config, scenario, outcome, recipe)
    stop.directory = None
    return Result(
        config=config,
        directory=folder,
        history=outcome.history,
        sha256=outcome.sha256,
        scenario_sha256=scenario.sha256,
        mlflow_run_id=tracker.run_id,
        models=outcome.models,
        confusion=None if outcome.verdict is None else outcome.verdict.confusion,
        recipe=recipe,
        noise_rate=scenario.noise_rate(),
        arrays=outcome.left,
        known_scenario=scenario,
    )


def _take_in(place: RunPlace, prepared: PreparedRun) -> Mapping[str, str]:
    """Bring the data to where the rounds take place; what there is to say of that place."""
    dataset = prepared.hand_over()
    scenario = prepared.scenario
    narrowed = narrow_scenario(prepared.config.method, scenario)
    return place.take_in(dataset, scenario, build_holdings(prepared.config, dataset, narrowed))


__all__ = [
    "Interrupted",
    "Result",
    "Stop",
    "merge_given",
    "newest_unfinished",
    "run",
    "stop_on_signals",
    "tracking_uri",
]
