"""Why a figure of ours differs from the printed one, as people have written it down.

`causes.yaml` lies beside the ledger's rows:

    fedds_table4:
      method=scaffold-gain;dataset=mnist;partition=iid: >-
        Not explained by the place of the correction; ...

A key is a cell, or a group of cells that a rank agreement is of, or any other group of which
something was found: choices by axis. What nobody has explained is said to be so by whoever asks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from rayfl.config.files import parse_file
from rayfl.errors import DataError, broken, suggest_nearest
from rayfl.study.schema import Study

FILE = "causes.yaml"
UNEXPLAINED = "not explained"

Place = frozenset[tuple[str, str]]


@dataclass(frozen=True)
class Causes:
    """What has been written of one study."""

    texts: Mapping[Place, str] = field(default_factory=dict)

    def find(self, choices: Mapping[str, str]) -> str:
        """The cause for a cell or a group of cells; `not explained` where there is none."""
        return self.texts.get(frozenset(choices.items()), UNEXPLAINED)

    def find_others(self, asked: Collection[Place]) -> Iterator[tuple[Place, str]]:
        """What was written of places that nobody asked for."""
        return ((place, text) for place, text in self.texts.items() if place not in asked)


def read_causes(folder: Path, name: str, study: Study) -> Causes:
    """The causes of a study, from the file beside the ledger's rows.

    Parameters
    ----------
    folder
        The ledger's.
    name
        The study's."""
    path = folder / FILE
    written = parse_file(path).get(name) if path.is_file() else None
    if written is None:
        return Causes()
    if not isinstance(written, Mapping):
        rule = f"{FILE} has a text for each place of a study"
        raise DataError(broken(rule, f"{name}: {written!r}"))
    texts = {_parse_place(str(key), name, study): str(text) for key, text in written.items()}
    return Causes({place: " ".join(text.split()) for place, text in texts.items()})


def _parse_place(key: str, name: str, study: Study) -> Place:
    """`axis=choice;axis=choice`, of axes and choices that the study has."""
    place = []
    for word in key.split(";"):
        axis, _, choice = (part.strip() for part in word.partition("="))
        known = study.axes.get(axis)
        if known is None or choice not in known:
            rule = f"{FILE} names choices of {name} as axis=choice"
            near = suggest_nearest(axis, study.axes) if known is None else ""
            raise DataError(broken(rule, word, near or suggest_nearest(choice, known or {})))
        place.append((axis, choice))
    return frozenset(place)
