"""`rayfl scenario`: build the artefact that says who owns what, and look at one."""

from __future__ import annotations

from pathlib import Path

import click

CONFIG_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
DIRECTORY = click.Path(path_type=Path, file_okay=False)


@click.group("scenario")
def scenario_commands() -> None:
    """Who owns which sample with which label: build, inspect, re-use."""


@scenario_commands.command("build")
@click.argument("config", type=CONFIG_FILE)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "-o", "--output", type=DIRECTORY, required=True, help="New or empty directory for the artefact."
)
def build_artefact(
    config: Path,
    overrides: tuple[str, ...],
    output: Path,
) -> None:
    """Draw the scenario of CONFIG and save it; `scenario: OUTPUT` in any configuration then re-uses
    it."""
    from rayfl.config.schema import load_config
    from rayfl.federation.scenario import open_federation

    plan = load_config(config, overrides)
    _, drawn = open_federation(plan, plan.seeds_for("data"))
    drawn.save(output)
    empty = int((drawn.sizes() == 0).sum())
    if empty:
        click.echo(f"{empty} of {drawn.clients} clients hold no sample", err=True)
    click.echo(f"{output}  {drawn.sha256}")


@scenario_commands.command("describe")
@click.argument("directory", type=DIRECTORY)
@click.option(
    "-o", "--output", type=DIRECTORY, help="Where the figures go; DIRECTORY/figures if left out."
)
@click.option(
    "--rows",
    type=click.IntRange(min=0),
    default=100,
    show_default=True,
    help="Clients to print at most.",
)
def describe_artefact(directory: Path, output: Path | None, rows: int) -> None:
    """Print the clients of the scenario in DIRECTORY and draw its distributions as PNG."""
    from rayfl.federation.scenario import Scenario
    from rayfl.federation.scenario_display import print_scenario, save_scenario_figures

    found = Scenario.load(directory)
    print_scenario(found, rows)
    for path in save_scenario_figures(found, output or directory / "figures"):
        click.echo(str(path))
