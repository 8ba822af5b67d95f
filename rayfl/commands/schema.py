"""`rayfl schema`: what each kind of configuration may say, as JSON schema."""

from __future__ import annotations

from pathlib import Path

import click

from rayfl.config.shipped import Kind

KINDS: tuple[Kind, ...] = ("run", "study", "sweep", "queue")


@click.command("schema")
@click.argument("kind", type=click.Choice(KINDS), default="run")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write the schemas of all kinds into this folder.",
)
def schema_command(kind: Kind, output: Path | None) -> None:
    """Print the JSON schema of one KIND of file: run (by default), study, sweep or queue.

    It has all keys, what each slot can hold, the settings of that, and what is said of them; names
    that other installed packages add are among them. Editors complete and check a YAML file whose
    first line is

    \b
      # yaml-language-server: $schema=run.json

    with the path of the schema, as in the files of `rayfl init`."""
    from rayfl.commands.json_schema import format_schema, make_schema, write_schemas

    if output is None:
        click.echo(format_schema(make_schema(kind)), nl=False)
        return
    for path in write_schemas(output):
        click.echo(str(path))
