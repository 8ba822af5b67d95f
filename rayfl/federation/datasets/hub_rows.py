"""Rows of Parquet files in the form of the Hugging Face Hub, as records of images: encoded
pictures, names, classes, sites."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Bools, Strings
from rayfl.federation.bounds import check_bounds
from rayfl.federation.datasets.on_disk import damaged_file
from rayfl.federation.datasets.own_images import Records
from rayfl.federation.datasets.sites import number_texts

ClassNames = tuple[str, ...]
_INFO_FILES = ("dataset_info.json", "dataset_infos.json")


@dataclass(frozen=True)
class HubColumns:
    """Which columns hold what: the first of the names that a file has.

    site, truth  columns that must be there, where they are named
    """

    image: Sequence[str]
    label: Sequence[str]
    site: str | None = None
    truth: str | None = None


@dataclass(frozen=True)
class HubRows:
    """All rows, which of them are test images, and the classes behind their labels."""

    records: Records
    tested: Bools
    classes: ClassNames


def read_hub_rows(
    folder: Path,
    train: Sequence[Path],
    test: Sequence[Path],
    columns: HubColumns,
) -> HubRows:
    """Every row of the files.

    Parameters
    ----------
    folder
        Where they lie, and perhaps a `dataset_info.json` with the names of the classes.
    train, test
        The files, in this order.
    columns
        What is read of them.
    """
    files = [*train, *test]
    tables = [_read_table(file, columns) for file in files]
    label = tables[0].label
    classes = next((table.classes for table in tables if table.classes), ())
    classes = classes or _find_class_names(folder, label)
    sizes = [table.columns.num_rows for table in tables]
    labels = [_name_labels(table, table.label, classes) for table in tables]
    truth = None
    if columns.truth is not None:
        truth = [_name_labels(table, columns.truth, classes) for table in tables]
    sites = None
    if columns.site is not None:
        sites = np.concatenate([_read_texts(table, columns.site) for table in tables])
    records = Records(
        sources=[picture for table in tables for picture in _list_pictures(table)],
        places=[f"{table.file} row {row}" for table in tables for row in range(table.rows)],
        names=_name_rows(tables),
        labels=np.concatenate(labels),
        sites=sites,
        truth=None if truth is None else np.concatenate(truth),
    )
    tested = np.repeat(np.arange(len(files)) >= len(train), sizes)
    return HubRows(records, tested, classes or _order_classes([*labels, *(truth or [])]))


@dataclass(frozen=True)
class _Table:
    """The wanted columns of a file, and what they are called there."""

    file: Path
    columns: Any
    image: str
    label: str
    classes: ClassNames

    @property
    def rows(self) -> int:
        return int(self.columns.num_rows)


def _read_table(file: Path, wanted: HubColumns) -> _Table:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(file) as opened:
            schema = opened.schema_arrow
            image = pick_column(file, schema, wanted.image)
            label = pick_column(file, schema, wanted.label)
            named = [name for name in (wanted.site, wanted.truth) if name is not None]
            others = [pick_column(file, schema, [name]) for name in named]
            # Only these columns: others may hold bounding boxes, masks or texts of any size.
            table = opened.read(columns=[image, label, *others])
    except (pa.ArrowException, OSError) as error:
        raise damaged_file(file, "a whole Parquet file", error) from error
    return _Table(file, table, image, label, parse_class_names(schema.metadata, label))


def pick_column(
    file: Path,
    schema: Any,
    wanted: Sequence[str],
) -> str:
    """The first of these columns that the file has.

    Parameters
    ----------
    file
        The file, for the refusal.
    schema
        Its columns.
    wanted
        Their possible names.
    """
    for name in wanted:
        if name in schema.names:
            return name
    rule = f"{file} must have a column {' or '.join(wanted)}"
    raise DataError(broken(rule, ", ".join(schema.names)))


def parse_class_names(metadata: dict[bytes, bytes] | None, label: str) -> ClassNames:
    """The names that the Hub's metadata gives to the labels, if it does.

    Parameters
    ----------
    metadata
        Those of a file's schema.
    label
        The column of the labels.
    """
    text = (metadata or {}).get(b"huggingface", b"{}")
    info = json.loads(text).get("info", {})
    return _names_in(info, label)


def _names_in(info: Any, label: str) -> ClassNames:
    """The names of the feature `label` in what the Hub's library writes about a dataset."""
    features = info.get("features") if isinstance(info, dict) else None
    feature = features.get(label) if isinstance(features, dict) else None
    names = feature.get("names") if isinstance(feature, dict) else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _find_class_names(folder: Path, label: str) -> ClassNames:
    """The names in a file that describes the dataset, beside the images or above `data`."""
    for name in _INFO_FILES:
        path = folder / name
        if not path.is_file():
            continue
        try:
            info = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise damaged_file(path, "readable JSON", error) from error
        # The older file holds one such mapping for each configuration of the dataset.
        inside = info.values() if isinstance(info, dict) else ()
        for each in (info, *inside):
            if names := _names_in(each, label):
                return names
    return ()


