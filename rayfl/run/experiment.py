"""The story of one run, top to bottom: configuration, directory, scenario, place, rounds,
result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.config.schema import Config, validate_config
from rayfl.federation.datasets import find_data_root
from rayfl.federation.scenario import open_federation
from rayfl.fleet.on_ray.connection import connect_ahead
from rayfl.run.artifacts import conclude_run, track_run, tracking_uri
from rayfl.run.assembly import (
    NetworkRecipe,
    build_holdings,
    filled_network,
    refuse_missing_sets,
)
from rayfl.run.directory import (
    begin_directory,
    claim_directory,
    newest_unfinished,
    refuse_unwritable,
)
from rayfl.run.engine import Engine
from rayfl.run.places import open_place
from rayfl.run.progress import Progress, Silent, Teller
from rayfl.run.signals import Interrupted, Stop, stop_on_signals
from rayfl.run.standing import warn_of_warm_up

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Result:
    """A finished run.

    Attributes
    ----------
    config : Config
    directory : Path
        Where everything about it lies.
    history : list of dict
        A record a round: `round`, `metrics` and `clock`.
    sha256, scenario_sha256 : str
        Hashes of the final models, and of who had which data with which labels.
    mlflow_run_id : str or None
    models : mapping
        Flat weights by client; one under None where all have the same.
    confusion : array or None
        Of the last evaluation: rows are true classes.
    noise_rate : float or None
        The share of wrong labels over all clients; None where nobody knows the truth.
    """

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

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of every metric."""
        last: dict[str, float] = {}
        for record in self.history:
            last |= record["metrics"]
        return last

    @cached_property
    def model(self) -> nn.Module:
        """The global network (the first client's, for methods with several)."""
        return self.network(next(iter(self.models)))

    def network(self, client: int | None) -> nn.Module:
        """The network of one client, or the global one."""
        return filled_network(self.recipe, self.models[client])


def run(
    config: Config | Mapping[str, Any],
    *,
    resume: str | Path | None = None,
    address: str | None = None,
    progress: Progress | None = None,
    directory: Path | None = None,
    stop: Stop | None = None,
) -> Result:
    """Run one configuration.

    Parameters
    ----------
    config : Config or mapping
        A configuration, or the plain values of one.
    resume : str or Path, optional
        A run to take up again: its name or its directory, or `auto` for the newest unfinished one
        like it that nobody is at work on.
    address : str, optional
        A Ray cluster; by default RAY_ADDRESS, or a Ray of our own on this machine.
    progress : Progress, optional
        Told of every round.
    directory : Path, optional
        Where the run is to lie; one that is there already is taken up again.
    stop : Stop, optional
        With it a caller whose thread gets no signals can end the run as a signal would.

    Raises
    ------
    RayflError
        What a user can mend, in a sentence.
    Interrupted
        The run was told to stop; its checkpoint is written.
    """
    plain = {"fleet": config.fleet} if isinstance(config, Config) else config
    with stop_on_signals(stop) as stop, connect_ahead(plain, address):
        settings = config if isinstance(config, Config) else validate_config(config)
        with claim_directory(settings, directory, resume) as folder:
            stop.directory = folder
            result = _run_in(folder, settings, address, progress or Silent(), stop)
            stop.directory = None
            return result


def _run_in(
    folder: Path, config: Config, address: str | None, progress: Progress, stop: Stop
) -> Result:
    """The run itself, in a directory that is its own."""
    dataset, scenario = open_federation(config, config.seeds_for("data"))
    with refuse_unwritable(folder):
        begin_directory(config, folder, scenario)
    warn_of_warm_up(config)
    recipe = NetworkRecipe(config, dataset.shape, len(scenario.classes))
    with track_run(config, folder, scenario) as tracker:
        uri = config.checkpoint.uri or str(folder / "checkpoints")
        features = (config.data_root or find_data_root()) / "features"
        engine = Engine(config, scenario, uri, {"run": folder.name}, dataset.shape, features)
        holdings = build_holdings(config, dataset, engine.scenario)
        refuse_missing_sets(config.method, holdings)
        with Teller(tracker, progress) as teller, open_place(config, address, stop) as place:
            if said := place.take_in(dataset, scenario, holdings):
                tracker.tags(said)
            # On a cluster the images lie in the object store now, and are needed here no more.
            del dataset, holdings
            outcome = place.run(engine, teller)
        conclude_run(tracker, config, scenario, folder, outcome, recipe)
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
    )


__all__ = [
    "Interrupted",
    "Result",
    "Stop",
    "newest_unfinished",
    "run",
    "stop_on_signals",
    "tracking_uri",
]
