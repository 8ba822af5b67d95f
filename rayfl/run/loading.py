"""Finished runs, read back as they were handed out when they ended."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfl.config.files import parse_file
from rayfl.config.schema import default_output, validate_config
from rayfl.errors import ConfigError, StorageError, broken, suggest_nearest
from rayfl.federation.scenario import open_federation
from rayfl.run.assembly import NetworkRecipe
from rayfl.run.result import Result
from rayfl.run.store import Record, read_record
from rayfl.tracking.journal import Journal

SHOWN = 5


def load(run: str | Path, output: str | Path | None = None) -> Result:
    """A finished run, as `rayfl.run` returned it.

    Parameters
    ----------
    run : str or Path
        The name of its folder, the end of that name, or its path.
    output : str or Path, optional
        The folder that runs lie below; by default RAYFL_OUTPUT, or `outputs`.
    """
    directory = find_run(run, Path(output or default_output()))
    record = read_record(directory)
    if record is None:
        rule = "a run that is loaded is over"
        remedy = f"Go on with it: rayfl run {directory / 'config.yaml'} --resume {directory.name}"
        raise ConfigError(broken(rule, f"{directory.name}, which is not", remedy))
    return _make_result(record)


def find_run(named: str | Path, output: Path) -> Path:
    """The directory of a run.

    Parameters
    ----------
    named : str or Path
        The name of its folder, the end of that name, or its path.
    output : Path
        The folder that runs lie below.
    """
    runs = output / "runs"
    known = sorted(path.parent.name for path in runs.glob("*/config.yaml"))
    if (Path(named) / "config.yaml").is_file():
        return Path(named).absolute()
    found = [name for name in known if str(named) and name.endswith(str(named))]
    if len(found) == 1:
        return (runs / found[0]).absolute()
    rule = f"a run lies below {runs}"
    last = f"Last runs: {', '.join(known[-SHOWN:]) or 'none'}"
    remedy = " ".join(filter(None, [suggest_nearest(str(named), known), last]))
    raise ConfigError(broken(rule, f"{named}, which {len(found)} runs answer to", remedy))


def _make_result(record: Record) -> Result:
    where = str(record.directory / "config.yaml")
    config = validate_config(parse_file(record.directory / "config.yaml"), where)
    # The classes and the size of the images are known to the data alone, which is cheap to ask:
    # scenario and network are made when they are first wanted.
    dataset, scenario = open_federation(config, config.seeds_for("data"))
    recipe = NetworkRecipe(config, dataset.shape, len(scenario.classes))
    arrays = dict(record.arrays)
    confusion = arrays.pop("confusion", None)
    arrays.pop("noise_rate", None)
    return Result(
        config=config,
        directory=record.directory,
        history=record.history,
        sha256=record.sha256,
        scenario_sha256=record.scenario,
        mlflow_run_id=Journal(record.directory).noted().get("run_id"),
        models=_SavedModel(record),
        confusion=confusion,
        recipe=recipe,
        noise_rate=record.facts.get("noise_rate"),
        arrays=arrays,
        known_scenario=scenario,
    )


class _SavedModel(Mapping[int | None, NDArray[np.float32]]):
    """The model that a run has left, read when it is first asked for."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._weights: NDArray[np.float32] | None = None

    def __getitem__(self, client: int | None) -> NDArray[np.float32]:
        if client is not None:
            raise KeyError(client)
        if self._weights is None:
            self._weights = read_model(self._record)
        return self._weights

    def __iter__(self) -> Iterator[int | None]:
        return iter((None,))

    def __len__(self) -> int:
        return 1


def read_model(record: Record) -> NDArray[np.float32]:
    """The flat weights of the one model that a run has left in MLflow's form, if they are those of
    the run.

    Parameters
    ----------
    record : Record
        The finished run.
    """
    from rayfl.tracking.saved_model import read_saved_weights

    try:
        weights = read_saved_weights(record.directory / "model")
    except ValueError as error:
        raise _refuse_model(record, f"whose weights are damaged ({error})") from None
    if weights is None:
        raise _refuse_model(record, "which left no model: it was not tracked")
    digest = hashlib.sha256(b"None" + weights.astype("<f4").tobytes()).hexdigest()
    if digest != record.sha256:
        raise _refuse_model(record, "whose clients have several: only the first was kept")
    return weights


def _refuse_model(record: Record, what: str) -> StorageError:
    name = record.directory.name
    rule = "a run that is loaded has left its one model"
    remedy = f'Take it up again: rayfl.run(result.config, resume="{name}").models'
    return StorageError(broken(rule, f"{name}, {what}", remedy))
