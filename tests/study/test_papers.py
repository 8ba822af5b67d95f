"""The studies of the papers: every printed figure has its cell, and every cell can be configured at
every scale."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from rayfl.algorithms import METHODS
from rayfl.algorithms.fb_nll import FbNllMinus
from rayfl.config.schema import Config
from rayfl.errors import RayflError
from rayfl.estimate import Criterion
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.scenario import build_scenario
from rayfl.study.cells import is_study, list_cells, load_study
from rayfl.study.order import StudyOrder
from rayfl.study.printed_figures import find_printed, read_rows
from rayfl.study.scaling import SIZES

PAPER = Path(__file__).resolve().parents[2] / "configs" / "paper"
STUDIES = [path.name for path in sorted(PAPER.glob("*.yaml")) if is_study(path)]
PRINTED = sorted(path.name for path in (PAPER / "printed").glob("*.csv"))

NO_CELL = {
    ("fedrn.csv", "Table 1"): "sizes of datasets, which no run measures",
    (
        "fedcr.csv",
        "Table 2",
    ): "the dashes of Server-SL, which does not depend on the partition of clients",
}
"""Printed rows that no cell stands for, and why."""


@pytest.fixture(scope="module")
def claims() -> Mapping[tuple[str, int], list[str]]:
    """By file and row, the scores of cells that say it is theirs."""
    found: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name in STUDIES:
        study = load_study(PAPER / name)
        for cell in list_cells(study) if study.printed else ():
            for score in cell.scores:
                row = find_printed(cell, cell.scores[score]).row
                if row is not None:
                    assert study.printed is not None
                    found[Path(study.printed.file).name, row].append(
                        f"{name}: {cell.label}, {score}"
                    )
    return found


@pytest.mark.parametrize("file", PRINTED)
def test_every_printed_figure_has_one_cell(
    file: str, claims: Mapping[tuple[str, int], list[str]]
) -> None:
    claimed = {
        row: claims[file, row]
        for row in range(len(read_rows(PAPER / "printed" / file)))
        if (file, row) in claims
    }
    twice = {row: names for row, names in claimed.items() if len(names) > 1}
    assert not twice
    unclaimed = [
        row
        for number, row in enumerate(read_rows(PAPER / "printed" / file))
        if number not in claimed
    ]
    assert not [row for row in unclaimed if (file, row["table"]) not in NO_CELL]


def test_rows_without_a_cell_are_dashes_or_sizes() -> None:
    without = [row for row in read_rows(PAPER / "printed" / "fedcr.csv") if row["mean"] == "-"]
    assert [(row["method"], row["setting"]) for row in without] == [("Server-SL", "Non-IID")] * 3


@pytest.mark.parametrize(
    ("paper", "tables"),
    [
        ("fedds", ["table4", "table5", "fig1", "fig3", "fig4", "fig5", "fig6"]),
        ("fedrn", [*(f"table{n}" for n in range(2, 11)), "fig1", "fig3", "fig4", "fig5"]),
        ("fb_nll", [*(f"table{n}" for n in (2, 4, 5, 6, 7, 8, 9, 10, 11)), "fig5", "noise"]),
        ("fedcr", [*(f"table{n}" for n in range(2, 8)), *(f"fig{n}" for n in range(5, 11))]),
        (
            "local_k",
            [*(f"table{n}" for n in range(2, 10)), *(f"fig{n}" for n in (2, 4, 5, 6, 7, 8, 9, 10))],
        ),
    ],
)
def test_each_table_and_figure_has_its_study(paper: str, tables: list[str]) -> None:
    assert sorted(name for name in STUDIES if name.startswith(f"{paper}_")) == sorted(
        f"{paper}_{table}.yaml" for table in tables
    )


def test_a_method_that_is_built_is_not_listed_as_missing() -> None:
    built = {name.replace("_", "") for name in METHODS.names()}
    for name in STUDIES:
        for choice_name, choice in load_study(PAPER / name).axes.get("method", {}).items():
            if choice.missing:
                assert choice_name.replace("_", "") not in built, f"{name}: {choice_name}"


# -- configurations --------------------------------------------------------------------------------

CLASSES = {
    "mnist": 10,
    "fashion-mnist": 10,
    "cifar10": 10,
    "cifar100": 100,
    "svhn": 10,
    "pathmnist": 9,
    "mura": 7,
    "webvision": 50,
}
COUNTS = {
    ("svhn", 73_257): (4948, 13861, 10585, 8497, 7458, 6882, 5727, 5595, 5045, 4659),
    ("mura", 36_808): (4931, 5106, 1825, 5543, 1272, 8379, 9752),
}


@lru_cache(maxsize=1)
def look_alike(name: str) -> Dataset:
    """A dataset of one black pixel an image, with as many images of as many classes, three of a
    patient."""

    def part(size: int) -> Images:
        counts = COUNTS.get((name, size))
        labels = (
            np.arange(size) % CLASSES[name]
            if counts is None
            else np.repeat(np.arange(len(counts)), counts)
        )
        shuffled = np.random.default_rng(0).permutation(labels).astype(np.int64)
        return Images(
            np.zeros((size, 1, 1, 1), np.uint8),
            shuffled,
            np.arange(size) // 3 if name == "mura" else None,
        )

    train, test = map(part, SIZES[name])
    return Dataset(name, train, test, tuple(map(str, range(CLASSES[name]))))


@pytest.fixture(scope="module")
def drawn() -> set[str]:
    """The federations that were drawn already."""
    return set()


@pytest.mark.parametrize("scale", [1.0, 0.1, 0.02])
@pytest.mark.parametrize("name", STUDIES)
def test_every_cell_can_be_configured_and_its_federation_drawn(
    name: str, scale: float, drawn: set[str]
) -> None:
    order = StudyOrder(PAPER / name, scale=scale, seeds=(0,))
    for cell, _, made in order.configurations():
        assert not isinstance(made, RayflError), f"{cell.label}: {made}"
        assert (made.note != "") == (scale < 1), cell.label
        if scale < 1:
            draw(made.config, drawn)


def draw(config: Config, drawn: set[str]) -> None:
    """Build the scenario on a look-alike of the dataset, unless its own files are needed for
    that."""
    data, plan = config.resolved()["data"]["name"], json.dumps(config.recorded(), sort_keys=True)
    if data not in CLASSES or config.resolved()["noise"]["name"] == "human" or plan in drawn:
        return
    drawn.add(plan)
    other = config.resolved()["public_data"]
    public = None if other is None else look_alike(other["name"])
    scenario = build_scenario(config, look_alike(data), 0, public)
    held = scenario.sizes()
    assert held.min() > 0
    if config.training.drop_last and data != "blobs":
        assert held.min() >= config.training.batch_size


def test_a_studys_cells_share_runs_across_its_tables() -> None:
    """FedAvg of FedDS's Table 5 is that of Table 4: run once, it serves both."""

    def digest(name: str, **choices: str) -> str:
        order = StudyOrder(PAPER / name, seeds=(0,))
        cell = next(cell for cell in order.cells if dict(cell.choices) == choices)
        return order.configuration(cell, 0).config.digest

    where = {"dataset": "mnist", "partition": "iid"}
    first, second = "fedds_table4.yaml", "fedds_table5.yaml"
    assert digest(first, method="fedavg", **where) == digest(second, method="fedavg", **where)
    assert digest(first, method="fedavg+ds", **where) == digest(second, method="fedds", **where)
    assert digest(first, method="fedavg", **where) != digest(first, method="fedprox", **where)


