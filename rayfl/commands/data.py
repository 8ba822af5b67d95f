"""`rayfl data`: bring datasets to disk and look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rayfl.errors import ConfigError, broken
from rayfl.federation.dataset import Loader

ROOT = click.option(
    "--root",
    type=click.Path(path_type=Path),
    help="Where datasets live (RAYFL_DATA, or the cache).",
)
SETTINGS = click.argument("settings", nargs=-1, metavar="[SETTING=VALUE]...")


@click.group()
def data() -> None:
    """Bring datasets to disk and look at them."""


@data.command("list")
def list_names() -> None:
    """The names of the datasets."""
    from rayfl.federation.datasets import DATASETS

    click.echo("\n".join(DATASETS.names()))


@data.command()
@click.argument("name")
@SETTINGS
@click.option(
    "--from", "source", help="registry, web, or a path or URL of a folder, an archive or a file."
)
@click.option("--sha256", default="", help="What the file that --from names must hash to.")
@ROOT
def get(
    name: str, settings: tuple[str, ...], source: str | None, sha256: str, root: Path | None
) -> None:
    """Fetch the dataset NAME, verify it, and put it where `describe` and experiments find it."""
    from rayfl.federation.datasets import data_root
    from rayfl.federation.datasets.files import OnDisk
    from rayfl.federation.fetch import get as fetch

    part = dataset_part(name, settings)
    if not isinstance(part, OnDisk):
        click.echo(f"{name} needs no files")
        return
    digest = f"sha256:{sha256}" if sha256 else ""
    found = fetch(part, root or data_root(), source, digest, click.echo)
    click.echo(
        f"{len(found.train):,} training and {len(found.test):,} test images, sha256 {found.sha256}"
    )


@data.command()
@click.argument("name")
@SETTINGS
@ROOT
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("."),
    help="Folder of the contact sheet.",
)
def describe(name: str, settings: tuple[str, ...], root: Path | None, output: Path) -> None:
    """Print counts, classes, means and the hash of the dataset NAME, and draw a contact sheet."""
    from rayfl.federation.datasets import data_root
    from rayfl.federation.describe_data import contact_sheet, description

    dataset = dataset_part(name, settings).load(root or data_root())
    click.echo(description(dataset))
    output.mkdir(parents=True, exist_ok=True)
    sheet = output / f"{dataset.name}.png"
    contact_sheet(dataset).savefig(sheet, bbox_inches="tight")
    click.echo(f"contact sheet: {sheet}")


def dataset_part(name: str, settings: tuple[str, ...]) -> Loader:
    """The component that a name and its settings describe."""
    from pydantic import ValidationError

    from rayfl.federation.datasets import DATASETS

    try:
        return DATASETS.build({"name": name, **dict(map(setting, settings))})
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, e['loc']))}: {e['msg']}, got {e['input']!r}"
            for e in error.errors()
        )
        raise ConfigError(f"dataset {name}: {problems}") from error


def setting(text: str) -> tuple[str, Any]:
    """`key=value`, the value in YAML."""
    import yaml

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(broken("a setting is written name=value", repr(text)))
    return key, yaml.safe_load(value)


if __name__ == "__main__":
    data()
