"""Several runs side by side: what they differ in, what they came to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rayfl.errors import ConfigError, broken
from rayfl.run.artifacts import flatten_settings
from rayfl.run.loading import load
from rayfl.run.result import SHOWN, Result, check_metrics, let_notebook_show_figures

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

PLACE = ("output", "data_root", "tracking.", "checkpoint.", "fleet", "resources.", "device")
"""Settings that change no result."""
BARE = ("method", "data", "model", "noise", "partition")
"""Components, whose names say what they are."""
FIRST = ("method.name", "data.name", "noise.name", "noise.rate.value", "partition.name")
MOST_SETTINGS = 12
MOST_TOLD = 4


class Comparison:
    """Runs side by side; made by `rayfl.compare`.

    Attributes
    ----------
    results : list of Result
        In the order in which they were given.
    differing : dict
        By setting in which the runs differ: its value in each of them.
    """

    def __init__(self, results: Sequence[Result]) -> None:
        self.results = list(results)
        self.differing = _find_differing([result.config.resolved() for result in results])

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    @property
    def labels(self) -> list[str]:
        """What tells each run from the others."""
        if not self.differing:
            return [result.directory.name for result in self.results]
        seen: Counter[str] = Counter()
        labels = []
        for place in range(len(self)):
            label = _join_values({key: values[place] for key, values in self.differing.items()})
            seen[label] += 1
            # Repetitions of one thing stay apart in a legend.
            labels.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
        return labels

    def frame(self) -> pandas.DataFrame:
        """A line a run: the settings in which they differ, last, best and mean metrics."""
        import pandas

        rows = []
        for place, result in enumerate(self.results):
            settings = {key: values[place] for key, values in self.differing.items()}
            rows.append({**settings, **result.metrics, **result.summary})
        names = [result.directory.name for result in self.results]
        return pandas.DataFrame(rows, index=pandas.Index(names, name="run"))

    def plot(self, *metrics: str) -> Figure:
        """A figure of metrics over rounds, a line a run.

        Parameters
        ----------
        *metrics : str
            Their names; by default test accuracy.
        """
        from rayfl.plots.run_figures import draw_metrics

        let_notebook_show_figures()
        histories = [result.history for result in self.results]
        wanted = metrics or ("test/accuracy",)
        check_metrics(wanted, histories)
        return draw_metrics(dict(zip(self.labels, histories, strict=True)), wanted)

    def __repr__(self) -> str:
        return f"<Comparison of {len(self)} runs: {'; '.join(self.labels)}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: a table, and the curves of test accuracy."""
        from rayfl.plots.style import render_svg

        shown = [name for name in SHOWN if any(name in each.metrics for each in self.results)]
        heads = "".join(f"<th>{escape(name)}</th>" for name in ("", *shown))
        body = "".join(
            f"<tr><th>{escape(label)}</th>{_format_cells(result, shown)}</tr>"
            for label, result in zip(self.labels, self.results, strict=True)
        )
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
        measured = any("test/accuracy" in result.metrics for result in self.results)
        curves = render_svg(self.plot()) if measured else ""
        return f'<div>{table}<div style="max-width: 40em">{curves}</div></div>'


def _find_differing(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """By setting in which configurations differ, its values; those that change no result are left
    out."""
    flat = [flatten_settings(config) for config in configs]
    keys = dict.fromkeys(key for each in flat for key in each if not key.startswith(PLACE))
    found = {}
    for key in keys:
        values = [each.get(key) for each in flat]
        if any(value != values[0] for value in values):
            found[key] = values
    # A component of another name has other settings, which say no more than the name.
    names = [key.removesuffix("name") for key in found if key.endswith(".name")]
    inner = {key for key in found for name in names if key.startswith(name) and None in found[key]}
    kept = [key for key in found if key not in inner]
    ordered = [*(key for key in FIRST if key in kept), *(key for key in kept if key not in FIRST)]
    return {key: found[key] for key in ordered[:MOST_SETTINGS]}


def _join_values(settings: Mapping[str, Any]) -> str:
    """`fedprox, training.lr=0.1, seed=0`; what a run does not have is left out."""
    told = []
    for key, value in settings.items():
        short = key.removesuffix(".name").removesuffix(".value")
        if value is not None:
            told.append(str(value) if short in BARE else f"{short}={value}")
    return ", ".join(told[:MOST_TOLD])


def _format_cells(result: Result, names: Sequence[str]) -> str:
    values = [result.metrics.get(name) for name in names]
    return "".join(f"<td>{'' if value is None else f'{value:.4f}'}</td>" for value in values)


def compare(*runs: Result | str | Path, output: str | Path | None = None) -> Comparison:
    """Put runs side by side.

    Parameters
    ----------
    *runs : Result, str or Path
        Results, or what `rayfl.load` takes.
    output : str or Path, optional
        The folder that runs lie below; by default RAYFL_OUTPUT, or `outputs`.
    """
    if not runs:
        raise ConfigError(broken("rayfl.compare takes runs", "none", "Give results, or names."))
    return Comparison([run if isinstance(run, Result) else load(run, output) for run in runs])
