"""`rayfl configs` and `rayfl init`: the configurations that come with rayfl, listed and copied
out."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import click

from rayfl.commands.json_output import AsJson, print_json
from rayfl.config.shipped import FOLDER, kind_of, list_shipped, shipped_folder
from rayfl.errors import ConfigError, broken


@click.command("configs")
@AsJson
def configs_command(as_json: bool) -> None:
    """List the configurations that come with rayfl: `rayfl run`, `study` and `sweep` take their
    names."""
    rows = [_describe_file(name) for name in list_shipped()]
    if as_json:
        print_json(rows)
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        click.echo(f"{row['kind']:6} {row['name']:{width}}  {row['about']}".rstrip())


def _describe_file(name: str) -> dict[str, Any]:
    from rayfl.config.files import parse_file

    path = shipped_folder() / f"{name}.yaml"
    settings = parse_file(path)
    about = settings.get("title") or _read_first_comment(path)
    return {"name": name, "kind": kind_of(settings), "about": about, "path": path}


def _read_first_comment(path: Path) -> str:
    """What a file says of itself; its first line of all names its schema."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#") and "$schema" not in line:
            return line.removeprefix("#").strip()
    return ""


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option("--force", is_flag=True, help="Replace files that differ.")
def init_command(folder: Path, force: bool) -> None:
    """Copy the configurations that come with rayfl to FOLDER/configs, by default here.

    They are yours then: what lies in `configs` here comes before what came with rayfl."""
    source = shipped_folder()
    target = folder / FOLDER
    if target.resolve() == source.resolve():
        rule = "configurations are copied to a folder that is not their own"
        raise ConfigError(broken(rule, target, "Name another one: rayfl init DIR."))
    files = sorted(path for path in source.rglob("*") if path.is_file())
    pairs = [(path, target / path.relative_to(source)) for path in files]
    other = [new for old, new in pairs if new.exists() and new.read_bytes() != old.read_bytes()]
    if other and not force:
        rule = f"nothing of yours is replaced without --force ({len(other)} files differ)"
        raise ConfigError(broken(rule, other[0], "Name another folder, or give --force."))
    for old, new in pairs:
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(old, new)
    click.echo(f"{len(pairs)} files in {target}")
    start = target / "quickstart.yaml"
    click.echo(f"next: rayfl run {start}")
