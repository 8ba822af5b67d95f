"""The command line. Commands import what they need when they run, so that `rayfl --help` is
quick."""

from __future__ import annotations

import importlib
import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayfl.commands.listings import LISTINGS
from rayfl.errors import RayflError
from rayfl.version import __version__

if TYPE_CHECKING:
    from rayfl.run.signals import Interrupted

GROUPS = {
    "audit": (
        "rayfl.commands.audit:audit_command",
        "Say which clients and which labels of a federation are probably wrong.",
    ),
    "check": (
        "rayfl.commands.check:check",
        "Check a method of your own: the same bits everywhere, and that it learns.",
    ),
    "data": ("rayfl.commands.data:dataset_commands", "Fetch datasets and look at them."),
    "scenario": (
        "rayfl.commands.scenario:scenario_commands",
        "Build, inspect and re-use who owns what with which label.",
    ),
    "sweep": ("rayfl.commands.sweep:sweep_command", "Search hyper-parameters with Ray Tune."),
    "study": (
        "rayfl.commands.study:study_command",
        "Run a table or figure of a paper, and put ours beside the printed one.",
    ),
    "queue": (
        "rayfl.commands.queue:queue_command",
        "Work through a list of studies and record every run; --state says what is left.",
    ),
    "report": (
        "rayfl.commands.report:report_command",
        "Tables, figures and a page of a study or an MLflow experiment.",
    ),
}
SHOWN = (
    "test/accuracy",
    "test/top5_accuracy",
    "test/worst_client",
    "test/macro_f1",
    "test/loss",
    "clusters/",
    "reliability/",
    "labels/",
)
"""Metrics that a run ends with on the screen, in this order; a slash at the end takes all below."""
WIDTH = 26


def _default_output() -> Path:
    from rayfl.config.schema import default_output

    return default_output()


Output = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=_default_output,
    show_default="RAYFL_OUTPUT, or outputs",
    help="The folder that runs lie below.",
)
ConfigFile = click.argument("config", type=click.Path(path_type=Path))
Overrides = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")


class Commands(click.Group):
    """The top group: it knows the names of larger commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *GROUPS])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in GROUPS:
            return super().get_command(ctx, cmd_name)
        module, _, name = GROUPS[cmd_name][0].partition(":")
        found: click.Command = getattr(importlib.import_module(module), name)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        own = {
            name: super(Commands, self).get_command(ctx, name)
            for name in super().list_commands(ctx)
        }
        rows = {
            name: command.get_short_help_str(80)
            for name, command in own.items()
            if command is not None
        }
        rows |= {name: text for name, (_, text) in GROUPS.items()}
        with formatter.section("Commands"):
            formatter.write_dl(sorted(rows.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rayfl")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def rayfl(debug: bool) -> None:
    """Federated learning with noisy labels, simulated on Ray."""


@rayfl.command()
@ConfigFile
@Overrides
@click.option(
    "--resume", metavar="RUN|auto", help="Take up a run again: its name, its directory, or `auto`."
)
@click.option(
    "--address", help="A Ray cluster; by default RAY_ADDRESS, or a Ray of our own on this machine."
)
@click.option("--quiet", is_flag=True, help="No progress, only the result.")
def run(
    config: Path, overrides: tuple[str, ...], resume: str | None, address: str | None, quiet: bool
) -> None:
    """Run CONFIG."""
    from rayfl.config.files import read_config
    from rayfl.config.schema import validate_config
    from rayfl.fleet.host import spare_imports
    from rayfl.fleet.on_ray.connection import connect_ahead
    from rayfl.run.experiment import run as run_experiment
    from rayfl.run.progress import progress_for
    from rayfl.run.standing import read_standing

    plain = read_config(config, overrides)
    with connect_ahead(plain, address):
        with spare_imports():
            settings = validate_config(plain, str(config))
        progress = progress_for(settings.training.rounds, quiet)
        result = run_experiment(settings, resume=resume, address=address, progress=progress)
    for name, value in _final_metrics(result.metrics):
        click.echo(f"{name:{WIDTH}} {value:.4f}")
    for line in read_standing(result.directory):
        click.echo(line)
    click.echo(f"{'run':{WIDTH}} {result.directory}")
    click.echo(f"{'mlflow run':{WIDTH}} {result.mlflow_run_id or 'none'}")
    click.echo(f"{'scenario sha256':{WIDTH}} {result.scenario_sha256}")
    click.echo(f"{'model sha256':{WIDTH}} {result.sha256}")


def _final_metrics(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """What a person wants to know of a finished run, in the order of `SHOWN`."""
    chosen = []
    for wanted in SHOWN:
        for name, value in metrics.items():
            if name == wanted or (wanted.endswith("/") and name.startswith(wanted)):
                chosen.append((name, value))
    return chosen


@rayfl.command()
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    default=Path("configs/quickstart.yaml"),
    show_default=True,
    help="By default the one that comes with rayfl, wherever one stands.",
)
@Overrides
@click.option("--quiet", is_flag=True, help="No progress, only the table.")
def quickstart(config: Path, overrides: tuple[str, ...], quiet: bool) -> None:
    """Run federated averaging with noisy and with clean labels, and compare."""
    from rayfl.commands.quickstart import compare_noise as compare

    compare(config, overrides, quiet)


@rayfl.command(name="config")
@ConfigFile
@Overrides
def show_config(config: Path, overrides: tuple[str, ...]) -> None:
    """Print the resolved configuration of CONFIG."""
    import yaml

    from rayfl.config.schema import load_config

    click.echo(yaml.safe_dump(load_config(config, overrides).resolved(), sort_keys=False), nl=False)


@rayfl.command()
@Output
@click.option("--uri", help="The MLflow store; by default the sqlite file below the output folder.")
def sync(output: Path, uri: str | None) -> None:
    """Carry what runs could not track, because the server was away, to MLflow."""
    from rayfl.config.secrets import mask_secrets
    from rayfl.tracking.carrier import sync_journals as carry
    from rayfl.tracking.store import default_uri

    target = uri or os.environ.get("MLFLOW_TRACKING_URI") or default_uri(output.absolute())
    try:
        carried = carry(output.absolute(), target)
    except Exception as error:
        reason = str(mask_secrets(str(error))).splitlines()[0]
        raise RayflError(f"{mask_secrets(target)} does not answer: {reason}") from error
    for name, entries in carried.items():
        click.echo(f"{name}: {entries} entries")
    click.echo(f"{sum(carried.values())} entries carried to {mask_secrets(target)}")


@rayfl.command()
@Output
@click.option("--port", type=click.IntRange(1, 65535), default=5000, show_default=True)
def ui(output: Path, port: int) -> None:
    """Open the MLflow UI on this project's store, on loopback."""
    from rayfl.tracking.store import default_uri, list_addresses

    uri = default_uri(output.absolute())
    click.echo(f"http://127.0.0.1:{port}  ({uri})")
    for name, place in list_addresses(uri).items():
        click.echo(f"  {name}: http://127.0.0.1:{port}/{place}")
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "ui",
        "--backend-store-uri",
        uri,
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    os.execv(sys.executable, command)


