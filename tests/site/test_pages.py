"""Pages of the repository as pages of the site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest

from rayfl.algorithms import METHODS
from rayfl.component import Fraction
from rayfl_site import ROOT
from rayfl_site.check import list_faults
from rayfl_site.links import adapt_markdown, find_page, turn_links
from rayfl_site.method_pages import raise_symbols
from rayfl_site.notebooks import render_notebook
from rayfl_site.quotes import fill_quotes
from rayfl_site.recorded import collect_queued, collect_recorded
from rayfl_site.words import name_type, show_docstring, write_cell


@pytest.mark.parametrize(
    ("path", "page"),
    [
        ("README.md", "start.md"),
        ("docs/cluster.md", "cluster.md"),
        ("docs/images/report_light.png", "images/report_light.png"),
        ("docs/notebooks/1_first_run.ipynb", "notebooks/1_first_run.md"),
        ("docs/cluster/rayjob.yaml", "files/docs/cluster/rayjob.yaml.md"),
        ("results", "files/results/index.md"),
        ("results/fedds_table4.csv", "files/results/fedds_table4.csv"),
    ],
)
def test_every_file_has_its_page(path: str, page: str) -> None:
    assert find_page(path) == page


def test_links_are_turned_outside_of_listings() -> None:
    wanted: set[str] = set()
    text = "[a](../results) [b](#here) [c](cluster.md#security)\n```\n[d](cluster.md)\n```"
    turned = turn_links(text, "docs/results.md", "results.md", wanted)
    assert turned == (
        "[a](files/results/index.md) [b](#here) [c](cluster.md#security)\n```\n[d](cluster.md)\n```"
    )
    assert wanted == {"results", "docs/cluster.md"}


@pytest.mark.parametrize(
    ("written", "adapted"),
    [
        ("words:\n- one\n- two", "words:\n\n- one\n- two"),
        ("1. one\n   more\n2. two", "1. one\n    more\n2. two"),
        ("- one\n  - inner", "- one\n    - inner"),
        ("```\na:\n  - b\n```", "```\na:\n  - b\n```"),
        ("- a\n  ```\n  b\n  ```", "- a\n    ```\n    b\n    ```"),
        ("<details><summary>", '<details markdown="1"><summary>'),
    ],
)
def test_lists_are_written_as_python_markdown_reads_them(written: str, adapted: str) -> None:
    assert adapt_markdown(written) == adapted


def test_a_notebook_becomes_prose_code_and_what_it_put_out(tmp_path: Path) -> None:
    outputs = [
        {"output_type": "stream", "text": ["\x1b[1m10 %\r100 %\n"]},
        {"output_type": "execute_result", "data": {"text/html": ["<b>1</b>\n\n<i>2</i>"]}},
        {"output_type": "display_data", "data": {"image/png": "AAAA"}},
    ]
    cells = [
        {"cell_type": "markdown", "source": ["# Title"]},
        {"cell_type": "code", "source": ["f()"], "outputs": outputs},
    ]
    (tmp_path / "book.ipynb").write_text(json.dumps({"cells": cells}))
    page = render_notebook(tmp_path / "book.ipynb", tmp_path)
    assert page.startswith("# Title\n\n```python\nf()\n```")
    assert '<div class="output"><b>1</b>\n<i>2</i></div>' in page
    assert "```text\n100 %\n```" in page
    assert (tmp_path / "notebooks/figures/book_1_2.png").read_bytes() == b"\0\0\0"


def test_the_readme_is_quoted_by_section() -> None:
    quoted = fill_quotes("<!-- README: One run -->")
    assert quoted.startswith("## One run\n")
    assert "](../../../docs/mistakes.md)" in quoted
    assert "## Data and scenarios" not in quoted


def test_settings_of_a_section_are_quoted() -> None:
    quoted = fill_quotes("<!-- settings: rayfl.config.schema:Evaluation -->")
    assert "| `every` | `1` | int |  |" in quoted
    assert "`training_losses` | `False` | bool | Measure, too," in quoted


@pytest.mark.parametrize(
    ("written", "shown"),
    [("a | b\n  c", "a \\| b c"), ("w_k <- *w*", "w\\_k &lt;- \\*w\\*"), ("`w_k`", "`w_k`")],
)
def test_words_of_a_docstring_mean_what_they_say(written: str, shown: str) -> None:
    assert write_cell(written) == shown


def test_equations_of_a_docstring_keep_their_columns() -> None:
    shown = show_docstring("Words.\n\n    r = a + b\n\nParameters\n----------\nx\n    One.")
    assert shown == "Words.\n\n```text\nr = a + b\n```"


@pytest.mark.parametrize(
    ("hint", "name"),
    [
        (int, "int"),
        (float | None, "float | None"),
        (list[Fraction], "list[float]"),
        (Literal["a", "b"], "'a' | 'b'"),
        (tuple[int, ...], "tuple[int, ...]"),
        (Path, "Path"),
    ],
)
def test_types_are_named_without_modules_and_metadata(hint: Any, name: str) -> None:
    assert name_type(hint) == name


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("w_k^t", "w<sub>k</sub><sup>t</sup>"),
        ("m_{c, y_i}", "m<sub>c, y<sub>i</sub></sub>"),
        ("Θ_global", "Θ<sub>global</sub>"),
        ("NCS_k", "NCS<sub>k</sub>"),
        ("clients_per_round", "clients_per_round"),
        ("head_loss", "head_loss"),
    ],
)
def test_indices_stand_below_the_line_and_names_as_they_are(written: str, shown: str) -> None:
    assert raise_symbols(written) == shown


def test_what_leads_nowhere_is_told(tmp_path: Path) -> None:
    (tmp_path / "there.html").write_text('<h1 id="top">There</h1>')
    (tmp_path / "index.html").write_text(
        '<script src="https://host.example/x.js"></script><link href=gone.css rel=stylesheet>'
        '<a href="there.html#top">a</a><a href="there.html#low">b</a><a href=gone.html>c</a>'
    )
    assert list_faults(tmp_path) == [
        "index.html loads https://host.example/x.js",
        "index.html loads gone.css, which is not there",
        "index.html leads to there.html#low, whose anchor is not there",
        "index.html leads to gone.html, which is not there",
    ]


def test_the_queue_has_a_command_for_most_methods() -> None:
    queued = collect_queued(ROOT)
    assert len(queued) > 30
    for method, cell in queued.items():
        assert method in METHODS.entries
        study, *words = cell.command.removeprefix("rayfl study ").split()
        assert (ROOT / study).is_file()
        assert words[-1] == "--record"


def test_recorded_cells_are_found_by_their_method() -> None:
    (ours, *_) = collect_recorded(ROOT)["fedds"]
    assert ours.study.startswith("FedDS, Table")
    assert ours.printed != "-"
    assert ours.command.startswith("rayfl study configs/paper/")
