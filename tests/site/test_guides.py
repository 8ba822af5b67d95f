"""Commands of the pages that stand with the site are ones that the command line takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest

from rayfl.cli import rayfl
from rayfl_site import HERE

FENCED = re.compile(r"```bash\n(.*?)```", re.DOTALL)


def find_commands() -> Iterator[tuple[str, str]]:
    """Every line of the pages' listings that calls rayfl, with its page."""
    for path in sorted((HERE / "pages").glob("*.md")):
        for listing in FENCED.findall(path.read_text(encoding="utf-8")):
            lines = [line.partition("#")[0].strip() for line in listing.splitlines()]
            yield from ((path.name, line) for line in lines if line.startswith("rayfl "))


def parse_command(words: list[str]) -> None:
    """Read a command line as the program does, without running it."""
    context = rayfl.make_context("rayfl", list(words))
    name, command, rest = rayfl.resolve_command(context, [*words])
    assert command is not None
    command.make_context(name, rest, parent=context)


@pytest.mark.parametrize(("page", "line"), list(find_commands()))
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_command_is_one_that_the_program_takes(page: str, line: str) -> None:
    parse_command(shlex.split(line)[1:])


def test_a_command_that_it_does_not_take_is_found() -> None:
    with pytest.raises(click.NoSuchOption, match="--bests"):
        parse_command(["sweep", "quickstart", "--bests"])
