"""The description of a dataset: exact moments, counts, and a contact sheet that shows the right
images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from rayfl.commands.data import dataset_commands
from rayfl.errors import ConfigError, DataError
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.dataset_display import (
    describe_dataset,
    draw_contact_sheet,
    measure_channels,
    paint_montage,
    summarize_images,
)


def images(count: int, side: int = 3, channels: int = 1, classes: int = 4) -> Images:
    """Images whose every pixel is the image's number."""
    x = np.repeat(np.arange(count, dtype=np.uint8), side * side * channels).reshape(
        count, side, side, channels
    )
    return Images(x, np.arange(count) % classes)


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("chunk", [1, 500, 1 << 22])
def test_moments_are_those_of_the_floats(
    rng: np.random.Generator, channels: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rayfl.federation.dataset_display._CHUNK_VALUES", chunk)
    x = rng.integers(0, 256, (50, 5, 4, channels), dtype=np.uint8)
    mean, std = measure_channels(x)
    floats = x / 255
    assert np.allclose(mean, floats.mean(axis=(0, 1, 2)), rtol=1e-12, atol=0)
    assert np.allclose(std, floats.std(axis=(0, 1, 2)), rtol=1e-9, atol=0)


@pytest.mark.parametrize(("value", "mean"), [(0, 0.0), (255, 1.0)])
def test_moments_of_one_value(value: int, mean: float) -> None:
    found = measure_channels(np.full((3, 2, 2, 1), value, dtype=np.uint8))
    assert found[0].tolist() == [mean]
    assert found[1].tolist() == [0.0]


def test_summary_counts_classes_and_groups() -> None:
    part = images(10)
    summary = summarize_images(Images(part.x, part.y, np.array([7, 7, 8, 8, 8, 9, 9, 9, 9, 9])), 5)
    assert summary.counts.tolist() == [3, 3, 2, 2, 0]
    assert (summary.size, summary.groups) == (10, 3)
    assert summarize_images(part, 5).groups is None


def test_description_in_full() -> None:
    train = images(6)
    dataset = Dataset(
        "toy", Images(train.x, train.y, np.arange(6)), images(3), ("ant", "bee", "cow", "dodo")
    )
    assert describe_dataset(dataset).splitlines() == [
        "toy: 4 classes, images 3 x 3 x 1, 6 train and 3 test",
        f"sha256 {dataset.sha256}",
        "train mean 0.00980392 std 0.00669735",
        "train groups 6",
        "test mean 0.00392157 std 0.00320195",
        "     class    train     test",
        "   0 ant          2        1",
        "   1 bee          2        1",
        "   2 cow          1        1",
        "   3 dodo         1        0",
    ]


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_montage_shows_each_class_in_its_row(channels: int) -> None:
    sheet = paint_montage(images(45, channels=channels), range(1, 3)).reshape(2, 4, 10, 4, 3)
    assert sheet[0, 0, :, 0, 0].tolist() == [1, 5, 9, 13, 17, 21, 25, 29, 33, 37]
    assert sheet[1, 0, :, 0, 2].tolist() == [2, 6, 10, 14, 18, 22, 26, 30, 34, 38]
    assert (sheet[:, 3] == 255).all()


def test_montage_leaves_white_where_images_run_out() -> None:
    sheet = paint_montage(images(5), range(1)).reshape(4, 10, 4, 3)
    assert sheet[0, :, 0, 0].tolist() == [0, 4, *[255] * 8]


@pytest.mark.parametrize(("classes", "blocks"), [(2, 1), (25, 1), (26, 2), (100, 4)])
def test_contact_sheet_names_every_class_once(classes: int, blocks: int) -> None:
    names = tuple(f"name {c}" for c in range(classes))
    part = images(classes, classes=classes)
    axes = draw_contact_sheet(Dataset("toy", part, part, names)).axes
    assert len(axes) == blocks
    assert [tick.get_text() for one in axes for tick in one.get_yticklabels()] == list(names)


# --- the commands ---


def run(*arguments: str) -> Any:
    return CliRunner().invoke(dataset_commands, arguments, catch_exceptions=False)


def test_describe_prints_and_draws(tmp_path: Path) -> None:
    result = run("describe", "digits", "-o", str(tmp_path))
    assert "digits: 10 classes, images 8 x 8 x 1, 1,437 train and 360 test" in result.output
    assert result.output.endswith(f"contact sheet: {tmp_path / 'digits.png'}\n")
    with Image.open(tmp_path / "digits.png") as sheet:
        assert min(sheet.size) > 400


def test_settings_reach_the_dataset(tmp_path: Path) -> None:
    result = run("describe", "blobs", "samples=12", "classes=3", "channels=3", "-o", str(tmp_path))
    assert "blobs: 3 classes, images 8 x 8 x 3, 12 train and 200 test" in result.output


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("describe", "blobs", "samples"), "a setting is written name=value; got 'samples'"),
        (
            ("describe", "blobs", "samples=0"),
            "dataset blobs: samples: .* greater than or equal to 1, got 0",
        ),
        (("describe", "blobs", "colour=1"), "dataset blobs: colour: "),
        (("get", "nothing"), "unknown dataset 'nothing'"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[str, ...], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        run(*arguments)


def test_describe_of_what_is_not_there_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Run `rayfl data get mnist`"):
        run("describe", "mnist", "--root", str(tmp_path))


def test_get_of_what_needs_no_files() -> None:
    assert run("get", "digits").output == "digits needs no files\n"


def test_get_from_a_folder(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(5):
            Image.new("L", (4, 4), i).save(tmp_path / "pets" / name / f"{i}.png")
    root = tmp_path / "root"
    result = run(
        "get", "folder", "path=pets", "--from", str(tmp_path / "pets"), "--root", str(root)
    )
    assert result.output.splitlines()[1] == f"pets is at {root / 'pets'}"
    assert "8 training and 2 test images" in result.output
    assert (
        "8 train and 2 test"
        in run("describe", "folder", "path=pets", "--root", str(root), "-o", str(tmp_path)).output
    )


def test_the_names_are_listed() -> None:
    assert {"digits", "cifar10", "pathmnist", "mura"} <= set(run("list").output.split())
