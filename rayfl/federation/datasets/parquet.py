"""Image datasets in Parquet as the Hugging Face Hub keeps them: a column of encoded images (a
struct of `bytes` and `path`, or plain bytes), a column of labels, and the class names in the
schema's metadata."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from rayfl.component import Count, Natural, component
from rayfl.errors import DataError, broken
from rayfl.federation.arrays import Ints, Pixels
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.files import OnDisk, check_label_range, damaged_file, split_off_test
from rayfl.federation.datasets.images import decode_images

ClassNames = tuple[str, ...]
IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMNS = ("label", "labels", "fine_label")


@component
class Parquet(OnDisk):
    """train-*.parquet and test-*.parquet (or validation-*, or else a seeded split) in a folder."""

    side: Count | None = None
    channels: Literal[1, 3] | None = None
    image: str | None = None
    label: str | None = None
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2
    seed: Natural = 0

    folder: ClassVar[str] = "parquet"
    form: ClassVar[str] = "train-*.parquet and test-*.parquet"
    sourced: ClassVar[bool] = False

    def load(self, root: Path) -> Dataset:
        folder = self.where(root)
        files = list_split_files(folder, "train")
        if not files:
            raise DataError(
                broken(f"{folder} must hold train-*.parquet", "no such file", self.remedy)
            )
        train, names = self.read(files)
        held_out = (
            list_split_files(folder, "test")
            or list_split_files(folder, "validation")
            or list_split_files(folder, "val")
        )
        if held_out:
            test, more = self.read(held_out)
            names = names or more
        else:
            train, test = split_off_test(train, self.test_fraction, self.seed)
        return Dataset(folder.name, train, test, names or _number_classes(train, test))

    def read(self, files: Sequence[Path]) -> tuple[Images, ClassNames]:
        images = (self.image,) if self.image else IMAGE_COLUMNS
        labels = (self.label,) if self.label else LABEL_COLUMNS
        return read_parquet(files, images, labels, self.side, self.channels)


def list_split_files(folder: Path, split_name: str) -> list[Path]:
    """The files of a split, in order, in the folder or in `data` below it."""
    for place in (folder, folder / "data"):
        found = sorted(
            {*place.glob(f"{split_name}.parquet"), *place.glob(f"{split_name}-*.parquet")}
        )
        if found:
            return found
    return []


def read_parquet(
    files: Sequence[Path],
    image_columns: Sequence[str] = IMAGE_COLUMNS,
    label_columns: Sequence[str] = LABEL_COLUMNS,
    side: int | None = None,
    channels: int | None = None,
) -> tuple[Images, ClassNames]:
    """Every row of the files, and the class names (none if the schema does not tell)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pixels: list[Pixels] = []
    labels: list[Ints] = []
    names: ClassNames = ()
    for file in files:
        try:
            with pq.ParquetFile(file) as opened:
                schema = opened.schema_arrow
                columns = [
                    _pick_column(file, schema, image_columns),
                    _pick_column(file, schema, label_columns),
                ]
                # Only these columns: others may hold bounding boxes, masks or texts of any size.
                table = opened.read(columns=columns)
        except (pa.ArrowException, OSError) as error:
            raise damaged_file(file, "a whole Parquet file", error) from error
        names = names or _parse_class_names(schema.metadata, columns[1])
        labels.append(_read_labels(file, table.column(columns[1])))
        if names:
            check_label_range(str(file), labels[-1], len(names))
        encoded = _list_encoded_images(table.column(columns[0]).combine_chunks())
        rows = [f"{file} row {row}" for row in range(len(encoded))]
        # Every file continues in the channels of the first.
        pixels.append(
            decode_images(encoded, pixels[0].shape[3] if pixels else channels, side, rows)
        )
    _check_shapes(files, pixels)
    return Images(np.concatenate(pixels), np.concatenate(labels)), names


def _pick_column(file: Path, schema: Any, wanted: Sequence[str]) -> str:
    """The first of these columns that the file has."""
    for name in wanted:
        if name in schema.names:
            return name
    raise DataError(
        broken(f"{file} must have a column {' or '.join(wanted)}", ", ".join(schema.names))
    )


def _read_labels(file: Path, column: Any) -> Ints:
    import pyarrow as pa

    # A missing label would turn the column into floats and the label into garbage.
    if column.null_count or not pa.types.is_integer(column.type):
        raise damaged_file(
            file,
            "labelled with whole numbers throughout",
            f"{column.type}, {column.null_count} missing",
        )
    return np.asarray(column.to_numpy()).astype(np.int64)


def _list_encoded_images(column: Any) -> list[bytes]:
    """The image files in a column of structs or of plain bytes."""
    import pyarrow as pa

    # `path` is a name of old; without bytes it points to a file on its author's disk.
    inside = column.field("bytes") if pa.types.is_struct(column.type) else column
    return [value or b"" for value in inside.to_pylist()]


def _parse_class_names(metadata: dict[bytes, bytes] | None, label: str) -> ClassNames:
    """The names that the Hub's metadata gives to the labels, if it does."""
    told = json.loads((metadata or {}).get(b"huggingface", b"{}"))
    feature = told.get("info", {}).get("features", {}).get(label, {})
    return tuple(str(name) for name in feature.get("names") or ())


def _check_shapes(files: Sequence[Path], pixels: Sequence[Pixels]) -> None:
    for file, found in zip(files, pixels, strict=True):
        if found.shape[1:] != pixels[0].shape[1:]:
            rule = f"all images have one size, in {files[0]} {pixels[0].shape[1:]}"
            raise DataError(
                broken(rule, f"{found.shape[1:]} in {file}", "Set `side` to scale them to squares")
            )


def _number_classes(*images: Images) -> ClassNames:
    """Class names for labels that have none."""
    return tuple(str(c) for c in range(1 + max(int(part.y.max(initial=0)) for part in images)))
