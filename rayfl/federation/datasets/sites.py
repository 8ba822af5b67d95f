"""Where images of one's own are from: the rule that gives each file its site, and what a table
says of it beside."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated

import numpy as np
from pydantic import BeforeValidator

from rayfl.component import component
from rayfl.errors import DataError, broken, suggest_nearest
from rayfl.federation.arrays import Strings
from rayfl.federation.names import find_places
from rayfl.federation.text_columns import list_columns, read_text_columns

_WAYS = ("part", "table", "pattern", "column")
_MOST_COMPARED = 10_000


@component
class Sites:
    """How the site of an image is found: exactly one of four ways.

    part     the folder at this place of the path, 0 for the first and -1 for the one that the file
             lies in (`sites: parent`); the first of the other folders is then its class
    table    a CSV or Parquet file with the columns `file` and `site`, and perhaps `label`; its path
             is absolute or begins at the dataset's folder
    pattern  a regular expression, found in the path below the dataset's folder, with a group
             `site` and perhaps a group `label`
    column   a column of the Parquet files that the images are in
    """

    part: int | None = None
    table: Path | None = None
    pattern: str | None = None
    column: str | None = None

    def __post_init__(self) -> None:
        given = [name for name in _WAYS if getattr(self, name) is not None]
        if len(given) != 1:
            rule = f"sites is 'parent', or exactly one of {', '.join(_WAYS)}"
            raise ValueError(broken(rule, given or "none of them"))
        if self.pattern is not None:
            _check_pattern(self.pattern)


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groupindex
    except re.error as error:
        rule = "sites.pattern is a regular expression"
        raise ValueError(broken(rule, f"{pattern!r}: {error}")) from error
    if "site" not in groups:
        rule = "sites.pattern has a group 'site', such as (?P<site>[a-z]+)"
        raise ValueError(broken(rule, repr(pattern)))


def _expand_parent(short: object) -> object:
    """`parent` stands for the folder that a file lies in."""
    if short == "parent":
        return {"part": -1}
    if isinstance(short, str):
        ways = ", ".join(_WAYS)
        rule = f"sites is 'parent', or a mapping with one of {ways}"
        raise ValueError(broken(rule, repr(short), suggest_nearest(short, ("parent",))))
    return short


SiteRule = Annotated[Sites | None, BeforeValidator(_expand_parent)]


@dataclass(frozen=True)
class Provenance:
    """What is known of files: a site each, and, where the rule tells them, labels and true
    labels."""

    sites: Strings
    labels: Strings | None = None
    truth: Strings | None = None


def find_provenance(
    rule: Sites,
    folder: Path,
    names: Strings,
    places: Strings,
    truth: str | None = None,
) -> Provenance:
    """What a rule says of files.

    Parameters
    ----------
    rule
        The rule; not one of a column.
    folder
        The dataset's folder, below which the files lie.
    names
        Their paths below it.
    places
        Their paths below `train` or `test`, where there are such folders.
    truth
        The column of a table that has true labels.
    """
    if rule.table is not None:
        return _read_site_table(folder / rule.table.expanduser(), names, truth)
    if truth is not None:
        remedy = "Write sites: {table: FILE} with this column."
        raise DataError(broken("truth is a column of a table of sites", repr(truth), remedy))
    if rule.pattern is not None:
        return _match_names(rule.pattern, names)
    assert rule.part is not None, "a column is read with the images"
    return _split_paths(rule.part, places)


def _read_site_table(
    path: Path,
    names: Strings,
    truth: str | None,
) -> Provenance:
    """The rows of a table in the order of the files; it must have exactly one for each."""
    labelled = ("label",) if "label" in list_columns(path) else ()
    wanted = ("file", "site", *labelled, *((truth,) if truth else ()))
    columns = read_text_columns(path, wanted)
    rows = match_rows(path, columns["file"], names)
    return Provenance(
        sites=columns["site"][rows],
        labels=columns["label"][rows] if labelled else None,
        truth=columns[truth][rows] if truth else None,
    )


def match_rows(
    path: Path,
    listed: Strings,
    names: Strings,
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The row of a table for each image; every image has one row and every row an image.

    Parameters
    ----------
    path
        The table, for refusals.
    listed
        Its column of names.
    names
        The images.
    """
    named, times = np.unique(listed, return_counts=True)
    again = named[times > 1]
    if len(again):
        raise DataError(broken(f"{path}: every file occurs once", f"'{again[0]}' more than once"))
    rows = find_places(listed, names)
    missing = names[rows < 0]
    if len(missing):
        rule = f"{path}: a row for every image ({len(names)})"
        found = f"none for {len(missing)} of them, first '{missing[0]}'"
        nearest = suggest_nearest(str(missing[0]), listed[:_MOST_COMPARED].tolist())
        remedy = f"{nearest} Add its row, or move the image away".strip()
        raise DataError(broken(rule, found, remedy))
    if len(listed) > len(names):
        strangers = listed[find_places(names, listed) < 0]
        rule = f"{path}: an image for every row"
        found = f"none for {len(strangers)} of them, first '{strangers[0]}'"
        raise DataError(broken(rule, found, "Names are paths below the dataset's folder"))
    return rows


def _match_names(pattern: str, names: Strings) -> Provenance:
    """The groups `site` and `label` of each name."""
    compiled = re.compile(pattern)
    found = [compiled.search(name) for name in names.tolist()]
    for name, match in zip(names, found, strict=True):
        if match is None or not match["site"]:
            rule = f"sites.pattern {pattern!r} is found in every image's path"
            raise DataError(broken(rule, f"'{name}'", "Correct the pattern, or move the image"))
    matches = [match for match in found if match is not None]
    sites = np.array([match["site"] for match in matches], dtype=np.str_)
    if "label" not in compiled.groupindex:
        return Provenance(sites)
    labels = [match["label"] or "" for match in matches]
    if "" in labels:
        rule = f"the group 'label' of sites.pattern {pattern!r} is found in every image's path"
        raise DataError(broken(rule, f"'{names[labels.index('')]}'"))
    return Provenance(sites, np.array(labels, dtype=np.str_))


def _split_paths(part: int, names: Strings) -> Provenance:
    """The folder at place `part` as the site, the first of the others as the class."""
    sites: list[str] = []
    labels: list[str] = []
    for name in names.tolist():
        folders = list(PurePosixPath(name).parent.parts)
        if len(folders) < 2 or not -len(folders) <= part < len(folders):
            where = "parent" if part == -1 else f"{{part: {part}}}"
            rule = f"sites: {where} takes folders of site and class, as in CLASS/SITE/image.png"
            raise DataError(
                broken(rule, f"'{name}'", "Move the image, or use a table or a pattern")
            )
        sites.append(folders.pop(part))
        labels.append(folders[0])
    return Provenance(np.array(sites, dtype=np.str_), np.array(labels, dtype=np.str_))


def number_texts(texts: Sequence[Strings]) -> tuple[str, ...]:
    """All texts once, in alphabetical order: the number of one is its place.

    Parameters
    ----------
    texts
        Columns of them.
    """
    return tuple(np.unique(np.concatenate(texts)).tolist())
