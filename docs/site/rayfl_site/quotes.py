"""What pages that are written by hand quote: `<!-- README: TITLE -->`, a section of the README;
`<!-- settings: module:Name -->`, the settings of a class; `<!-- promises: methods -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from pydantic_core import PydanticUndefined

from rayfl.commands.registries import read_field_notes
from rayfl.component import Registry, fields_of, slots_of
from rayfl.testing.promises import PROMISES
from rayfl_site import ROOT
from rayfl_site.algorithms import find_code
from rayfl_site.words import Setting, name_type, write_cell

QUOTE = re.compile(r"<!-- (?P<kind>\w+): (?P<what>.+) -->")


def fill_quotes(text: str) -> str:
    """A page with what it quotes."""
    return QUOTE.sub(lambda found: QUOTERS[found["kind"]](found["what"]), text)


def quote_readme(title: str) -> str:
    """A section of the README, by its title."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    parts = re.split(r"^## ", readme, flags=re.MULTILINE)
    (part,) = [part for part in parts if part.startswith(f"{title}\n")]
    # The page that quotes it lies three folders deeper than the README.
    return re.sub(r"\]\((?!https?:|#)", "](../../../", f"## {part}").rstrip()


def quote_settings(path: str) -> str:
    """The settings of a section of a configuration, as a table."""
    lines = ["| setting | default | kind | |", "| --- | --- | --- | --- |"]
    for setting in list_section(find_code(path)):
        cells = (f"`{setting.name}`", f"`{setting.default}`", setting.kind, setting.about)
        lines.append(f"| {' | '.join(map(write_cell, cells))} |")
    return "\n".join(lines)


def list_section(owner: type[Any]) -> Iterator[Setting]:
    """The settings of a section, with what is said of them."""
    notes, slots = read_field_notes(owner), slots_of(owner)
    for name, field in fields_of(owner).items():
        kind = slots[name].kind if name in slots else name_type(field.annotation)
        yield Setting(name, _write_default(field, slots.get(name)), kind, notes.get(name, ""))


def _write_default(field: Any, registry: Registry[Any] | None) -> str:
    if field.default_factory is not None:
        made = field.default_factory()
        return repr(made) if isinstance(made, (list, dict, tuple)) else "..."
    if field.default is PydanticUndefined:
        return "required"
    if registry is not None and not isinstance(field.default, (str, type(None))):
        return registry.name_of(field.default)
    return field.default if isinstance(field.default, str) else repr(field.default)


def quote_promises(_: str) -> str:
    """What every method must keep."""
    lines = ["| promise | |", "| --- | --- |"]
    lines += [f"| {each.name} | {write_cell(each.says)} |" for each in PROMISES]
    return "\n".join(lines)


QUOTERS: Mapping[str, Callable[[str], str]] = {
    "README": quote_readme,
    "settings": quote_settings,
    "promises": quote_promises,
}
