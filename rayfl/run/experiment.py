"""The story of one run, top to bottom: configuration, directory, scenario, place, rounds,
result."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from rayfl.config.files import merge_settings, put_setting, read_config
from rayfl.config.schema import Config, validate_config
from rayfl.federation.datasets import find_data_root
from rayfl.federation.scenario import open_federation
from rayfl.fleet.on_ray.connection import connect_ahead
from rayfl.run.artifacts import conclude_run, track_run, tracking_uri
from rayfl.run.assembly import NetworkRecipe, build_holdings, refuse_missing_sets
from rayfl.run.description import describe_run
from rayfl.run.directory import (
    begin_directory,
    claim_directory,
    newest_unfinished,
    refuse_unwritable,
)
from rayfl.run.engine import Engine
from rayfl.run.places import open_place
from rayfl.run.progress import Progress, Teller, choose_progress
from rayfl.run.result import Result
from rayfl.run.signals import Interrupted, Stop, stop_on_signals

log = logging.getLogger("rayfl")


def run(
    config: Config | Mapping[str, Any] | str | Path | None = None,
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
    config : Config, mapping, str or Path, optional
        A configuration, the plain values of one, or its file; by default all is as `Config` has
        it.
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
    given = merge_given(config, settings)
    plain = {"fleet": given.fleet} if isinstance(given, Config) else given
    with stop_on_signals(stop) as stop, connect_ahead(plain, address):
        chosen = given if isinstance(given, Config) else validate_config(given)
        with (
            claim_directory(chosen, directory, resume) as folder,
            closing(choose_progress(progress, chosen.training.rounds)) as watched,
        ):
            stop.directory = folder
            result = _run_in(folder, chosen, address, watched, stop)
            stop.directory = None
            return result


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


def _run_in(
    folder: Path, config: Config, address: str | None, progress: Progress, stop: Stop
) -> Result:
    """The run itself, in a directory that is its own."""
    progress.note(describe_run(config))
    for warning in config.method.list_warnings(config.training, config.clients):
        log.warning("%s: %s", config.name_of("method"), warning)
    progress.note(f"loading {config.name_of('data')}, dealing it out")
    dataset, scenario = open_federation(config, config.seeds_for("data"))
    with refuse_unwritable(folder):
        begin_directory(config, folder, scenario)
    recipe = NetworkRecipe(config, dataset.shape, len(scenario.classes))
    # What is refused here leaves no run.
    uri = config.checkpoint.uri or str(folder / "checkpoints")
    features = (config.data_root or find_data_root()) / "features"
    engine = Engine(config, scenario, uri, {"run": folder.name}, dataset.shape, features)
    holdings = build_holdings(config, dataset, engine.scenario)
    refuse_missing_sets(config.method, holdings)
    with track_run(config, folder, scenario, dataset.shape) as tracker:
        progress.note("connecting to Ray" if config.fleet == "ray" else "the first round")
        with Teller(tracker, progress) as teller, open_place(config, address, stop) as place:
            if said := place.take_in(dataset, scenario, holdings):
                tracker.tags(said)
                progress.note(f"starting {said['actors']} actors")
            # On a cluster the images lie in the object store now, and are needed here no more.
            del dataset, holdings
            outcome = place.run(engine, teller)
        conclude_run(tracker, config, scenario, outcome, recipe)
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
