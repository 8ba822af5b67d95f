"""The command line. Commands import what they need when they run, so that `rayfl --help` is
quick."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import click

from rayfl.bits import BitsError, start_again
from rayfl.commands.json_output import AsJson
from rayfl.commands.listings import LISTINGS
from rayfl.errors import RayflError, explain_missing
from rayfl.secrets import describe_error, mask_secrets
from rayfl.version import __version__

if TYPE_CHECKING:
    from rayfl.run.signals import Interrupted

GROUPS = {
    "audit": (
        "rayfl.commands.audit:audit_command",
        "Say which clients and which labels of a federation are probably wrong.",
    ),
    "run": (
        "rayfl.commands.run:run_command",
        "Run a configuration; with -m, a whole grid of them.",
    ),
    "configs": (
        "rayfl.commands.configs:configs_command",
        "List the configurations that come with rayfl.",
    ),
    "init": (
        "rayfl.commands.configs:init_command",
        "Copy the configurations that come with rayfl into a folder of yours.",
    ),
    "schema": (
        "rayfl.commands.schema:schema_command",
        "JSON schema of configurations, for editors.",
    ),
    "completion": (
        "rayfl.commands.completion:completion_command",
        "What makes bash, zsh or fish complete commands, files, keys and values.",
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
    "promote": (
        "rayfl.commands.promote:promote_command",
        "Register the model of a run in MLflow, under a name.",
    ),
    "ui": (
        "rayfl.commands.ui:ui_command",
        "Open the MLflow UI on this project's store, on loopback.",
    ),
    "report": (
        "rayfl.commands.report:report_command",
        "Tables, figures and a page of a study or an MLflow experiment.",
    ),
}


def _default_output() -> Path:
    from rayfl.config.schema import default_output

    return default_output()


def _complete(name: str, *settings: str) -> Callable[..., list[str]]:
    """A function of `rayfl.commands.completing`, or what it makes with some settings, imported when
    it is called."""

    def complete(*asked: Any) -> list[str]:
        from rayfl.commands import completing

        function = getattr(completing, name)
        found: list[str] = (function(*settings) if settings else function)(*asked)
        return found

    return complete


Output = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=_default_output,
    show_default="RAYFL_OUTPUT, or outputs",
    help="The folder that runs lie below.",
)
ConfigFile = click.argument(
    "config", type=click.Path(path_type=Path), shell_complete=_complete("offer_files", "run")
)
Overrides = click.argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE]...",
    shell_complete=_complete("complete_overrides"),
)


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
    """Federated learning with noisy labels, simulated on Ray.

    \b
    Start here:
      rayfl quickstart                 what wrong labels cost, in a minute
      rayfl run quickstart             one run; rayfl run --help says what can be changed
      rayfl run -m method=fedavg,fedrn seed=0..2
      rayfl ui                         all runs in the MLflow UI
      rayfl configs                    what comes with rayfl: methods, papers, sweeps
    """


@rayfl.command()
@click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    default=Path("quickstart"),
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
    from rayfl.tracking.carrier import sync_journals as carry
    from rayfl.tracking.store import choose_uri

    target = choose_uri(output.absolute(), uri)
    try:
        carried = carry(output.absolute(), target)
    except Exception as error:
        reason = describe_error(error, target)
        raise RayflError(f"{target} does not answer: {reason}") from error
    for name, entries in carried.items():
        click.echo(f"{name}: {entries} entries")
    click.echo(f"{sum(carried.values())} entries carried to {mask_secrets(target)}")


@rayfl.command()
@Output
@click.option("--address", help="A Ray cluster to look at.")
@AsJson
def doctor(output: Path, address: str | None, as_json: bool) -> None:
    """Check versions, Ray, GPUs, disk and the MLflow store; say what is wrong and what to do."""
    from rayfl.commands.doctor import print_checks

    if print_checks(output.absolute(), address, as_json):
        raise SystemExit(1)


def add_registry_commands() -> None:
    """`rayfl methods`, `rayfl datasets` and so on: what a configuration can name."""
    for plural, described in LISTINGS.items():

        def listing(name: str | None, as_json: bool, plural: str = plural) -> None:
            from rayfl.commands.registries import show_registry

            show_registry(plural, name, as_json)

        complete = _complete("offer_components", plural)
        argument = click.Argument(["name"], required=False, shell_complete=complete)
        command = click.Command(plural, params=[argument], callback=listing, help=described.help)
        rayfl.add_command(AsJson(command))


add_registry_commands()


def main(arguments: list[str] | None = None) -> Any:
    """Run a command; every failure that a person can mend is one message and an exit code."""
    from rayfl.run.signals import Interrupted, stop_on_signals

    _hide_secrets()
    # Modules of the user's own are found in the working directory, too; not only beside the
    # configuration.
    sys.path.insert(0, os.getcwd())
    words = sys.argv[1:] if arguments is None else arguments
    if "_RAYFL_COMPLETE" in os.environ:
        from rayfl.commands.completion import register_shells

        register_shells()
    try:
        with stop_on_signals(to_the_end=True):
            return rayfl.main(args=words, prog_name="rayfl", standalone_mode=True)
    except (RayflError, ModuleNotFoundError) as error:
        if isinstance(error, BitsError) and arguments is None:
            start_again()
        refusal = explain_missing(error) if isinstance(error, ModuleNotFoundError) else error
        if "--debug" in words or refusal is None:
            raise
        click.echo(f"error: {refusal}", err=True)
        sys.exit(refusal.exit_code)
    except Interrupted as interruption:
        click.echo(_explain_interruption(interruption), err=True)
        # What a shell expects of a command that a signal ended.
        sys.exit(128 + interruption.number)


def _hide_secrets() -> None:
    """What libraries log, and tracebacks, are printed without credentials too."""
    handler = logging.StreamHandler()
    handler.setFormatter(_MaskingFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    sys.excepthook = _print_traceback


class _MaskingFormatter(logging.Formatter):
    """Lines of a log without credentials."""

    def format(self, record: logging.LogRecord) -> str:
        return str(mask_secrets(super().format(record)))


def _print_traceback(
    kind: type[BaseException], error: BaseException, where: TracebackType | None
) -> None:
    lines = traceback.format_exception(kind, error, where)
    click.echo(mask_secrets("".join(lines)), err=True, nl=False)


def _explain_interruption(interruption: Interrupted) -> str:
    if interruption.directory is None:
        return f"stopped by {interruption}"
    name = interruption.directory.name
    return f"stopped by {interruption}; go on with the same command and --resume {name}"


if __name__ == "__main__":
    main()
