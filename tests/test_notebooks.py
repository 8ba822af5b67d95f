"""The notebooks of the documentation: they were executed, and run as they stand, at small scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
SMALL = {
    "1_first_run": "ROUNDS = 2",
    "2_a_papers_table": "SCALE = 0.05\nSEEDS = [0]",
    "3_own_method": "ROUNDS = 2",
    "4_own_data": "ROUNDS = 2\nIMAGES = 200",
    "5_a_sweep": "ROUNDS = 2",
}
"""What takes the place of the cell that is tagged `parameters`."""
SECONDS = 300
"""For one cell, on a machine that others use too."""


def read_book(name: str) -> Any:
    return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def code_of(book: Any) -> list[Any]:
    return [cell for cell in book.cells if cell.cell_type == "code"]


def kinds_of(cell: Any) -> set[str]:
    """What a cell has put out, but for words on the side."""
    shown = [each for each in cell.outputs if each.output_type != "stream"]
    return {kind for each in shown for kind in each.get("data", {})}


def test_there_are_five_notebooks() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(SMALL)


@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_is_stored_as_it_was_executed(name: str) -> None:
    book = read_book(name)
    nbformat.validate(book)
    cells = code_of(book)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [each for cell in cells for each in cell.outputs if each.output_type == "error"]
    shown = set().union(*(kinds_of(cell) for cell in cells))
    assert {"text/html", "image/png"} <= shown


@pytest.mark.rest
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("ignore")  # of the client that talks to the kernel
@pytest.mark.parametrize("name", SMALL)
def test_a_notebook_runs_as_it_stands(name: str, tmp_path: Path) -> None:
    book = read_book(name)
    stored = [kinds_of(cell) for cell in code_of(book)]
    (parameters,) = [cell for cell in book.cells if "parameters" in cell.metadata.get("tags", ())]
    parameters.source = SMALL[name]
    place = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(book, timeout=SECONDS, startup_timeout=SECONDS, resources=place)
    client.execute()
    assert [kinds_of(cell) for cell in code_of(book)] == stored
