"""What somebody asks of a study: which cells, which seeds, at what scale, into which folder; and
the configurations that follow."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from rayfl.config.files import put_setting
from rayfl.config.schema import default_output
from rayfl.config.shipped import shipped_folder
from rayfl.errors import ConfigError, RayflError, broken
from rayfl.federation.datasets import find_data_root
from rayfl.secrets import mask_secrets
from rayfl.study.cells import Cell, apply_overrides, list_cells, load_study, parse_filters
from rayfl.study.scaling import ScaledConfig, scale_config
from rayfl.study.schema import Study

SEED = "{seed}"
DATA = "{data}"
"""What stands in a study file for the run's seed and for the folder of the datasets."""


@dataclass(frozen=True)
class StudyOrder:
    """A study file with what the command line says of it."""

    path: Path
    only: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    """None: all of the study."""
    scale: float = 1.0
    output: Path | None = None
    overrides: tuple[str, ...] = ()
    root: Path | None = None
    """Where its commands are to be given; None: here."""

    @cached_property
    def study(self) -> Study:
        """The study of the file."""
        return load_study(self.path)

    @property
    def name(self) -> str:
        """What its own files are called."""
        return self.path.stem

    @property
    def folder(self) -> Path:
        """The output folder; runs are below it as those of `rayfl run` are."""
        return (self.output or default_output()).expanduser().absolute()

    @property
    def notes(self) -> Path:
        """Where the study keeps its own files below the output folder."""
        return self.folder / "studies" / self.name

    @cached_property
    def wanted_seeds(self) -> tuple[int, ...]:
        """The seeds that are asked for, or else the study's."""
        return tuple(self.study.seeds) if self.seeds is None else self.seeds

    @cached_property
    def cells(self) -> list[Cell]:
        """The cells that are asked for."""
        return list_cells(self.study, parse_filters(self.study, self.only))

    def command(self, cell: Cell | None = None) -> str:
        """The command line of this order, or of one of its cells."""
        words = ["rayfl", "study", shorten_path(self.path, self.root or Path.cwd())]
        for filtered in self.only if cell is None else _name_choices(cell):
            words += ["--only", filtered]
        if self.seeds is not None:
            words += ["--seeds", _write_seeds(self.seeds)]
        if self.scale != 1:
            words += ["--scale", f"{self.scale:g}"]
        if self.output is not None:
            words += ["-o", str(self.output)]
        # It is shown, recorded and repeated; credentials come from the environment then.
        return shlex.join([*words, *mask_secrets(self.overrides)])

    def configuration(self, cell: Cell, seed: int) -> ScaledConfig:
        """The configuration of one run."""
        settings = fill_placeholders(cell.settings(), seed)
        settings = apply_overrides(settings, self.overrides)
        settings = put_setting(settings, ["seed"], seed)
        settings = put_setting(settings, ["output"], str(self.folder))
        settings = _label_run(settings, self, cell, seed)
        return scale_config(settings, self.study, self.scale, self.name)

    def configurations(self) -> Iterator[tuple[Cell, int, ScaledConfig | RayflError]]:
        """Every run that the order asks for, with its configuration or what is wrong with it."""
        for cell in self.cells:
            if not cell.runs:
                continue
            for seed in self.wanted_seeds:
                try:
                    yield cell, seed, self.configuration(cell, seed)
                except RayflError as error:
                    yield cell, seed, error

    def remember(self) -> None:
        """Leave a note of what was asked for, so that a report on this study shows the same."""
        said = {
            "only": self.only,
            "seeds": self.seeds,
            "scale": self.scale,
            "overrides": mask_secrets(self.overrides),
        }
        self.notes.mkdir(parents=True, exist_ok=True)
        (self.notes / "order.json").write_text(json.dumps(said))

    @classmethod
    def remembered(cls, path: Path, output: Path | None = None) -> StudyOrder:
        """What was last asked of a study in an output folder; everything, if nothing was."""
        plain = cls(path, output=output)
        try:
            said = json.loads((plain.notes / "order.json").read_text())
            return cls(
                path,
                only=tuple(said["only"]),
                seeds=None if said["seeds"] is None else tuple(said["seeds"]),
                scale=said["scale"],
                output=output,
                overrides=tuple(said["overrides"]),
            )
        # A note that an earlier version or a crash has left says nothing.
        except (OSError, ValueError, KeyError, TypeError):
            return plain


def _name_choices(cell: Cell) -> list[str]:
    """A cell as filters. All axes are named, so that it means the same when the study grows."""
    return [f"{axis}={name}" for axis, name in cell.choices.items()]


def _write_seeds(seeds: tuple[int, ...]) -> str:
    """Seeds as they are typed: one alone has a comma, for without it it is a number of seeds."""
    listed = ",".join(map(str, seeds))
    return f"{listed}," if len(seeds) == 1 else listed


def shorten_path(path: Path, root: Path) -> str:
    """A path as one would type it in a folder; of what comes with rayfl, its name."""
    whole = path.expanduser().absolute()
    here = root.absolute()
    if whole.is_relative_to(here):
        return os.path.relpath(whole, here)
    shipped = shipped_folder()
    if whole.is_relative_to(shipped):
        return whole.relative_to(shipped).with_suffix("").as_posix()
    return str(whole)


def fill_placeholders(value: Any, seed: int) -> Any:
    """Plain values with the run's seed and this machine's folders where the study file asks for
    them."""
    if isinstance(value, str):
        return seed if value == SEED else value.replace(DATA, str(find_data_root()))
    if isinstance(value, Mapping):
        return {key: fill_placeholders(item, seed) for key, item in value.items()}
    if isinstance(value, list):
        return [fill_placeholders(item, seed) for item in value]
    return value


def _label_run(
    settings: Mapping[str, Any], order: StudyOrder, cell: Cell, seed: int
) -> dict[str, Any]:
    """Settings with what MLflow shows of a run: the study as its experiment, the cell as tags and
    name."""
    written = dict(settings.get("tracking") or {})
    tags = {
        "study": order.name,
        **cell.choices,
        "seed": str(seed),
    }
    tags |= written.get("tags") or {}
    if order.scale != 1:
        tags["scale"] = f"{order.scale:g}"
    named = {"experiment": order.study.title, "run_name": f"{cell.label}, seed {seed}"}
    # What the study file or an override says of tracking stands above these.
    return {**settings, "tracking": {**named, **written, "tags": tags}}


def parse_seeds(text: str, study: Study) -> tuple[int, ...]:
    """The seeds that a word means.

    Parameters
    ----------
    text
        `3`: the first three seeds of the study, and further ones if it has fewer; `4,7` or `4,`:
        these."""
    try:
        listed = _list_seeds(text) if "," in text else _count_seeds(int(text), study.seeds)
    except ValueError:
        listed = []
    if not listed or min(listed) < 0:
        rule = "--seeds is a number of seeds (1 or more) or a list such as 0,1 or 4,"
        raise ConfigError(broken(rule, f"'{text}'"))
    return tuple(dict.fromkeys(listed))


def _list_seeds(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word.strip()]


def _count_seeds(count: int, seeds: Sequence[int]) -> list[int]:
    """The first so many, counted on from the greatest."""
    further = max(seeds) + 1
    every = [*seeds, *range(further, further + max(count, 0))]
    return every[: max(count, 0)]
