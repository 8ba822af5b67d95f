"""Which ledger a command reads and writes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rayfl.ledger.ledger import Ledger

NONE = Path("none")
"""What stands for no ledger on a command line."""

LedgerFolder = click.option(
    "--ledger",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR|none",
    help="The folder of recorded results; by default `results` at the top of this checkout.",
)


def open_ledger(named: Path | None) -> Ledger | None:
    """The ledger that is named, or else the one of the checkout around the working directory; None
    where there is neither, as beside an installed wheel."""
    from rayfl.ledger.ledger import Ledger, find_ledger

    if named == NONE:
        return None
    folder = named or find_ledger(Path.cwd())
    return None if folder is None else Ledger(folder.absolute())


def open_writable(named: Path | None) -> Ledger:
    """The same where there must be one."""
    from rayfl.errors import ConfigError, broken

    found = open_ledger(named)
    if found is None:
        rule = "a ledger is the folder `results` of a checkout, or the one that --ledger names"
        raise ConfigError(broken(rule, named or Path.cwd(), "Name one: --ledger results."))
    return found
