"""Image datasets in Parquet as the Hugging Face Hub keeps them: a column of encoded images (a
struct of `bytes` and `path`, or plain bytes), a column of labels, and the class names in the
schema's metadata."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from rayfl.component import Count, Natural, component, neutral
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints, Pixels
from rayfl.federation.bounds import check_bounds
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.hub_rows import (
    HubColumns,
    check_claims,
    list_encoded_images,
    parse_class_names,
    pick_column,
    read_hub_rows,
    read_whole_labels,
)
from rayfl.federation.datasets.image_files import decode_images
from rayfl.federation.datasets.on_disk import OnDisk, refuse_damage
from rayfl.federation.datasets.own_images import Reading, Records
from rayfl.federation.datasets.sites import SiteRule, Sites, find_provenance, number_texts
from rayfl.regular_files import open_regular

ClassNames = tuple[str, ...]
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")


@component
class Parquet(OnDisk):
    """train-*.parquet and test-*.parquet (or validation-*, or else a seeded split) in a folder.

    channels  1 for grey, 3 for colour; by default all are coloured as soon as one is
    sites     where an image is from: `{column: NAME}`, or a rule for the names of the images as in
              `folder`; the labels are then taken for what somebody wrote (`labels: given`)
    truth     the column, beside that of the sites, that has true labels, for the evaluation alone
    damaged   `skip` leaves damaged images out and lists them, `refuse` ends with the first
    """

    side: Count | None = None
    channels: Literal[1, 3] | None = None
    image: str | None = None
    label: str | None = None
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    seed: Natural = 0
    sites: Annotated[SiteRule, neutral(None)] = None
    truth: Annotated[str | None, neutral(None)] = None
    damaged: Annotated[Literal["refuse", "skip"], neutral("refuse")] = "refuse"

    folder: ClassVar[str] = "parquet"
    form: ClassVar[str] = "train-*.parquet and test-*.parquet"
    sourced: ClassVar[bool] = False

    def __post_init__(self) -> None:
        by_column = self.sites is not None and self.sites.column is not None
        by_table = self.sites is not None and self.sites.table is not None
        if self.truth is not None and not (by_column or by_table):
            rule = "truth is a column of the files or the table that sites names"
            raise ValueError(broken(rule, repr(self.truth), "Write sites: {column: NAME}"))

    @property
    def labels_are_given(self) -> bool:
        return self.sites is not None

    def load(self, root: Path) -> Dataset:
        folder = self.where(root)
        train = list_split_files(folder, "train")
        if not train:
            rule = f"{folder} must hold train-*.parquet"
            raise DataError(broken(rule, "no such file", self.remedy))
        rows = read_hub_rows(folder, train, _list_test_files(folder), self._choose_columns())
        records, classes = rows.records, rows.classes
        if self.sites is not None and self.sites.column is None:
            records = _add_provenance(records, self.sites, folder, self.truth)
            classes = _check_classes(folder, records, classes)
        skip = self.damaged == "skip"
        how = Reading(self.side, self.channels, self.test_fraction, self.seed, skip)
        return how.build(folder.name, records, rows.tested, classes)

    def _choose_columns(self) -> HubColumns:
        site = None if self.sites is None else self.sites.column
        return HubColumns(
            image=(self.image,) if self.image else IMAGE_COLUMNS,
            label=(self.label,) if self.label else LABEL_COLUMNS,
            site=site,
            truth=self.truth if site is not None else None,
        )


def _add_provenance(
    records: Records,
    rule: Sites,
    folder: Path,
    truth: str | None,
) -> Records:
    """The records with the sites that a rule finds by their names, and what a table says beside."""
    known = find_provenance(rule, folder, records.names, records.names, truth)
    # The folders of old paths are no classes: the column of labels is.
    told = known.labels if rule.part is None else None
    labels = records.labels if told is None else told
    return dataclasses.replace(records, labels=labels, sites=known.sites, truth=known.truth)


def _check_classes(
    folder: Path,
    records: Records,
    classes: ClassNames,
) -> ClassNames:
    """The classes, once all labels and true labels are of them."""
    told = [records.labels] if records.truth is None else [records.labels, records.truth]
    strangers = sorted(set(number_texts(told)) - set(classes))
    if strangers:
        rule = f"{folder}: labels of a table are classes of the files ({', '.join(classes)})"
        raise DataError(broken(rule, ", ".join(strangers)))
    return classes


def list_split_files(folder: Path, split_name: str) -> list[Path]:
    """The files of the split `split_name`, in order, in `folder` or in `data` below it."""
    for place in (folder, folder / "data"):
        whole = place.glob(f"{split_name}.parquet")
        pieces = place.glob(f"{split_name}-*.parquet")
        found = sorted({*whole, *pieces})
        if found:
            return found
    return []


def _list_test_files(folder: Path) -> list[Path]:
    """The files of the test set, which goes by several names."""
    for name in ("test", "validation", "val"):
        files = list_split_files(folder, name)
        if files:
            return files
    return []


def read_parquet(
    files: Sequence[Path],
    image_columns: Sequence[str] = IMAGE_COLUMNS,
    label_columns: Sequence[str] = LABEL_COLUMNS,
    side: int | None = None,
    channels: int | None = None,
) -> tuple[Images, ClassNames]:
    """Every row of the files, and the class names (none if the schema does not tell).

    Parameters
    ----------
    files
        In this order.
    image_columns, label_columns
        The names that the columns may have; the first that a file has is read.
    side
        Makes squares of so many pixels.
    channels
        1 for grey, 3 for colour; None takes those of the first image for all.
    """
    pixels: list[Pixels] = []
    labels: list[Ints] = []
    names: ClassNames = ()
    for file in files:
        with refuse_damage(file, "a whole Parquet file of images and labels"):
            table, image, label = _read_columns(file, image_columns, label_columns)
            names = names or parse_class_names(table.schema.metadata, label)
            labels.append(read_whole_labels(file, table.column(label)))
            encoded = list_encoded_images(table.column(image).combine_chunks())
        if names:
            check_bounds(f"{file}: labels lie", labels[-1], 0, len(names))
        rows = [f"{file} row {row}" for row in range(len(encoded))]
        pixels.append(decode_images(encoded, channels, side, rows))
        # Every file continues in the channels of the first.
        channels = pixels[0].shape[3]
    _check_shapes(files, pixels)
    return Images(np.concatenate(pixels), np.concatenate(labels)), names


def _read_columns(
    file: Path,
    image_columns: Sequence[str],
    label_columns: Sequence[str],
) -> tuple[Any, str, str]:
    """A table of the images and the labels alone, and what the two columns are called."""
    import pyarrow.parquet as pq

    with open_regular(file) as stream, pq.ParquetFile(stream) as opened:
        schema = opened.schema_arrow
        image = pick_column(file, schema, image_columns)
        label = pick_column(file, schema, label_columns)
        check_claims(opened.metadata, file.stat().st_size)
        # Only these columns: others may hold bounding boxes, masks or texts of any size.
        table = opened.read(columns=[image, label])
    return table.replace_schema_metadata(schema.metadata), image, label


def _check_shapes(files: Sequence[Path], pixels: Sequence[Pixels]) -> None:
    shapes = [part.shape[1:] for part in pixels]
    for file, shape in zip(files, shapes, strict=True):
        if shape != shapes[0]:
            rule = f"all images have one size, in {files[0]} {shapes[0]}"
            remedy = "Set `side` to scale them to squares"
            raise DataError(broken(rule, f"{shape} in {file}", remedy))
