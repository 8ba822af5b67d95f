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
from rayfl.federation.bounds import check_bounds
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.datasets.image_files import decode_images
from rayfl.federation.datasets.on_disk import (
    OnDisk,
    damaged_file,
    refuse_damage,
    split_off_test,
)
from rayfl.regular_files import open_regular

ClassNames = tuple[str, ...]
IMAGE_COLUMNS = ("image", "img")
_LEAST_LIMIT = 1_000_000_000
_USUAL_RATIO = 20
"""How much larger than the file its columns may be: encoded images hardly shrink."""
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
            rule = f"{folder} must hold train-*.parquet"
            raise DataError(broken(rule, "no such file", self.remedy))
        train, names = self._read(files)
        held_out = _list_test_files(folder)
        if held_out:
            test, test_names = self._read(held_out)
            names = names or test_names
        else:
            train, test = split_off_test(train, self.test_fraction, self.seed)
        return Dataset(folder.name, train, test, names or _number_classes(train, test))

    def _read(self, files: Sequence[Path]) -> tuple[Images, ClassNames]:
        images = (self.image,) if self.image else IMAGE_COLUMNS
        labels = (self.label,) if self.label else LABEL_COLUMNS
        return read_parquet(files, images, labels, self.side, self.channels)


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
            names = names or _parse_class_names(table.schema.metadata, label)
            labels.append(_read_labels(file, table.column(label)))
            encoded = _list_encoded_images(table.column(image).combine_chunks())
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
        image = _pick_column(file, schema, image_columns)
        label = _pick_column(file, schema, label_columns)
        _check_claims(opened.metadata, file.stat().st_size)
        # Only these columns: others may hold bounding boxes, masks or texts of any size.
        table = opened.read(columns=[image, label])
    return table.replace_schema_metadata(schema.metadata), image, label


def _check_claims(metadata: Any, size: int) -> None:
    """Refuse a file that claims to unpack to far more than encoded images can."""
    most = max(_LEAST_LIMIT, _USUAL_RATIO * size)
    claimed = 0
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        columns = [row_group.column(at) for at in range(row_group.num_columns)]
        claimed += sum(column.total_uncompressed_size for column in columns)
    if max(claimed, metadata.num_rows) > most:
        raise ValueError(f"{claimed:,} bytes in {metadata.num_rows:,} rows, where {most:,} are due")


def _pick_column(
    file: Path,
    schema: Any,
    wanted: Sequence[str],
) -> str:
    """The first of these columns that the file has."""
    for name in wanted:
        if name in schema.names:
            return name
    rule = f"{file} must have a column {' or '.join(wanted)}"
    raise DataError(broken(rule, ", ".join(schema.names)))


def _read_labels(file: Path, column: Any) -> Ints:
    import pyarrow as pa

    # A missing label would turn the column into floats and the label into garbage.
    if column.null_count or not pa.types.is_integer(column.type):
        found = f"{column.type}, {column.null_count} missing"
        raise damaged_file(file, "labelled with whole numbers throughout", found)
    return np.asarray(column.to_numpy()).astype(np.int64)


def _list_encoded_images(column: Any) -> list[bytes]:
    """The image files in a column of structs or of plain bytes."""
    import pyarrow as pa

    # `path` is a name of old; without bytes it points to a file on its author's disk.
    inside = column.field("bytes") if pa.types.is_struct(column.type) else column
    return [value or b"" for value in inside.to_pylist()]


def _parse_class_names(metadata: dict[bytes, bytes] | None, label: str) -> ClassNames:
    """The names that the Hub's metadata gives to the labels, if it does."""
    text = (metadata or {}).get(b"huggingface", b"{}")
    info = json.loads(text).get("info", {})
    feature = info.get("features", {}).get(label, {})
    return tuple(map(str, feature.get("names") or ()))


def _check_shapes(files: Sequence[Path], pixels: Sequence[Pixels]) -> None:
    shapes = [part.shape[1:] for part in pixels]
    for file, shape in zip(files, shapes, strict=True):
        if shape != shapes[0]:
            rule = f"all images have one size, in {files[0]} {shapes[0]}"
            remedy = "Set `side` to scale them to squares"
            raise DataError(broken(rule, f"{shape} in {file}", remedy))


def _number_classes(*images: Images) -> ClassNames:
    """Class names for labels that have none."""
    labels = np.concatenate([part.y for part in images])
    highest = int(labels.max(initial=0))
    return tuple(map(str, range(highest + 1)))
