"""Builds the documentation site: `python docs/site/build.py [-o FOLDER] [--data FOLDER]`.

Pages are staged in FOLDER/pages and built into FOLDER/html, where `index.html` opens from the file
system. A warning, a link that leads nowhere and what would come from another host are errors."""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# The theme's authors announce another generator on every build.
os.environ.setdefault("NO_MKDOCS_2_WARNING", "1")

from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from rayfl.federation.datasets import find_data_root
from rayfl_site import HERE, ROOT
from rayfl_site.check import list_faults
from rayfl_site.component_pages import write_components
from rayfl_site.method_pages import write_methods
from rayfl_site.reference import write_reference
from rayfl_site.stage import Stage, stage_repository

Nav = list[Any]


def build_site(folder: Path, data: Path) -> list[str]:
    """Build the whole site; what is wrong with it, a sentence each.

    Parameters
    ----------
    folder
        Gets `pages` and `html`.
    data
        Where datasets are, of which pictures are shown.
    """
    pages, html = folder / "pages", folder / "html"
    sections = stage_pages(pages, data)
    config = load_config(str(HERE / "mkdocs.yml"), docs_dir=str(pages), site_dir=str(html))
    config.nav = list(fill_nav(config.nav or [], sections))
    config.plugins.on_startup(command="build", dirty=False)
    try:
        build(config)
    except Abort:
        return ["the generator warned"]
    return list_faults(html)


def stage_pages(pages: Path, data: Path) -> dict[str, list[str]]:
    """Write all pages; by section, those that are generated."""
    stage = Stage(pages)
    stage_repository(stage)
    sections = {
        "methods": write_methods(stage),
        "reference": write_reference(stage),
        **write_components(stage, data),
    }
    for name in ("design", "notebooks"):
        found = sorted((pages / name).glob("*.md"))
        sections[name] = [path.relative_to(pages).as_posix() for path in found]
    return sections


def fill_nav(nav: Nav, sections: Mapping[str, Sequence[str]]) -> Iterator[Any]:
    """The navigation, with a section's pages in the place of its folder."""
    for entry in nav:
        if not isinstance(entry, dict):
            yield entry
            continue
        for title, inside in entry.items():
            if isinstance(inside, list):
                yield {title: list(fill_nav(inside, sections))}
            elif inside.endswith("/"):
                yield {title: list(sections[inside.rstrip("/")])}
            else:
                yield entry


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=ROOT / "site-build")
    parser.add_argument("--data", type=Path, default=find_data_root())
    chosen = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    started = time.perf_counter()
    faults = build_site(chosen.output.absolute(), chosen.data)
    for fault in faults:
        print(fault, file=sys.stderr)
    count = len(list((chosen.output / "html").rglob("*.html")))
    seconds = time.perf_counter() - started
    print(f"{chosen.output / 'html' / 'index.html'}: {count} pages, {seconds:.0f} s")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
