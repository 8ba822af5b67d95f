"""`rayfl run`: one configuration, or with `-m` every combination of several values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rayfl.commands.completing import complete_resumed, complete_run
from rayfl.commands.json_output import AsJson, print_json
from rayfl.secrets import mask_secrets

if TYPE_CHECKING:
    from rayfl.run.experiment import Result
    from rayfl.run.store import Record

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

HELP = """Run CONFIG.

CONFIG is a YAML file, or the name of one that comes with rayfl (`rayfl configs` lists them). Each
KEY=VALUE changes a setting of it; VALUE is YAML.

\b
  rayfl run quickstart
  rayfl run quickstart method=fedprox method.mu=0.1 noise.rate=0.2
  rayfl run quickstart fleet=inline                no Ray; the same model, bit for bit
  rayfl run quickstart "noise={name: asymmetric, rate: 0.3}"
  rayfl run quickstart --resume auto               go on with the newest unfinished run like it
  rayfl run -m method=fedavg,fedrn seed=0..2       six runs and a table

With -m a value may be several, parted by commas, or whole numbers from a to b, written a..b;
commas inside brackets and quotes part nothing. Without CONFIG it is quickstart.

When it ends, it prints the last metrics on the test set, what the method tells of clusters,
reliabilities and labels, the run's directory, its MLflow run, and the hashes of who had which data
with which labels (scenario) and of the final model.
"""


class RunCommand(click.Command):
    """Ends its help with the keys that there are, and knows a key that was written as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as refusal:
            key = find_key(refusal.option_name.lstrip("-"))
            if not key:
                raise
            told = f"{refusal.message} Settings are written without dashes: {key}=VALUE."
            raise click.NoSuchOption(refusal.option_name, told, ctx=refusal.ctx) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Keys"):
            formatter.write_dl(list_keys())
        formatter.write_paragraph()
        components = "rayfl methods, noises, partitions, datasets, models ... list what slots take."
        formatter.write_text(f"{components} rayfl config CONFIG shows all values.")


def list_keys() -> list[tuple[str, str]]:
    """The settings of a run, those of a section in one line, as the catalogue has them."""
    from rayfl.config.catalogue import follow, read_schema, slot_kind

    rows = []
    for key, setting in read_schema("run").get("properties", {}).items():
        kind = slot_kind(setting)
        inner = follow(setting) if "$ref" in setting else setting
        if kind is not None:
            rows.append((key, f"a {kind}, by its name; its settings as {key}.SETTING"))
        elif "properties" in inner:
            rows.append((f"{key}.", " ".join(inner["properties"])))
        elif key != "base":
            rows.append((key, str(setting.get("description") or _describe_type(setting))))
    return rows


def find_key(word: str) -> str:
    """The setting that has this name, wherever it lies; empty where there is none."""
    word = word.replace("-", "_")
    for key, inner in list_keys():
        if key == word:
            return key
        if key.endswith(".") and word in inner.split():
            return key + word
    return ""


def _describe_type(setting: Mapping[str, Any]) -> str:
    """What a plain setting takes."""
    if "enum" in setting:
        return ", ".join(map(str, setting["enum"]))
    kinds = [branch.get("type", "") for branch in (setting, *setting.get("anyOf", ()))]
    return ", ".join(kind for kind in kinds if kind not in ("", "null"))