def test_a_figure_of_a_tables_cells_runs_them_once() -> None:
    """FedCR's Fig. 5 shows cells of its Table 2."""

    def digests(name: str) -> set[str]:
        order = StudyOrder(PAPER / name, seeds=(0,))
        return {order.configuration(cell, 0).config.digest for cell in order.cells if cell.runs}

    shown = digests("fedcr_fig5.yaml")
    assert shown
    assert shown <= digests("fedcr_table2.yaml")


@pytest.mark.parametrize("name", ["fedcr_table2.yaml", "fedcr_table5.yaml"])
@pytest.mark.parametrize("dataset", ["cifar10", "svhn"])
def test_iid_and_other_clients_of_fedcr_hold_equally_many_images(name: str, dataset: str) -> None:
    order = StudyOrder(PAPER / name, seeds=(0,))
    totals = {}
    for cell in order.cells:
        if cell.runs and cell.choices["dataset"] == dataset:
            config = order.configuration(cell, 0).config
            scenario = build_scenario(config, look_alike(dataset), 0)
            totals[cell.choices["partition"]] = scenario.sizes().sum()
    assert totals["iid"] == totals["noniid"]


def test_the_figure_over_directions_is_the_equations() -> None:
    """FB-NLL's Fig. 5 counts every direction, however weak."""
    order = StudyOrder(PAPER / "fb_nll_fig5.yaml", seeds=(0,))
    methods = [order.configuration(cell, 0).config.method for cell in order.cells]
    found = [method.criterion for method in methods if isinstance(method, FbNllMinus)]
    assert found == [Criterion(q, "fixed", 0.0) for q in (1, 2, 5, 10, 20, 50, 100, 200, 324)]


def test_the_random_encoder_follows_the_runs_seed() -> None:
    order = StudyOrder(PAPER / "local_k_table4.yaml")
    cell = next(cell for cell in order.cells if cell.choices["method"] == "random")
    seeds = [
        order.configuration(cell, seed).config.resolved()["method"]["encoder"]["seed"]
        for seed in (1, 2)
    ]
    assert seeds == [1, 2]
