"""`rayfl data`: bring datasets to disk and look at them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from rayfl.commands.completing import offer_components
from rayfl.commands.json_output import AsJson, print_json
from rayfl.component import show_value
from rayfl.errors import ConfigError, broken
from rayfl.federation.dataset import Loader

ROOT = click.option(
    "--root",
    type=click.Path(path_type=Path),
    help="Where datasets live (RAYFL_DATA, or the cache).",
)
SETTINGS = click.argument("settings", nargs=-1, metavar="[SETTING=VALUE]...")


NAME = click.argument("name", shell_complete=offer_components("datasets"))


@click.group("data")
def dataset_commands() -> None:
    """Bring datasets to disk and look at them."""


@dataset_commands.command("list")
@ROOT
@AsJson
def list_datasets(root: Path | None, as_json: bool) -> None:
    """The datasets: what is known of each, whether it is here, and else where it can be had."""
    from rayfl.federation.availability import list_availability
    from rayfl.federation.datasets import find_data_root

    found = list_availability(root or find_data_root())
    if as_json:
        print_json([each._asdict() for each in found])
        return
    width = max(len(each.name) for each in found)
    for each in found:
        click.echo(f"{each.name:{width}}  {each.about}")
        click.echo(f"{'':{width}}  {each.state}: {each.source}" if each.source else "")


@dataset_commands.command("get")
@NAME
@SETTINGS
@click.option(
    "--from", "source", help="registry, web, or a path or URL of a folder, an archive or a file."
)
@click.option("--sha256", default="", help="What the file that --from names must hash to.")
@click.option(
    "--unpacked-gb",
    type=click.FloatRange(0, min_open=True),
    help="What an archive may unpack to; by default 4 times what the dataset is known to hold.",
)
@ROOT
def fetch_dataset(
    name: str,
    settings: tuple[str, ...],
    source: str | None,
    sha256: str,
    unpacked_gb: float | None,
    root: Path | None,
) -> None:
    """Fetch the dataset NAME, verify it, and put it where `describe` and experiments find it."""
    from rayfl.federation.datasets import find_data_root
    from rayfl.federation.datasets.on_disk import OnDisk
    from rayfl.federation.fetch import fetch_dataset as fetch

    part = _build_dataset(name, settings)
    if not isinstance(part, OnDisk):
        click.echo(f"{name} needs no files")
        return
    digest = f"sha256:{sha256}" if sha256 else ""
    most_bytes = None if unpacked_gb is None else round(unpacked_gb * 1e9)
    found = fetch(part, root or find_data_root(), source, digest, click.echo, most_bytes)
    train = len(found.train)
    test = len(found.test)
    click.echo(f"{train:,} training and {test:,} test images, sha256 {found.sha256}")


@dataset_commands.command("describe")
@NAME
@SETTINGS
@ROOT
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("."),
    help="Folder of the contact sheet.",
)
def describe_dataset(
    name: str,
    settings: tuple[str, ...],
    root: Path | None,
    output: Path,
) -> None:
    """Print counts, classes, means and the hash of the dataset NAME, and draw a contact sheet."""
    from rayfl.federation.dataset_display import describe_dataset, draw_contact_sheet
    from rayfl.federation.datasets import find_data_root

    dataset = _build_dataset(name, settings).load(root or find_data_root())
    click.echo(describe_dataset(dataset))
    output.mkdir(parents=True, exist_ok=True)
    sheet = output / f"{dataset.name}.png"
    draw_contact_sheet(dataset).savefig(sheet, bbox_inches="tight")
    click.echo(f"contact sheet: {sheet}")


def _build_dataset(name: str, settings: tuple[str, ...]) -> Loader:
    """The component that a name and its settings describe."""
    from pydantic import ValidationError

    from rayfl.federation.datasets import DATASETS

    spec = {"name": name, **dict(map(_parse_setting, settings))}
    try:
        return DATASETS.build(spec)
    except ValidationError as error:
        problems = []
        for each in error.errors():
            place = ".".join(map(str, each["loc"]))
            problems.append(f"{place}: {each['msg']}, got {show_value(each['input'])}")
        raise ConfigError(f"dataset {name}: {'; '.join(problems)}") from error


def _parse_setting(text: str) -> tuple[str, Any]:
    """`key=value`, the value in YAML."""
    from rayfl.config.files import parse_yaml

    key, equals, value = text.partition("=")
    if not equals or not key:
        raise ConfigError(broken("a setting is written name=value", show_value(text)))
    return key, parse_yaml(value, f"the value of {key}")


if __name__ == "__main__":
    dataset_commands()
