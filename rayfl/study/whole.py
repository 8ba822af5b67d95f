"""A study from Python: what is missing is run, and the table is handed back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rayfl.config.schema import Config
from rayfl.run.progress import Progress, choose_progress, is_watched
from rayfl.study.gather import gather_results
from rayfl.study.order import StudyOrder
from rayfl.study.plan import make_plan
from rayfl.study.result import StudyResult
from rayfl.study.runner import run_plan


def study(
    file: str | Path,
    *,
    only: str | Sequence[str] = (),
    seeds: Sequence[int] | None = None,
    scale: float = 1.0,
    output: str | Path | None = None,
    overrides: Sequence[str] = (),
    address: str | None = None,
    progress: bool | None = None,
) -> StudyResult:
    """Run the cells of a study that are missing, and put ours beside the printed figures.

    Parameters
    ----------
    file : str or Path
        The study.
    only : str or sequence of str
        `axis=a,b`: only these choices of an axis.
    seeds : sequence of int, optional
        By default those of the study.
    scale : float
        Shrinks every run: see `rayfl study --help`.
    output : str or Path, optional
        Where runs go; by default as for `rayfl.run`.
    overrides : sequence of str
        `key.sub=value` each, for every run.
    address : str, optional
        A Ray cluster; by default RAY_ADDRESS, or a Ray of our own.
    progress : bool, optional
        Whether to say what is run; by default on a terminal and in a notebook.

    Returns
    -------
    StudyResult
        A cell a choice on every axis; `frame()` has them as a table. A run that failed is told in
        its cell.
    """
    chosen = (only,) if isinstance(only, str) else tuple(only)
    order = StudyOrder(
        Path(file),
        chosen,
        None if seeds is None else tuple(seeds),
        scale,
        None if output is None else Path(output),
        tuple(overrides),
    )
    plan = make_plan(order)

    def show(config: Config) -> Progress:
        return choose_progress(progress, config.training.rounds)

    said = is_watched() if progress is None else progress
    ran = run_plan(plan, print if said else _say_nothing, show, address)
    return gather_results(order, problems={**plan.problems, **ran.failed})


def _say_nothing(text: str) -> None:
    """Nobody listens."""
