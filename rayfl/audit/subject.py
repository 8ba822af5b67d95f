"""What is audited: a configuration's federation, or that of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rayfl.arrays import Ints
from rayfl.config.files import parse_file, read_config
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError, DataError, broken
from rayfl.federation.dataset import Dataset
from rayfl.federation.scenario import Scenario, open_federation


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
        return {client: str(client) for client in range(self.config.clients)}

    def name_files(self, rows: Ints) -> list[str]:
        """The file, or the number, of each row of the training set."""
        names = self.dataset.train.names
        return [str(row) for row in rows] if names is None else [str(n) for n in names[rows]]


def open_subject(source: Config | Mapping[str, Any] | str | Path) -> Subject:
    """The federation of a configuration, of its plain values, or of a run.

    Parameters
    ----------
    source
        A directory with `config.yaml` is a run; any other path is a configuration file."""
    if isinstance(source, (str, Path)):
        path = Path(source)
        if (path / "config.yaml").is_file():
            return _open_run(path)
        if path.is_dir():
            rule = "an audit takes a configuration file or the directory of a run"
            raise ConfigError(broken(rule, f"{path}, a folder without config.yaml"))
        return _open(validate_config(read_config(path), str(path)))
    return _open(source if isinstance(source, Config) else validate_config(source))


def _open(config: Config, run: Path | None = None) -> Subject:
    dataset, scenario = open_federation(config, config.seeds_for("data"))
    return Subject(config, dataset, scenario, run)


def _open_run(path: Path) -> Subject:
    """The very federation that a run had."""
    config = validate_config(parse_file(path / "config.yaml"), str(path / "config.yaml"))
    subject = _open(config, path)
    noted = json.loads((path / "run.json").read_text(encoding="utf-8")).get("scenario")
    if noted != subject.scenario.sha256:
        rule = f"the data of the run {path.name} give the scenario {str(noted)[:12]}"
        remedy = "Images or labels changed since; audit the configuration itself."
        raise DataError(broken(rule, subject.scenario.sha256[:12], remedy))
    return subject
