"""Images of one's own: sites by folder, table and pattern, files of every mode, damaged ones."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from rayfl.component import without_neutral
from rayfl.errors import DataError
from rayfl.federation.dataset import Dataset
from rayfl.federation.dataset_display import describe_dataset
from rayfl.federation.datasets import DATASETS
from rayfl.federation.datasets.folder import Folder
from rayfl.federation.datasets.image_files import decode_as_shown
from tests.federation.own_images import ORIENTATION, paint, write_table


def load(folder: Path, **settings: Any) -> Dataset:
    return DATASETS.build({"name": "folder", "path": folder, **settings}).load(folder)


def origins(dataset: Dataset) -> dict[str, tuple[str, str]]:
    """(site, class) of every image, by name."""
    found = {}
    for part in (dataset.train, dataset.test):
        assert part.names is not None
        assert part.groups is not None
        for name, site, y in zip(part.names.tolist(), part.groups, part.y, strict=True):
            found[name] = dataset.sites[site], dataset.classes[y]
    return found


@pytest.fixture
def by_class(tmp_path: Path) -> Path:
    """CLASS/SITE/image.png: two classes, two sites, five images each."""
    for place in ("cat/north", "cat/south", "dog/north", "dog/south"):
        for i in range(5):
            paint(tmp_path / place / f"{i}.png", 10 * i)
    return tmp_path


def expect(folder: Path, site: int, label: int) -> dict[str, tuple[str, str]]:
    """What the path parts of every file say."""
    files = [file.relative_to(folder) for file in folder.rglob("*.png")]
    return {file.as_posix(): (file.parts[site], file.parts[label]) for file in files}


@pytest.mark.parametrize("sites", ["parent", {"part": 1}, {"part": -1}])
def test_the_folder_of_a_file_is_its_site(by_class: Path, sites: Any) -> None:
    dataset = load(by_class, sites=sites)
    assert (dataset.classes, dataset.sites) == (("cat", "dog"), ("north", "south"))
    assert origins(dataset) == expect(by_class, 1, 0)


def test_sites_may_lie_above_classes(tmp_path: Path) -> None:
    for place in ("b/cat", "b/dog", "a/dog"):
        for i in range(4):
            paint(tmp_path / place / f"{i}.png", 1)
    dataset = load(tmp_path, sites={"part": 0})
    assert (dataset.classes, dataset.sites) == (("cat", "dog"), ("a", "b"))
    assert origins(dataset) == expect(tmp_path, 0, 1)


def test_parts_are_counted_below_train_and_test(tmp_path: Path) -> None:
    for part, site in (("train", "a"), ("train", "c"), ("test", "b")):
        paint(tmp_path / part / "cat" / site / "1.png", 1)
    dataset = load(tmp_path, sites="parent")
    assert dataset.sites == ("a", "b", "c")
    assert origins(dataset) == {
        "train/cat/a/1.png": ("a", "cat"),
        "train/cat/c/1.png": ("c", "cat"),
        "test/cat/b/1.png": ("b", "cat"),
    }


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("labelled", [True, False])
def test_a_table_names_the_site_of_each_file(tmp_path: Path, suffix: str, labelled: bool) -> None:
    rows = []
    for i in range(8):
        place = f"{'x' if i % 2 else 'y'}/{i}.png"
        paint(tmp_path / place, i)
        rows.append({"file": place, "site": 7 if i < 4 else 12, "label": "cat" if i % 3 else "dog"})
    if not labelled:
        rows = [{key: row[key] for key in ("file", "site")} for row in rows]
    write_table(tmp_path / f"sites{suffix}", rows)
    dataset = load(tmp_path, sites={"table": f"sites{suffix}"})
    assert dataset.sites == ("12", "7")
    assert dataset.classes == (("cat", "dog") if labelled else ("x", "y"))
    for row in rows:
        name = str(row["file"])
        own = row["label"] if labelled else name[0]
        assert origins(dataset)[name] == (str(row["site"]), own)


def test_a_table_labels_images_without_folders(tmp_path: Path) -> None:
    rows = []
    for i in range(6):
        paint(tmp_path / f"{i}.png", i)
        rows.append({"file": f"{i}.png", "site": "a", "label": "cat" if i % 2 else "dog"})
    write_table(tmp_path / "sites.csv", rows)
    found = origins(load(tmp_path, sites={"table": "sites.csv"}))
    assert {name: label for name, (_, label) in found.items()} == {
        row["file"]: row["label"] for row in rows
    }


def test_a_pattern_finds_sites_and_labels_in_names(tmp_path: Path) -> None:
    for site in ("oslo", "rome"):
        for i in range(4):
            paint(tmp_path / f"{site}_{'cat' if i % 2 else 'dog'}_{i}.png", i)
    dataset = load(tmp_path, sites={"pattern": r"^(?P<site>[a-z]+)_(?P<label>[a-z]+)_\d"})
    assert dataset.sites == ("oslo", "rome")
    assert origins(dataset)["rome_cat_1.png"] == ("rome", "cat")
    assert len(origins(dataset)) == 8


def test_without_a_label_in_the_pattern_the_folder_is_the_class(tmp_path: Path) -> None:
    for site in ("oslo", "rome"):
        for i in range(4):
            paint(tmp_path / "cat" / f"{site}_{i}.png", i)
    assert origins(load(tmp_path, sites={"pattern": "(?P<site>[a-z]+)_"}))["cat/oslo_1.png"] == (
        "oslo",
        "cat",
    )


@pytest.mark.parametrize(
    ("rows", "rule"),
    [
        ([("a/1.png", "s")], r"a row for every image \(2\); got none for 1 .* 'a/2\.png'"),
        (
            [("a/1.png", "s"), ("a/2.png", "s"), ("a/3.png", "s")],
            r"an image for every row; got none for 1 of them, first 'a/3\.png'",
        ),
        (
            [("a/1.png", "s"), ("a/1.png", "t"), ("a/2.png", "s")],
            r"every file occurs once; got 'a/1\.png' more than once",
        ),
        ([("a/1.png", "s"), ("a/2.png", "")], r"column 'site' has a value .* none in row 1"),
    ],
)
def test_tables_that_do_not_fit_the_files_are_refused(
    tmp_path: Path, rows: Sequence[tuple[str, str]], rule: str
) -> None:
    for i in (1, 2):
        paint(tmp_path / "a" / f"{i}.png", i)
    write_table(tmp_path / "sites.csv", [{"file": file, "site": site} for file, site in rows])
    with pytest.raises(DataError, match=rule):
        load(tmp_path, sites={"table": "sites.csv"})


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("file,hospital\na/1.png,s\n", r"a column 'site'; got columns file, hospital"),
        ("file,site\na/1.png\n", r"a readable \.csv table; got row 0 has 1 cells of 2"),
        ("", r"a column 'file'; got columns none"),
    ],
)
def test_tables_of_another_form_are_refused(tmp_path: Path, text: str, rule: str) -> None:
    paint(tmp_path / "a" / "1.png", 1)
    (tmp_path / "sites.csv").write_text(text)
    with pytest.raises(DataError, match=rule):
        load(tmp_path, sites={"table": "sites.csv"})


def test_a_spreadsheets_mark_and_blanks_do_no_harm(tmp_path: Path) -> None:
    for i in range(2):
        paint(tmp_path / "a" / f"{i}.png", i)
    text = "\ufefffile, site\na/0.png, s\n\na/1.png, s\n"
    (tmp_path / "sites.csv").write_text(text, encoding="utf-8")
    assert load(tmp_path, sites={"table": "sites.csv"}).sites == ("s",)


@pytest.mark.parametrize(
    ("files", "sites", "rule"),
    [
        (["cat/1.png"], "parent", r"sites: parent takes folders of site and class.*'cat/1\.png'"),
        (["a/b/1.png"], {"part": 2}, r"sites: \{part: 2\} takes folders"),
        (["cat/x.png"], {"pattern": "(?P<site>[0-9]+)"}, r"is found in every image's path; got"),
        (["7.png"], {"pattern": "(?P<site>[0-9]+)"}, r"an image lies in the folder of its class"),
    ],
)
def test_files_that_the_rule_does_not_fit_are_refused(
    tmp_path: Path, files: Sequence[str], sites: Any, rule: str
) -> None:
    for file in files:
        paint(tmp_path / file, 1)
    with pytest.raises(DataError, match=rule):
        load(tmp_path, sites=sites)


@pytest.mark.parametrize(
    ("settings", "rule"),
    [
        ({"sites": "parents"}, "sites is 'parent', or a mapping.*Did you mean 'parent'"),
        ({"sites": {}}, "exactly one of part, table, pattern, column; got none"),
        ({"sites": {"part": 0, "table": "x.csv"}}, r"exactly one of .*got \['part', 'table'\]"),
        ({"sites": {"pattern": "("}}, "sites.pattern is a regular expression"),
        ({"sites": {"pattern": "(.*)"}}, "sites.pattern has a group 'site'"),
        ({"sites": {"column": "x"}}, "a column of Parquet files"),
        ({"sites": "parent", "truth": "expert"}, "truth is a column of the table"),
        ({"damaged": "ignore"}, "damaged"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], rule: str) -> None:
    with pytest.raises(ValidationError, match=rule):
        DATASETS.build({"name": "folder", **settings})


def test_a_truth_in_the_table_stays_beside_the_labels(tmp_path: Path) -> None:
    rows = []
    for i in range(20):
        paint(tmp_path / f"{i}.png", i)
        told = "cat" if i % 2 else "dog"
        rows.append({"file": f"{i}.png", "site": "s", "label": told, "expert": "dog"})
    write_table(tmp_path / "sites.csv", rows)
    dataset = load(tmp_path, sites={"table": "sites.csv"}, truth="expert")
    assert dataset.train.truth is not None
    assert np.bincount(dataset.train.y).tolist() == [8, 8]
    assert (dataset.train.truth == 1).all()
    # What is tested against is the truth.
    assert (dataset.test.y == 1).all()


def test_names_are_kept_and_no_part_of_the_hash(tmp_path: Path) -> None:
    for name in ("one", "two"):
        for place in ("cat/x", "dog/x"):
            for i in range(5):
                paint(tmp_path / name / f"{place}{name}{i}.png", i)
    one, two = load(tmp_path / "one"), load(tmp_path / "two")
    assert one.train.names is not None
    assert one.train.names[0].startswith("cat/xone")
    assert one.sha256 == two.sha256
    with_sites = load(tmp_path / "one", sites={"pattern": "x(?P<site>[a-z]+)"})
    assert with_sites.sha256 != one.sha256


def test_new_settings_leave_the_identity_of_old_runs() -> None:
    folder = Folder(side=8)
    dumped = DATASETS.describe(folder)
    assert set(without_neutral(folder, dumped)) == {
        "name",
        "path",
        "side",
        "channels",
        "test_fraction",
        "seed",
    }


# -- the test set ----------------------------------------------------------------------------------


def test_the_test_set_takes_of_each_site_and_leaves_each_something(tmp_path: Path) -> None:
    sizes = {"a": 100, "b": 40, "c": 10, "d": 1}
    for site, size in sizes.items():
        for i in range(size):
            paint(tmp_path / ("cat" if i % 2 else "dog") / site / f"{i}.png", 1, side=2)
    for seed in range(5):
        dataset = load(tmp_path, sites="parent", seed=seed)
        assert dataset.train.groups is not None
        assert dataset.test.groups is not None
        held = np.bincount(dataset.test.groups, minlength=4)
        assert (held + np.bincount(dataset.train.groups)).tolist() == list(sizes.values())
        assert len(dataset.test) == 30
        assert np.abs(held - [20, 8, 2, 0]).max() <= 2
        assert held[3] == 0


# -- what files look like --------------------------------------------------------------------------


def test_every_mode_comes_to_three_channels_and_one_side(tmp_path: Path) -> None:
    """Half transparent red becomes half white, 16 bits keep the upper 8, a palette its colours."""
    red = np.full((9, 7, 3), (200, 0, 0), np.uint8)
    modes = {
        "grey": Image.fromarray(np.full((5, 8), 60, np.uint8)),
        "grey_alpha": Image.merge("LA", [Image.new("L", (6, 6), 60), Image.new("L", (6, 6), 0)]),
        "bilevel": Image.new("1", (6, 9), 1),
        "palette": Image.fromarray(red).quantize(4),
        "rgb": Image.fromarray(red),
        "rgba": Image.merge("RGBA", [*Image.fromarray(red).split(), Image.new("L", (7, 9), 127)]),
        "sixteen": Image.fromarray(np.full((5, 8), 60 * 256 + 255, np.uint16)),
    }
    files = []
    for name, picture in modes.items():
        files.append(tmp_path / f"{name}.png")
        picture.save(files[-1])
    shown = decode_as_shown(files, None, 4, [str(file) for file in files])
    assert shown.x.shape == (7, 4, 4, 3)
    middle = dict(zip(modes, shown.x[:, 2, 2].tolist(), strict=True))
    assert middle == {
        "grey": [60, 60, 60],
        "grey_alpha": [255, 255, 255],
        "bilevel": [255, 255, 255],
        "palette": [200, 0, 0],
        "rgb": [200, 0, 0],
        "rgba": [228, 128, 128],
        "sixteen": [60, 60, 60],
    }
    assert decode_as_shown(files, 1, 4, [str(file) for file in files]).x.shape == (7, 4, 4, 1)


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_photographs_are_turned_as_their_camera_says(tmp_path: Path, suffix: str) -> None:
    pixels = np.zeros((16, 16), np.uint8)
    pixels[:8] = 255
    exif = Image.Exif()
    # The camera was held so that the first row of the file is the right edge of the scene.
    exif[ORIENTATION] = 6
    file = tmp_path / f"turned{suffix}"
    Image.fromarray(pixels).save(file, exif=exif)
    found = decode_as_shown([file], None, 8, [str(file)]).x[0, :, :, 0]
    assert found[:, :3].max() < 30
    assert found[:, 5:].min() > 225


def test_one_coloured_image_makes_all_coloured(tmp_path: Path) -> None:
    paint(tmp_path / "a" / "1.png", 9)
    Image.new("RGB", (6, 6), (1, 2, 3)).save(tmp_path / "a" / "2.png")
    paint(tmp_path / "a" / "3.png", 5)
    dataset = load(tmp_path, test_fraction=0.3)
    everything = np.concatenate([dataset.train.x, dataset.test.x])
    assert sorted(everything[:, 0, 0].tolist()) == [[1, 2, 3], [5, 5, 5], [9, 9, 9]]


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pictures_that_are_not_of_8_or_16_bits_are_refused(tmp_path: Path, mode: str) -> None:
    (tmp_path / "a").mkdir()
    Image.new(mode, (4, 4), 70_000).save(tmp_path / "a" / "1.tiff")
    with pytest.raises(DataError, match=r"a/1\.tiff must be a whole image file; got grey values"):
        load(tmp_path)


# -- damaged ones ----------------------------------------------------------------------------------


@pytest.fixture
def damaged(by_class: Path) -> Path:
    for name in ("cat/north/2.png", "dog/south/0.png"):
        (by_class / name).write_bytes(b"no image")
    return by_class


def test_a_damaged_image_is_refused_by_name(damaged: Path) -> None:
    with pytest.raises(DataError, match=r"(north/2|south/0)\.png must be a whole image file"):
        load(damaged, sites="parent")


def test_damaged_images_are_left_out_on_request_and_listed(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dataset = load(damaged, sites="parent", damaged="skip")
    assert "2 damaged images are left out, first cat/north/2.png" in caplog.text
    assert dataset.skipped == ("cat/north/2.png", "dog/south/0.png")
    assert len(origins(dataset)) == 18
    assert not set(dataset.skipped) & set(origins(dataset))
    assert "left out as damaged: 2 (cat/north/2.png, dog/south/0.png)" in describe_dataset(dataset)


def test_nothing_but_damaged_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.png").write_bytes(b"")
    with pytest.raises(DataError, match="leaves out some images; got all 1 of them"):
        load(tmp_path, damaged="skip")
