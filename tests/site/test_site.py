"""The documentation site, built as `make site` builds it and opened in a browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from rayfl.algorithms import METHODS
from rayfl.federation.datasets import DATASETS
from rayfl.federation.noise import NOISES
from rayfl.federation.partition import PARTITIONS
from rayfl.locks import take_lock
from rayfl_site.check import list_faults, read_page
from rayfl_site.component_pages import LISTS
from tests.report.chromium import tab

ROOT = Path(__file__).parents[2]
GENERATED = {
    "methods": METHODS.entries,
    "datasets": DATASETS.entries,
    "noises": NOISES.entries,
    "partitions": PARTITIONS.entries,
    "parts": LISTS,
}
HANDMADE = ("index", "start", "concepts", "sweeps", "own_data", "cluster", "results", "leaderboard")

SECONDS = 600.0

pytestmark = [pytest.mark.rest, pytest.mark.timeout(SECONDS)]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built site, without pictures of data that must be fetched. Workers share one, which the
    first of them builds."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    with take_lock(shared / "site.lock", "the site", SECONDS):
        if not (shared / "site" / "built").is_file():
            build_site(shared / "site")
            (shared / "site" / "built").touch()
    return shared / "site" / "html"


def build_site(folder: Path) -> None:
    """Build it as `make site` does."""
    script = str(ROOT / "docs" / "site" / "build.py")
    command = [sys.executable, script, "-o", str(folder), "--data", str(folder / "data")]
    search_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": search_path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stderr


@pytest.mark.parametrize("section", GENERATED)
def test_every_component_has_its_page(site: Path, section: str) -> None:
    there = {path.stem for path in (site / section).glob("*.html")} - {"index"}
    assert there == set(GENERATED[section])


@pytest.mark.parametrize("name", HANDMADE)
def test_guides_are_there(site: Path, name: str) -> None:
    assert (site / f"{name}.html").is_file()


@pytest.mark.parametrize("section", ["noises", "partitions"])
def test_figures_are_there(site: Path, section: str) -> None:
    drawn = {path.stem for path in (site / section).glob("*.svg")}
    assert set(GENERATED[section]) - drawn <= {"human"}


def test_nothing_leads_nowhere_or_comes_from_elsewhere(site: Path) -> None:
    assert list_faults(site) == []
    loaded = [each for path in site.rglob("*.html") for each in read_page(path).loaded]
    assert len(loaded) > 500
    assert not [each for each in loaded if "//" in each]


def test_a_method_stands_beside_its_paper(site: Path) -> None:
    html = (site / "methods" / "fedds.html").read_text()
    page = unescape(re.sub(r"<[^>]+>", "", html))
    assert 'href="#code-estimate-dawid_skene-infer_truth"' in html
    for said in (
        "method.weighting.use_prior",
        "rayfl/estimate/dawid_skene.py, line",
        "Annotators are the participants of the round",
        "rayfl run methods/fedds",
        "rayfl check fedds",
        "FedDS, Table 4",
    ):
        assert said in page


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_open_from_the_file_system(site: Path, width: int, tmp_path: Path) -> None:
    with tab(tmp_path) as page:
        page.size(width, 800, mobile=width < 600)
        for name, title in (("index.html", "rayfl"), ("methods/fedds.html", "fedds")):
            page.open((site / name).as_uri())
            assert page.until("document.querySelector('h1').innerText").startswith(title)
            assert page.js("document.documentElement.scrollWidth") <= width
        assert page.complaints() == []
        assert all(url.startswith(("file:", "data:", "blob:")) for url in page.requests())


def test_the_search_finds_without_a_server(site: Path, tmp_path: Path) -> None:
    with tab(tmp_path) as page:
        page.size(1280, 800)
        page.open((site / "index.html").as_uri())
        page.js(
            "const box = document.querySelector('[data-md-component=search-query]');"
            "box.focus(); box.value = 'dawid'; box.dispatchEvent(new Event('keyup'));"
            "box.dispatchEvent(new Event('input'))"
        )
        page.until("document.querySelector('.md-search-result__item a')?.href.includes('.html')")
