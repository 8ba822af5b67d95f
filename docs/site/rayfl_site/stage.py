"""What stands in the repository, put where the generator looks for pages."""

from __future__ import annotations

import posixpath
import shutil
from pathlib import Path

from rayfl_site import HERE, ROOT
from rayfl_site.links import LISTED, adapt_markdown, find_page, turn_links
from rayfl_site.notebooks import render_notebook
from rayfl_site.quotes import fill_quotes

LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".sbatch": "bash",
    ".md": "markdown",
    ".toml": "toml",
    ".json": "json",
}
MOST_LETTERS = 60_000
"""A longer file is cut: its page is to be read."""


class Stage:
    """A folder of pages that grows.

    Parameters
    ----------
    folder
        Where it is; what was there is gone.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wanted: set[str] = set()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)

    def write(self, page: str, text: str) -> None:
        """Add a page, or replace it."""
        path = self.folder / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def adopt(self, source: str, text: str | None = None) -> None:
        """Add the page of a file of the repository, whose links are turned.

        Parameters
        ----------
        source
            From the top of the checkout.
        text
            What it says, by default as it stands.
        """
        page = find_page(source)
        words = (ROOT / source).read_text(encoding="utf-8") if text is None else text
        self.write(page, adapt_markdown(turn_links(words, source, page, self.wanted)))


def stage_repository(stage: Stage) -> None:
    """Guides, notebooks and images, and each file that one of them leads to."""
    shutil.copytree(HERE / "assets", stage.folder / "assets")
    shutil.copytree(ROOT / "docs" / "images", stage.folder / "images")
    for path in sorted((*ROOT.glob("docs/*.md"), *ROOT.glob("docs/design/*.md"))):
        stage.adopt(path.relative_to(ROOT).as_posix())
    for path in sorted(ROOT.glob("docs/notebooks/*.ipynb")):
        stage.adopt(path.relative_to(ROOT).as_posix(), render_notebook(path, stage.folder))
    for path in sorted((HERE / "pages").glob("*.md")):
        source = path.relative_to(ROOT).as_posix()
        stage.adopt(source, fill_quotes(path.read_text(encoding="utf-8")))
    stage_files(stage)


def stage_files(stage: Stage) -> None:
    """Whatever pages lead to that is no page itself, shown as it is."""
    done: set[str] = set()
    while left := sorted(stage.wanted - done):
        for path in left:
            _stage_file(stage, path)
        done |= set(left)


def _stage_file(stage: Stage, path: str) -> None:
    page, source = find_page(path), ROOT / path
    if (stage.folder / page).exists():
        return
    if source.is_dir():
        stage.write(page, _list_folder(stage, path))
    elif path.endswith(LISTED):
        (stage.folder / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, stage.folder / page)
    else:
        stage.write(page, _show_file(path, source.read_text(encoding="utf-8")))


def _show_file(path: str, text: str) -> str:
    language = LANGUAGES.get(posixpath.splitext(path)[1], "text")
    head = f"---\ntitle: {path}\nsearch: {{exclude: true}}\n---\n# {path}\n\n"
    return f"{head}`````{language}\n{text[:MOST_LETTERS].rstrip()}\n`````\n"


def _list_folder(stage: Stage, path: str) -> str:
    """A page of a folder's files, each of which gets its own."""
    hidden = ("__pycache__", ".egg-info", ".lock")
    files = [each for each in sorted((ROOT / path).rglob("*")) if each.is_file()]
    names = [each.relative_to(ROOT).as_posix() for each in files]
    shown = [name for name in names if not any(word in name for word in hidden)]
    stage.wanted |= set(shown)
    here = posixpath.dirname(find_page(path))
    links = [f"- [{name}]({posixpath.relpath(find_page(name), here)})" for name in shown]
    return "\n".join([f"# {path}", "", *links, ""])
