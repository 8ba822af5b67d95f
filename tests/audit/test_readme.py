"""README's way from a folder of images to the report, with small images and few rounds."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from rayfl.cli import rayfl as command
from tests.audit.odd_images import CLASSES, fill_site

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
SECTION = README.partition("## Your own images")[2].partition("\n## ")[0]
SITES = ("bern", "genf", "oslo", "rome", "wien")


def read_block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)
    assert found is not None
    return found[1]


def run_line(line: str) -> str:
    words = line.partition("#")[0].split()
    ran = CliRunner().invoke(command, words[1:], catch_exceptions=False)
    assert ran.exit_code == 0, ran.output
    return ran.output


@pytest.mark.timeout(600)
def test_from_a_folder_to_the_report(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = home / "wards"
    for site in SITES:
        fill_site(images, site, dict.fromkeys(CLASSES[:3], 25), wrong=site == "wien")
    written = yaml.safe_load(read_block("yaml").replace("/data/wards", str(images)))
    short = {"fleet": "inline", "training": {"rounds": 2}, "model": "linear"}
    (home / "wards.yaml").write_text(yaml.safe_dump({**written, **short}), encoding="utf-8")
    monkeypatch.setenv("RAYFL_OUTPUT", str(home / "outputs"))
    lines = [line for line in read_block("bash").splitlines() if line.startswith("rayfl")]
    told = [run_line(line) for line in lines]
    assert re.search(r"wien .* wrong labels", told[0])
    assert (home / "wards_audit" / "index.html").is_file()
    page = home / "outputs" / "reports" / "rayfl" / "index.html"
    text = page.read_text(encoding="utf-8")
    assert "Corrected labels" in text
    assert "Nobody knows the true labels of these data" in text
    (row,) = re.findall(r'<th scope="row">wien</th>(.*?)</tr>', text)
    assert float(re.findall(r"([\d.]+)%", row)[0]) > 80