@click.command("run", cls=RunCommand, help=HELP)
@click.argument("words", nargs=-1, metavar="[CONFIG] [KEY=VALUE]...", shell_complete=complete_run)
@click.option("-m", "--multirun", is_flag=True, help="Run every combination of several values.")
@click.option(
    "--resume",
    metavar="RUN|auto",
    help="Take up a run again: its name, its directory, or `auto`.",
    shell_complete=complete_resumed,
)
@click.option(
    "--address", help="A Ray cluster; by default RAY_ADDRESS, or a Ray of our own on this machine."
)
@click.option("--quiet", is_flag=True, help="No progress, only the result.")
@AsJson
def run_command(
    words: tuple[str, ...],
    multirun: bool,
    resume: str | None,
    address: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    config, overrides = split_words(words)
    quiet = quiet or as_json
    if not multirun:
        _run_one(config, overrides, resume, address, quiet, as_json)
        return
    if resume is not None:
        raise click.UsageError("--resume takes up one run; leave it out with -m.")
    from rayfl.commands.grid import run_grid

    run_grid(config, overrides, address, quiet, as_json)


def split_words(words: Sequence[str]) -> tuple[Path, tuple[str, ...]]:
    """CONFIG, by default quickstart, and the overrides."""
    if not words:
        raise click.MissingParameter(param_type="argument", param_hint="'CONFIG'")
    first, *rest = words
    if "=" in first and not Path(first).is_file():
        return Path("quickstart"), tuple(words)
    return Path(first), tuple(rest)


def _run_one(
    config: Path,
    overrides: Sequence[str],
    resume: str | None,
    address: str | None,
    quiet: bool,
    as_json: bool,
) -> None:
    from rayfl.config.files import read_config
    from rayfl.run.directory import find_finished
    from rayfl.run.experiment import run as run_experiment
    from rayfl.run.preflight import prepare_run
    from rayfl.run.progress import choose_doing, progress_for
    from rayfl.run.standing import tell_standing

    plain = read_config(config, overrides)
    # One that is named may be over, and then needs no Ray.
    doing = choose_doing(not (quiet or as_json))
    with prepare_run(plain, address, str(config), resume is None, doing) as prepared:
        finished = find_finished(prepared.config, resume)
        if finished is None:
            progress = progress_for(prepared.config.training.rounds, quiet)
            made = run_experiment(prepared, resume=resume, address=address, progress=progress)
    found = describe_result(made) if finished is None else describe_record(finished)
    if as_json:
        print_json(found)
        return
    if finished is not None:
        name = finished.directory.name
        click.echo(f"{name} is finished: {finished.rounds} rounds. It came to")
    for line in (*tell_standing(Path(found["run"])), *format_result(found)):
        click.echo(line)
    for what, command in suggest_next(prepared.config.output, found["experiment"]):
        click.echo(f"{what:{WIDTH}} {command}")


def describe_result(result: Result) -> dict[str, Any]:
    """A finished run, as plain values."""
    return {
        "run": result.directory,
        "metrics": result.metrics,
        "mlflow_run": result.mlflow_run_id,
        "scenario_sha256": result.scenario_sha256,
        "model_sha256": result.sha256,
        "rounds": result.config.training.rounds,
        "wrong_labels": result.noise_rate,
        "experiment": result.config.tracking.experiment if result.mlflow_run_id else None,
        "config": result.config.resolved(),
    }


def describe_record(record: Record) -> dict[str, Any]:
    """The same of a run that was finished before."""
    from rayfl.tracking.journal import Journal

    metrics: dict[str, float] = {}
    for entry in record.history:
        metrics |= entry["metrics"]
    run_id = Journal(record.directory).noted().get("run_id")
    return {
        "run": record.directory,
        "metrics": metrics,
        "mlflow_run": run_id,
        "scenario_sha256": record.scenario,
        "model_sha256": record.sha256,
        "rounds": record.rounds,
        "wrong_labels": record.facts.get("noise_rate"),
        "experiment": record.config["tracking"]["experiment"] if run_id else None,
        "config": record.config,
    }


def format_result(found: Mapping[str, Any]) -> list[str]:
    """What a run ends with on the screen."""
    lines = [f"{name:{WIDTH}} {value:.4f}" for name, value in choose_metrics(found["metrics"])]
    named = {
        "run": found["run"],
        "mlflow run": found["mlflow_run"] or "none",
        "scenario sha256": found["scenario_sha256"],
        "model sha256": found["model_sha256"],
    }
    return lines + [f"{name:{WIDTH}} {value}" for name, value in named.items()]


def choose_metrics(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """What a person wants to know of a finished run, in the order of `SHOWN`."""
    chosen = []
    for wanted in SHOWN:
        for name, value in metrics.items():
            if name == wanted or (wanted.endswith("/") and name.startswith(wanted)):
                chosen.append((name, value))
    return chosen


def suggest_next(output: Path, experiment: str | None) -> list[tuple[str, str]]:
    """The commands that show what has been made."""
    import shlex

    from rayfl.config.schema import default_output

    if experiment is None:
        return []
    usual = output == default_output().absolute()
    where = "" if usual else f" -o {shlex.quote(str(output))}"
    runs = "" if usual else f" --runs {shlex.quote(str(output))}"
    return [
        ("look at it", f"rayfl ui{where}"),
        # As the store has it: without what may be a credential.
        ("compare all runs", f"rayfl report {shlex.quote(str(mask_secrets(experiment)))}{runs}"),
    ]