@rayfl.command()
@Output
@click.option("--address", help="A Ray cluster to look at.")
def doctor(output: Path, address: str | None) -> None:
    """Check versions, Ray, GPUs, disk and the MLflow store; say what is wrong and what to do."""
    from rayfl.commands.doctor import run_checks

    failed = 0
    for check in run_checks(output.absolute(), address):
        failed += not check.good
        click.echo(f"{'ok  ' if check.good else 'BAD '} {check.what:16} {check.found}")
        if check.remedy:
            click.echo(f"     {'':16} -> {check.remedy}")
    if failed:
        raise SystemExit(1)


def add_registry_commands() -> None:
    """`rayfl methods`, `rayfl datasets` and so on: what a configuration can name."""
    for plural, described in LISTINGS.items():

        def listing(name: str | None, plural: str = plural) -> None:
            from rayfl.commands.registries import show_registry

            show_registry(plural, name)

        argument = click.Argument(["name"], required=False)
        command = click.Command(plural, params=[argument], callback=listing, help=described.help)
        rayfl.add_command(command)


add_registry_commands()


def main(arguments: list[str] | None = None) -> Any:
    """Run a command; every failure that a person can mend is one message and an exit code."""
    from rayfl.run.signals import Interrupted, stop_on_signals

    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    # Modules of the user's own are found in the working directory, too; not only beside the
    # configuration.
    sys.path.insert(0, os.getcwd())
    words = sys.argv[1:] if arguments is None else arguments
    try:
        with stop_on_signals():
            return rayfl.main(args=words, prog_name="rayfl", standalone_mode=True)
    except RayflError as error:
        if "--debug" in words:
            raise
        from rayfl.config.secrets import mask_secrets

        click.echo(f"error: {mask_secrets(str(error))}", err=True)
        sys.exit(error.exit_code)
    except Interrupted as interruption:
        click.echo(_explain_interruption(interruption), err=True)
        # What a shell expects of a command that a signal ended.
        sys.exit(128 + interruption.number)


def _explain_interruption(interruption: Interrupted) -> str:
    if interruption.directory is None:
        return f"stopped by {interruption}"
    name = interruption.directory.name
    return f"stopped by {interruption}; go on with the same command and --resume {name}"


if __name__ == "__main__":
    main()
