"""The page in a real browser: it renders without complaint, sorts, zooms, turns dark, and fits a
phone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rayfl.report.gallery import draw_gallery
from rayfl.report.page import write_page
from rayfl.report.publish import publish_report
from rayfl.study.result import StudyResult
from tests.report.chromium import Tab, tab
from tests.report.conftest import Made
from tests.report.results import Figures, cell, grid, record, result

FIGURES = (
    "curves",
    "precision_recall",
    "reliability",
    "confusion",
    "similarity",
    "distributions",
    "costs",
    "dendrogram",
)
VOID = {"meta", "img", "br", "hr", "input", "link"}


@pytest.fixture(scope="module")
def written(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_report(made.result, tmp_path_factory.mktemp("report"), FIGURES)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tab]:
    with tab(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def seen(browser: Tab, written: Path) -> Tab:
    browser.events.clear()
    browser.prefers("light")
    browser.size(1280, 900)
    browser.call("Page.navigate", url="about:blank")
    browser.open(written.as_uri())
    browser.until("document.querySelectorAll('.chart svg path').length > 10")
    return browser


class Nesting(HTMLParser):
    """Whether every element that is opened is closed, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value for name, value in attrs if name == "id" and value and not self._drawn()]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Elements of SVG close themselves."""

    def _drawn(self) -> bool:
        return "svg" in self.open


# -- as text ---------------------------------------------------------------------------------------


def test_elements_are_nested_and_nothing_is_fetched(written: Path) -> None:
    text = written.read_text()
    parser = Nesting()
    parser.feed(text)
    assert parser.open == []
    assert len(parser.ids) == len(set(parser.ids))
    assert not re.search(r"(?:src|href)=\"(?!data:|#)", text)
    assert "default-src 'none'" in text
    assert len(text) < 3_000_000


def test_what_a_configuration_says_is_never_markup(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&"
    cells = [
        cell({"method": evil, "dataset": d}, [1.0], 2.0, records=[record(tmp_path)])
        for d in ("x", evil)
    ]
    (tmp_path / "run.json").write_text(json.dumps({"rayfl": evil}))
    found = result(
        [*cells, cell({"method": "b", "dataset": "x"}, missing=evil)],
        title=evil,
        study={"notes": evil, "paper": evil},
    )
    drawn, lacking = draw_gallery(found, ["curves", "reliability"])
    text = write_page(found, drawn, {**lacking, evil: evil})
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', text)[:1]
    assert json.loads(data)["lines"][0]["name"] == evil.upper()


def test_a_study_without_any_run_has_a_page(tmp_path: Path) -> None:
    found = result([cell({"method": "a", "dataset": "x"}, [], 5.0, missing="not run yet")])
    text = publish_report(found, tmp_path, ["curves"]).read_text()
    assert "curves: no run is finished" in text
    assert "A: not run yet" in text


# -- in the browser --------------------------------------------------------------------------------


def test_the_page_renders_without_complaint_or_request(seen: Tab, written: Path) -> None:
    assert seen.complaints() == []
    assert [url for url in seen.requests() if not url.startswith(("data:", "about:"))] == [
        written.as_uri()
    ]
    assert seen.js("document.title") == "Small & <small>"
    sections = ["Table", "Figures", "Clients that stand out", "Commands", "Provenance"]
    assert seen.js("[...document.querySelectorAll('h2')].map((h) => h.textContent)") == sections
    heights = "(f) => f.querySelector('svg, img')?.getBoundingClientRect().height"
    drawn = seen.js(f"[...document.querySelectorAll('figure')].map({heights})")
    assert len(drawn) >= 10
    assert min(drawn) > 80


def test_every_picture_has_words_for_it(seen: Tab) -> None:
    assert seen.js("[...document.querySelectorAll('figure img')].every((i) => i.alt.length > 10)")
    drawn = "[...document.querySelectorAll('figure svg[role=img]')]"
    labels = f"{drawn}.map((s) => s.getAttribute('aria-label').length)"
    assert min(seen.js(labels)) > 10
    assert seen.js(
        "[...document.querySelectorAll('figure')].every((f) => f.querySelector('figcaption'))"
    )
    assert seen.js("document.documentElement.lang") == "en"


COLUMN = (
    "[...document.querySelectorAll('#table tbody tr')].map((row) => row.cells[1].dataset.value)"
)


def test_tables_sort_both_ways_with_missing_values_last(seen: Tab) -> None:
    heads = "document.querySelectorAll('#table thead th[data-column]')[1]"
    for direction, sign in (("descending", -1), ("ascending", 1)):
        seen.js(f"{heads}.querySelector('button').click()")
        assert seen.js(f"{heads}.getAttribute('aria-sort')") == direction
        values = seen.js(COLUMN)
        known = [float(value) for value in values if value]
        assert known == sorted(known, key=lambda value: sign * value)
        assert len(known) == 5
        assert values[-1] == ""
    seen.js("document.querySelector('#table thead th[data-column] button').click()")
    names = seen.js(
        "[...document.querySelectorAll('#table tbody tr')].map((row) => row.cells[0].textContent)"
    )
    assert names == ["Delta", "FedAvg", "FedDS", "FedRN", "local k", "RHFL"]


def test_light_and_dark_follow_the_system_and_the_button(seen: Tab) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    assert seen.js(ground) == "rgb(255, 255, 255)"
    seen.js("document.getElementById('theme').click()")
    assert seen.js("document.documentElement.dataset.theme") == "dark"
    dark = seen.js(ground)
    assert dark == "rgb(20, 23, 27)"
    assert seen.js("document.getElementById('theme').textContent") == "Light"
    seen.js("localStorage.clear()")
    seen.prefers("dark")
    seen.open(seen.js("location.href"))
    assert seen.until(f"{ground} === '{dark}'")


@pytest.mark.parametrize("width", [360, 768, 1280])
def test_nothing_is_wider_than_the_window(seen: Tab, width: int) -> None:
    seen.size(width, 740, scale=2, mobile=width < 500)
    seen.until(f"innerWidth === {width}")
    assert seen.js("document.documentElement.scrollWidth") == width
    boxes = "[...document.querySelectorAll('.scroll')]"
    cut = f"{boxes}.every((box) => box.getBoundingClientRect().right <= innerWidth)"
    assert seen.js(cut)


def box(browser: Tab) -> tuple[float, float, float, float]:
    browser.js(
        "document.querySelector('.chart svg')"
        ".scrollIntoView({block: 'center', behavior: 'instant'})"
    )
    bounds = "document.querySelector('.chart svg').getBoundingClientRect()"
    x, y, width, height = (browser.js(f"{bounds}.{side}") for side in ("x", "y", "width", "height"))
    return x, y, width, height


TICKS = (
    "[...document.querySelectorAll('.chart')[0].querySelectorAll('svg text')]"
    ".map((t) => t.textContent)"
)
TIP = "document.querySelector('.chart .tip')"


def test_a_chart_zooms_where_it_is_dragged_and_comes_back(seen: Tab) -> None:
    before = seen.js(TICKS)
    x, y, width, height = box(seen)
    seen.drag((x + width * 0.3, y + height * 0.2), (x + width * 0.6, y + height * 0.6))
    assert seen.js(TICKS) != before
    assert not seen.js("document.querySelector('.chart .reset').hidden")
    for count in (1, 2):
        for kind in ("mousePressed", "mouseReleased"):
            seen.mouse(kind, x + width / 2, y + height / 2, button="left", clickCount=count)
    assert seen.js(TICKS) == before
    assert seen.js("document.querySelector('.chart .reset').hidden")


def test_hovering_reads_values(seen: Tab) -> None:
    x, y, width, height = box(seen)
    seen.mouse("mouseMoved", x + width - 12, y + height / 2)
    text = seen.until(f"!{TIP}.hidden && {TIP}.innerText")
    assert text.startswith("round 3\n")
    assert re.search(r"FedAvg: [\d.]+ \([\d.]+ to [\d.]+\)", text)


def test_a_chart_can_be_read_without_a_mouse(seen: Tab) -> None:
    seen.js("document.querySelector('.chart svg').focus()")
    for key, round_ in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1)):
        seen.key(key)
        assert seen.js(f"{TIP}.innerText").startswith(f"round {round_}\n")
    before = seen.js(TICKS)
    seen.key("+")
    assert seen.js(TICKS) != before
    seen.key("0")
    assert seen.js(TICKS) == before


def test_the_legend_hides_lines(seen: Tab) -> None:
    count = "document.querySelector('.chart svg').querySelectorAll('path[stroke-linejoin]').length"
    lines = seen.js(count)
    button = "document.querySelector('.chart .legend button')"
    seen.js(f"{button}.click()")
    assert (seen.js(count), seen.js(f"{button}.getAttribute('aria-pressed')")) == (
        lines - 1,
        "false",
    )
    seen.js(f"{button}.click()")
    assert seen.js(count) == lines


def test_commands_can_be_copied_or_at_least_selected(seen: Tab) -> None:
    seen.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
    seen.js("document.querySelector('button.copy').click()")
    assert seen.until(
        "['Copied', 'Selected'].includes(document.querySelector('button.copy').textContent)"
    )
    assert seen.js("document.querySelector('#commands code').textContent").startswith(
        "rayfl study "
    )


def test_print_shows_no_buttons(seen: Tab) -> None:
    seen.call("Emulation.setEmulatedMedia", media="print")
    assert seen.js("getComputedStyle(document.getElementById('theme')).display") == "none"
    seen.call("Emulation.setEmulatedMedia", media="")


def many() -> StudyResult:
    names = [f"a long name of a dataset {number}" for number in range(4)]
    figures: dict[str, dict[str, Figures]] = {}
    for number in range(4):
        row: Figures = ([50.0 + number, 51.0], 52.0)
        figures[f"method {number}"] = dict.fromkeys(names, row)
    return grid(figures)


def test_a_table_of_many_columns_scrolls_in_its_box(browser: Tab, tmp_path: Path) -> None:
    where = publish_report(many(), tmp_path, [])
    browser.size(360, 740, mobile=True)
    browser.open(where.as_uri())
    assert browser.until("document.querySelector('.scroll')?.scrollWidth > 600")
    assert browser.js("document.documentElement.scrollWidth") == 360
    browser.js("document.querySelector('.scroll').scrollLeft = 300")
    first = "document.querySelector('#table tbody th').getBoundingClientRect().left"
    assert browser.js(first) < 40
