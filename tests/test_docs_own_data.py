"""The page about images of one's own: what it shows can be written, and its first run runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner

import rayfl
from rayfl.cli import rayfl as command_line
from rayfl.federation.plan import FederationPlan
from tests.federation.own_images import paint

PAGE = (Path(__file__).parents[1] / "docs" / "own_data.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
RULES = re.findall(r"^\| `sites: (.*?)` \|", PAGE, re.MULTILINE)
SITES = ("bern", "genf", "oslo", "rome", "wien")


@pytest.fixture(scope="module")
def wards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wards")
    values = np.random.default_rng(0).integers(0, 256, 60).tolist()
    for i, value in enumerate(values):
        paint(folder / ("sick" if i % 2 else "well") / SITES[i % 5] / f"{i}.png", value, 4 + i % 3)
    return folder


@pytest.mark.parametrize("block", BLOCKS)
def test_every_example_is_a_plan(block: str) -> None:
    written = yaml.safe_load(block)
    for key in ("model", "method"):
        written.pop(key, None)
    FederationPlan.model_validate(written)


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_of_sites_can_be_written(rule: str) -> None:
    name = "parquet" if "column" in rule else "folder"
    written = {"data": {"name": name, "sites": yaml.safe_load(rule)}}
    assert FederationPlan.model_validate(written).labels == "given"


def test_the_first_run_runs(wards: Path, tmp_path: Path) -> None:
    written = yaml.safe_load(BLOCKS[0].replace("/data/wards", str(wards)))
    short = {"training": {"rounds": 1, "epochs": 1}, "tracking": {"enabled": False}}
    written |= {**short, "fleet": "inline", "output": str(tmp_path), "model": "linear"}
    assert "test/accuracy" in rayfl.run(written).metrics


def test_the_data_can_be_looked_at(wards: Path, tmp_path: Path) -> None:
    words = re.search(r"rayfl (data describe .*?)\s+#", PAGE)
    assert words is not None
    line = words[1].replace("/data/wards", str(wards)).replace("/tmp/wards", str(tmp_path))
    done = CliRunner().invoke(command_line, line.split())
    assert done.exit_code == 0, done.output
    assert "sites 5: bern, genf, oslo, rome, wien" in done.output