def _name_labels(table: _Table, column: str, classes: ClassNames) -> Strings:
    """The class of every row by name; by number, where the classes have no names."""
    import pyarrow as pa

    values = table.columns.column(column)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        texts = _read_texts(table, column)
        strangers = sorted(set(texts.tolist()) - set(classes))
        if classes and strangers:
            rule = f"{table.file}: column '{column}' names classes of {', '.join(classes)}"
            raise DataError(broken(rule, repr(strangers[0])))
        return texts
    numbers = read_whole_labels(table.file, values)
    if not classes:
        check_bounds(f"{table.file}: labels lie", numbers, 0, 1 << 20)
        return numbers.astype(np.str_)
    check_bounds(f"{table.file}: labels lie", numbers, 0, len(classes))
    return np.array(classes, dtype=np.str_)[numbers]


def read_whole_labels(file: Path, column: Any) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """A column of labels, all of them whole numbers.

    Parameters
    ----------
    file
        The file, for the refusal.
    column
        The column.
    """
    import pyarrow as pa

    # A missing label would turn the column into floats and the label into garbage.
    if column.null_count or not pa.types.is_integer(column.type):
        found = f"{column.type}, {column.null_count} missing"
        raise damaged_file(file, "labelled with whole numbers throughout", found)
    return np.asarray(column.to_numpy()).astype(np.int64)


def _read_texts(table: _Table, column: str) -> Strings:
    """A column as text, with a value in every row."""
    import pyarrow as pa

    values = table.columns.column(column)
    try:
        texts = values.cast(pa.string()).fill_null("").to_pylist()
    except pa.ArrowException as error:
        rule = f"{table.file}: column '{column}' holds texts or numbers"
        raise DataError(broken(rule, values.type)) from error
    if "" in texts:
        rule = f"{table.file}: column '{column}' has a value in every row"
        raise DataError(broken(rule, f"none in row {texts.index('')}"))
    return np.array(texts, dtype=np.str_)


def _list_pictures(table: _Table) -> list[bytes]:
    return list_encoded_images(table.columns.column(table.image).combine_chunks())


def list_encoded_images(column: Any) -> list[bytes]:
    """The image files in a `column` of structs or of plain bytes."""
    import pyarrow as pa

    # `path` is a name of old; without bytes it points to a file on its author's disk.
    inside = column.field("bytes") if pa.types.is_struct(column.type) else column
    return [value or b"" for value in inside.to_pylist()]


def _name_rows(tables: Sequence[_Table]) -> Strings:
    """The file names of old, if every row has one of its own; or else file and row."""
    paths = [path for table in tables for path in _list_paths(table)]
    if all(paths) and len(set(paths)) == len(paths):
        return np.array(paths, dtype=np.str_)
    rows = [f"{table.file.name}#{row}" for table in tables for row in range(table.rows)]
    return np.array(rows, dtype=np.str_)


def _list_paths(table: _Table) -> list[str]:
    import pyarrow as pa

    column = table.columns.column(table.image).combine_chunks()
    if not pa.types.is_struct(column.type) or column.type.get_field_index("path") < 0:
        return [""] * table.rows
    return [value or "" for value in column.field("path").to_pylist()]


def _order_classes(labels: Sequence[Strings]) -> ClassNames:
    """Classes that have no names in the data: by number, or else in alphabetical order."""
    found = number_texts(labels)
    if not all(name.isdecimal() for name in found):
        return found
    highest = max(map(int, found), default=0)
    return tuple(map(str, range(highest + 1)))
