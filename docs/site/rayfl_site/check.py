"""What is wrong with built pages: links and anchors that lead nowhere, and whatever a page would
load from another host."""

from __future__ import annotations

import html
import posixpath
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"link": "href", "script": "src", "img": "src", "iframe": "src", "source": "src"}
# A parser would take longer than the build of a page: all pages are written by one generator.
TAG = re.compile(r"<(a|link|script|img|iframe|source)\s([^>]*)>")
ATTRIBUTE = re.compile(r"""([\w-]+)=["']?((?<=")[^"]*|(?<=')[^']*|[^"'\s>]+)""")
ANCHOR = re.compile(r"""\s(?:id|name)=["']?([^"'\s>]+)""")


@dataclass
class Page:
    """What a page has and where it leads."""

    anchors: set[str]
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    """What a browser fetches to show it."""


def read_page(path: Path) -> Page:
    """The anchors, links and resources of a page."""
    text = path.read_text(encoding="utf-8")
    page = Page(set(map(html.unescape, ANCHOR.findall(text))))
    for tag, attributes in TAG.findall(text):
        told = {name: html.unescape(value) for name, value in ATTRIBUTE.findall(attributes)}
        if tag == "a" and "href" in told:
            page.links.append(told["href"])
        # A canonical address is told, and not loaded.
        elif (target := told.get(LOADED.get(tag, ""))) and told.get("rel") != "canonical":
            page.loaded.append(target)
    return page


def list_faults(site: Path) -> list[str]:
    """What is wrong with the pages of a site, a sentence each.

    Parameters
    ----------
    site
        The folder of a built site.
    """
    found = {path.relative_to(site).as_posix(): path for path in sorted(site.rglob("*.html"))}
    pages = {name: read_page(path) for name, path in found.items()}
    # The page of what is not there is served from anywhere, by absolute addresses.
    pages.pop("404.html", None)
    return [fault for name in pages for fault in _list_page_faults(site, name, pages)]


def _list_page_faults(site: Path, name: str, pages: dict[str, Page]) -> Iterator[str]:
    for resource in pages[name].loaded:
        if urlsplit(resource).netloc:
            yield f"{name} loads {resource}"
        elif not _find_target(site, name, resource):
            yield f"{name} loads {resource}, which is not there"
    for link in dict.fromkeys(pages[name].links):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = _find_target(site, name, link)
        anchors = pages[target].anchors if target in pages else set()
        if not target:
            yield f"{name} leads to {link}, which is not there"
        elif parts.fragment and unquote(parts.fragment) not in {*anchors, "__top"}:
            yield f"{name} leads to {link}, whose anchor is not there"


def _find_target(site: Path, name: str, link: str) -> str:
    """The file that a link leads to, from the top of the site; nothing where there is none."""
    path = unquote(urlsplit(link).path)
    if urlsplit(link).scheme == "data":
        return link
    target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
    return target if (site / target).is_file() else ""
