"""`rayfl audit`: which clients and which labels of a federation are probably wrong."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click

from rayfl.commands.json_output import AsJson, print_json


@click.command("audit")
@click.argument("source", type=click.Path(path_type=Path), metavar="CONFIG|RUN")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="A new folder for tables, figures and the page; by default OUTPUT/audits/NAME.",
)
@click.option(
    "--encoder",
    metavar="NAME",
    help="A frozen encoder, by default chosen by the images; `own`: the network of RUN.",
)
@click.option("--folds", type=click.IntRange(2), help="Parts that samples are judged in.")
@click.option("--local", is_flag=True, help="Findings of samples stay in one folder a client.")
@click.option("--images", is_flag=True, help="The page shows the images that it speaks of.")
@click.option("--address", help="A Ray cluster; by default RAY_ADDRESS, or a Ray of our own.")
@click.option("--track/--no-track", default=True, show_default=True, help="Log to MLflow as well.")
@click.option("--quiet", is_flag=True, help="No progress, only the summary.")
@AsJson
def audit_command(
    source: Path,
    overrides: tuple[str, ...],
    output: Path | None,
    encoder: str | None,
    folds: int | None,
    local: bool,
    images: bool,
    address: str | None,
    track: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Say which clients and which labels are probably wrong, by training on all and moving no
    image. No truth is needed, and none is looked at.

    The folder holds suspects.csv (flagged labels, the worst first), samples.parquet (all),
    clients.csv, labels.csv (corrected, for `rayfl run ... labels=FOLDER`), contact_sheet.png and
    index.html. Nothing is overwritten."""
    from rayfl.audit.publish import refuse_full
    from rayfl.audit.story import audit
    from rayfl.audit.subject import read_source
    from rayfl.audit.summary import summarise
    from rayfl.run.progress import progress_for

    config = read_source(source, overrides)
    where = output or config.output / "audits" / time.strftime("%Y%m%d-%H%M%S")
    refuse_full(where)
    settings = {"encoder": encoder, "folds": folds}
    plan = {name: value for name, value in settings.items() if value is not None}
    made = audit(
        source if (source / "config.yaml").is_file() and not overrides else config,
        plan=plan,
        directory=where,
        local=local,
        images=images,
        track=track,
        address=address,
        progress=progress_for(1, quiet or as_json),
    )
    if as_json:
        print_json(read_audit(where))
        return
    for line in summarise(made.findings, made.subject, samples=not local):
        click.echo(line)
    click.echo(f"page   {where / 'index.html'}")
    if not local:
        click.echo(f"labels {where}: rayfl run ... labels={where}")


def read_audit(folder: Path) -> dict[str, Any]:
    """What an audit has written, as plain values: its facts, a row a client, and where it lies.

    Parameters
    ----------
    folder
        What `-o` named.
    """
    from rayfl.run.client_table import read_clients

    facts: dict[str, Any] = json.loads((folder / "audit.json").read_text(encoding="utf-8"))
    rows = read_clients(folder)
    return {**facts, "clients": rows, "folder": folder, "page": folder / "index.html"}
