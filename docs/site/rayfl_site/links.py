"""Pages of the repository as pages of the site: where each file is found, links that lead there,
and Markdown as the generator reads it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from rayfl_site import ROOT

LINK = re.compile(r"\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"\s*(`{3,}|~{3,})")
ITEM = re.compile(r"\s{0,3}([-*]|\d+\.) ")
ABROAD = ("http://", "https://", "mailto:", "#")
LISTED = (".csv", ".png")
"""Files that are handed out as they are."""


def find_page(path: str) -> str:
    """Where the site has a file of the repository.

    Parameters
    ----------
    path
        From the top of the checkout.
    """
    if path == "README.md":
        return "start.md"
    if path.startswith("docs/site/pages/"):
        return path.removeprefix("docs/site/pages/")
    if path.startswith("docs/notebooks/"):
        return path.removeprefix("docs/").replace(".ipynb", ".md")
    if path.startswith("docs/images/") or (path.startswith("docs/") and path.endswith(".md")):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"files/{path}/index.md"
    return f"files/{path}" if path.endswith(LISTED) else f"files/{path}.md"


def turn_links(text: str, source: str, page: str, wanted: set[str]) -> str:
    """The text of a page whose links lead to pages of the site.

    Parameters
    ----------
    text
        Markdown.
    source
        The file that it is from, from the top of the checkout.
    page
        Where the site has it.
    wanted
        Takes the files of the repository that it leads to.
    """

    def turn(found: re.Match[str]) -> str:
        target, hash_, anchor = found["target"].partition("#")
        if found["target"].startswith(ABROAD):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if not (ROOT / path).exists():
            # A generated page; or nothing, and then the generator says so.
            return found[0]
        wanted.add(path)
        there = posixpath.relpath(find_page(path), posixpath.dirname(page) or ".")
        return f"]({there}{hash_}{anchor})"

    return "\n".join(LINK.sub(turn, line) if prose else line for line, prose in mark_prose(text))


def adapt_markdown(text: str) -> str:
    """Lists and folded parts as Python-Markdown wants them: a blank line before a list, four
    columns for what is within an item."""
    lines: list[str] = []
    shift = ""
    for line, prose in mark_prose(text):
        if not prose:
            # A listing moves as a whole, with the line that opens it.
            shift = _find_shift(line) if FENCE.match(line) else shift
            lines.append(shift + line)
            continue
        if ITEM.match(line) and not _may_precede(lines[-1] if lines else ""):
            lines.append("")
        line = line.replace("<details>", '<details markdown="1">')
        lines.append(_find_shift(line) + line)
    return "\n".join(lines)


def _find_shift(line: str) -> str:
    """What is missing at four columns, for a line that stands below an item."""
    columns = len(line) - len(line.lstrip())
    return " " * (4 - columns) if 0 < columns < 4 else ""


def _may_precede(line: str) -> bool:
    """Whether a list goes on after this line, or may begin there."""
    return not line.strip() or bool(ITEM.match(line)) or line.startswith("    ")


def mark_prose(text: str) -> Iterator[tuple[str, bool]]:
    """Every line, and whether it is prose, which lines of listings are not."""
    fence = ""
    for line in text.splitlines():
        found = FENCE.match(line)
        if fence:
            yield line, False
            if found and line.strip() == fence:
                fence = ""
            continue
        if found:
            fence = found[1]
        yield line, not found
