"""A finished run, for whoever looks at it from Python: numbers, frames, figures, networks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.config.schema import Config
from rayfl.errors import ConfigError, broken, suggest_nearest
from rayfl.federation.scenario import Scenario, open_federation
from rayfl.run.assembly import NetworkRecipe, filled_network
from rayfl.run.client_table import frame_clients, list_clients, read_clients
from rayfl.run.description import describe_run
from rayfl.run.figures import draw_run_figures
from rayfl.run.progress import is_notebook
from rayfl.run.summary import summarise_history

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from torch import nn

SHOWN = ("test/accuracy", "test/macro_f1", "test/loss", "labels/precision", "labels/recall")
"""Metrics that a notebook shows of a run, where it has them."""


@dataclass(frozen=True, repr=False)
class Result:
    """A finished run.

    Attributes
    ----------
    config : Config
    directory : Path
        Where everything about it lies.
    history : list of dict
        A record a round: `round`, `metrics` and `clock`; `frame()` has them as a table.
    sha256, scenario_sha256 : str
        Hashes of the final models, and of who had which data with which labels.
    mlflow_run_id : str or None
    models : mapping
        Flat weights by client; one under None where all have the same.
    confusion : array or None
        Of the last evaluation: rows are true classes.
    noise_rate : float or None
        The share of wrong labels over all clients; None where nobody knows the truth.
    arrays : mapping
        What the method left, by name: estimates of the clients, similarities.
    """

    config: Config
    directory: Path
    history: list[dict[str, Any]]
    sha256: str
    scenario_sha256: str
    mlflow_run_id: str | None
    models: Mapping[int | None, NDArray[np.float32]]
    confusion: NDArray[np.int64] | None
    recipe: NetworkRecipe
    noise_rate: float | None
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    known_scenario: Scenario | None = None

    # -- numbers -----------------------------------------------------------------------------------

    @property
    def metrics(self) -> dict[str, float]:
        """The last value of every metric."""
        last: dict[str, float] = {}
        for record in self.history:
            last |= record["metrics"]
        return last

    @property
    def summary(self) -> dict[str, float]:
        """The best value of every test metric, and its mean over the last ten rounds."""
        return summarise_history(self.history)

    def frame(self) -> pandas.DataFrame:
        """Metrics and clock readings, a line a round."""
        import pandas

        rows = [
            {"round": record["round"], **record["metrics"], **record["clock"]}
            for record in self.history
        ]
        return pandas.DataFrame(rows or {"round": []}).set_index("round")

    @cached_property
    def scenario(self) -> Scenario:
        """Who had which samples with which labels. Of a run that was loaded it is built again,
        which takes its data."""
        if self.known_scenario is not None:
            return self.known_scenario
        return open_federation(self.config, self.config.seeds_for("data"))[1]

    @cached_property
    def clients(self) -> pandas.DataFrame:
        """A line a client: samples, classes, wrong labels, and what the method believes of it."""
        rows = read_clients(self.directory)
        if rows is None:
            rows = list_clients(self.scenario, self.arrays, self.history)
        return frame_clients(rows)

    # -- networks ----------------------------------------------------------------------------------

    @cached_property
    def model(self) -> nn.Module:
        """The global network (the first client's, for methods with several)."""
        return self.network(next(iter(self.models)))

    def network(self, client: int | None) -> nn.Module:
        """The network of one client, or the global one.

        Parameters
        ----------
        client : int or None
            Whose; None for the one of all.
        """
        return filled_network(self.recipe, self.models[client])

    # -- figures -----------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What a figure is headed by."""
        method = self.config.name_of("method")
        return f"{method} on {self.config.name_of('data')}, seed {self.config.seed}"

    @cached_property
    def figures(self) -> Mapping[str, Figure]:
        """All figures of the run and of its scenario, by name."""
        let_notebook_show_figures()
        figures = draw_run_figures(
            self.title, self.scenario, self.history, self.confusion, self.arrays
        )
        return Figures(figures)

    def plot(self, *metrics: str) -> Figure:
        """A figure of metrics over rounds.

        Parameters
        ----------
        *metrics : str
            Their names; by default test accuracy and the quality of the label decisions.
        """
        from rayfl.plots.run_figures import draw_learning_curve, draw_metrics

        let_notebook_show_figures()
        if not metrics:
            return draw_learning_curve(self.history, self.title)
        check_metrics(metrics, [self.history])
        return draw_metrics({"": self.history}, metrics, self.title)

    # -- for the eye -------------------------------------------------------------------------------

    def __repr__(self) -> str:
        accuracy = self.metrics.get("test/accuracy")
        reached = "" if accuracy is None else f", accuracy {accuracy:.4f}"
        return f"<Result of {self.directory.name}: {len(self.history)} rounds{reached}>"

    def _repr_html_(self) -> str:
        """What a notebook shows: what was run, what came out, and the learning curve."""
        from rayfl.plots.run_figures import draw_learning_curve
        from rayfl.plots.style import render_svg

        rows = "".join(_format_row(name, self._list_values(name)) for name in self._list_shown())
        heads = "".join(f"<th>{head}</th>" for head in ("", "last", "best", "last 10"))
        table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
        about = f"<p>{escape(describe_run(self.config))}</p>"
        place = f"<p><code>{escape(str(self.directory))}</code></p>"
        curve = render_svg(draw_learning_curve(self.history, self.title)) if self.history else ""
        picture = f'<div style="max-width: 40em">{curve}</div>'
        return f"<div>{about}{table}{picture}{place}</div>"

    def _list_shown(self) -> list[str]:
        return [name for name in SHOWN if name in self.metrics]

    def _list_values(self, name: str) -> list[float | None]:
        summary = self.summary
        return [
            self.metrics[name],
            summary.get(f"best/{name}"),
            summary.get(f"last10/{name}"),
        ]


def _format_row(name: str, values: Sequence[float | None]) -> str:
    cells = "".join(f"<td>{'' if value is None else f'{value:.4f}'}</td>" for value in values)
    return f"<tr><th>{escape(name)}</th>{cells}</tr>"


class Figures(Mapping[str, "Figure"]):
    """Figures by name; a notebook shows all of them, or those that are asked for."""

    def __init__(self, figures: Mapping[str, Figure]) -> None:
        self._figures = dict(figures)

    def __getitem__(self, name: str) -> Figure:
        if name not in self._figures:
            rule = f"there are the figures {', '.join(self._figures)}"
            raise KeyError(broken(rule, name, suggest_nearest(name, self._figures)))
        return self._figures[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._figures)

    def __len__(self) -> int:
        return len(self._figures)

    def __repr__(self) -> str:
        return f"<Figures: {', '.join(self._figures)}>"

    def _repr_html_(self) -> str:
        from rayfl.plots.style import render_svg

        drawn = [
            f"<h4>{escape(name)}</h4>{render_svg(figure)}" for name, figure in self._figures.items()
        ]
        return f'<div style="max-width: 40em">{"".join(drawn)}</div>'


def check_metrics(names: Sequence[str], histories: Sequence[Sequence[Mapping[str, Any]]]) -> None:
    """Refuse a metric that no round has.

    Parameters
    ----------
    names : sequence of str
        What is to be drawn.
    histories : sequence of sequences of mapping
        The records of the runs that are drawn.
    """
    known: dict[str, None] = {}
    for history in histories:
        for record in history:
            known |= dict.fromkeys([*record["metrics"], *record["clock"]])
    for name in names:
        if name not in known:
            raise ConfigError(
                broken("these runs have the metric", name, suggest_nearest(name, list(known)))
            )


def let_notebook_show_figures() -> None:
    """Teach a notebook to show matplotlib's figures, which it learns with pyplot only."""
    if not is_notebook():
        return
    from IPython import get_ipython
    from matplotlib.figure import Figure

    from rayfl.plots.style import render_png

    get_ipython().display_formatter.formatters["image/png"].for_type(Figure, render_png)
