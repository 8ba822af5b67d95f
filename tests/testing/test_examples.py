"""The worked examples of docs/methods.md keep every promise, as a reader would try them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from rayfl import methods
from rayfl.cli import rayfl

EXAMPLES = Path(__file__).parents[2] / "docs" / "methods"


@pytest.mark.parametrize(
    ("method", "config"),
    [("co_teaching:CoTeaching", "co_teaching.yaml"), ("semifl:SemiFL", "semifl.yaml")],
)
def test_an_example_keeps_every_promise(
    method: str, config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    found = CliRunner().invoke(rayfl, ["check", method, config, "--quick"])
    assert found.exit_code == 0, found.output
    assert " 0 broken, 0 untried" in found.output


def test_the_guide_names_files_that_are_there() -> None:
    page = (EXAMPLES.parent / "methods.md").read_text()
    for name in ("co_teaching.py", "semifl.py"):
        assert f"(methods/{name})" in page
        assert (EXAMPLES / name).is_file()


def test_the_guide_speaks_of_everything_that_authors_import() -> None:
    page = (EXAMPLES.parent / "methods.md").read_text()
    drafts = [path.read_text() for path in EXAMPLES.rglob("*.py")]
    for name in methods.__all__:
        assert getattr(methods, name) is not None
    functions = [name for name in methods.__all__ if name.islower()]
    silent = [name for name in functions if not any(name in text for text in (page, *drafts))]
    assert not silent


@pytest.mark.parametrize("name", ["co_teaching.py", "semifl.py"])
def test_an_example_imports_from_the_one_place(name: str) -> None:
    lines = (EXAMPLES / name).read_text().splitlines()
    homes = {line.split()[1] for line in lines if line.startswith("from rayfl")}
    assert homes == {"rayfl.methods"}
