"""What is audited: a configuration's federation, or that of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.arrays import Ints
from rayfl.config.files import read_config
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError, DataError, broken
from rayfl.federation.dataset import Dataset
from rayfl.federation.scenario import Scenario, open_federation
from rayfl.run.directory import read_facts


@dataclass(frozen=True)
class Subject:
    """A federation under audit.

    Attributes
    ----------
    run
        The directory of the run whose federation it is, if it is one's.
    """

    config: Config
    dataset: Dataset
    scenario: Scenario
    run: Path | None = None

    @cached_property
    def client_names(self) -> dict[int, str]:
        """What every client is called."""
        return {client: self.scenario.name_client(client) for client in range(self.config.clients)}

    def name_files(self, rows: Ints | Sequence[int]) -> list[str]:
        """The file, or the number, of each row of the training set."""
        return self.scenario.name_samples(np.asarray(rows, dtype=np.int64))


def open_subject(source: Config | Mapping[str, Any] | str | Path) -> Subject:
    """The federation of a configuration, of its plain values, or of a run.

    Parameters
    ----------
    source
        A directory with `config.yaml` is a run; any other path is a configuration file."""
    if isinstance(source, (str, Path)):
        path = Path(source)
        return _open(read_source(path), path if path.is_dir() else None)
    return _open(source if isinstance(source, Config) else validate_config(source))


def read_source(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration of a file, or of a run.

    Parameters
    ----------
    path
        A YAML file, or the directory of a run.
    overrides
        `key.sub=value` each."""
    written = path / "config.yaml"
    if path.is_dir() and not written.is_file():
        rule = "an audit takes a configuration file or the directory of a run"
        raise ConfigError(broken(rule, f"{path}, a folder without config.yaml"))
    file = written if path.is_dir() else path
    return validate_config(read_config(file, overrides), str(file))


def _open(config: Config, run: Path | None = None) -> Subject:
    """The federation of a configuration; of a run, the very one that it had."""
    dataset, scenario = open_federation(config, config.seeds_for("data"))
    if run is not None:
        noted = read_facts(run).get("scenario")
        if noted != scenario.sha256:
            rule = f"the data of the run {run.name} give its scenario, {str(noted)[:12]}"
            remedy = "Images or labels changed since; audit the configuration itself."
            raise DataError(broken(rule, scenario.sha256[:12], remedy))
    return Subject(config, dataset, scenario, run)
