"""The figures of a run and of its scenario; what cannot be drawn is said, and ends nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rayfl.federation.scenario import Scenario

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger("rayfl")


def draw_run_figures(
    title: str,
    scenario: Scenario,
    history: Sequence[Mapping[str, Any]],
    confusion: NDArray[np.int64] | None,
    left: Mapping[str, NDArray[Any]],
) -> dict[str, Figure]:
    """All figures, by name.

    Parameters
    ----------
    title : str
        What those of the run are headed by.
    scenario : Scenario
        Who holds what.
    history : sequence of mapping
        The run's records.
    confusion : array or None
        Of the last evaluation.
    left : mapping
        The arrays that the method left, by name.
    """
    from rayfl.federation.scenario_display import draw_scenario_figures
    from rayfl.plots.run_figures import (
        draw_confusion,
        draw_estimate,
        draw_learning_curve,
        draw_left_array,
    )

    drawn: dict[str, Figure] = {}
    with optional_output("the figure learning_curve"):
        drawn["learning_curve"] = draw_learning_curve(history, title)
    if confusion is not None:
        with optional_output("the figure confusion"):
            drawn["confusion"] = draw_confusion(confusion, scenario.classes, title)
    for name, array in left.items():
        short = name.rpartition("/")[2]
        with optional_output(f"the figure {name}"):
            if not name.startswith("estimate/"):
                drawn[name] = draw_left_array(name, array)
            elif scenario.realised is not None:
                drawn[short] = draw_estimate(short, array, scenario.realised)
            else:
                drawn[short] = draw_left_array(short, array)
    with optional_output("the figures of the scenario"):
        drawn |= draw_scenario_figures(scenario)
    return drawn


@contextmanager
def optional_output(what: str) -> Iterator[None]:
    """The result stands: what is wrong with something to look at is said, and does not end the
    run.

    Parameters
    ----------
    what : str
        What may be missing.
    """
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        log.warning("%s could not be made (%s)", what, reason)
