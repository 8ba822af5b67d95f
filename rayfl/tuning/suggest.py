"""Points that Optuna suggests (TPE), each run once a seed; what it is told is the mean."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from ray.tune.search import Searcher

from rayfl.errors import ConfigError
from rayfl.tuning.book import Book, Trial
from rayfl.tuning.schema import Domain, Sweep


class OverSeeds(Searcher):  # type: ignore[misc]
    """Hands out the trials of a book, then those of points that Optuna thinks of; all of them are
    in the book.

    After a resume the book is all that is needed: what ended is told to a new study, what did not
    is run first."""

    def __init__(self, book: Book) -> None:
        super().__init__(metric="score", mode=book.sweep.mode)
        self.book = book
        self.left = deque[Trial]()
        self.scores: dict[int, list[float | None]] = {}
        self.given: dict[str, int] = {}
        points: dict[int, Mapping[str, Any]] = {}
        for trial in book.trials():
            number = trial.point.number
            points[number] = trial.point.values
            if trial.over:
                self.scores.setdefault(number, []).append(trial.score)
            else:
                self.left.append(trial)
        open_ = [number for number in points if not self._is_complete(number)]
        # The sampler begins anew; from the same seed it would draw the points again that it drew
        # before.
        seed = book.sweep.seed + len(points)
        first = [_encode_point(book.sweep, points[number]) for number in open_]
        self.study = _make_search(book.sweep, first, seed)
        for number in open_:
            self.study.suggest(str(number))
        for number in points:
            if number not in open_:
                self._tell_known(number, points[number])

    def _is_complete(self, number: int) -> bool:
        """Whether all seeds of a point are over."""
        return len(self.scores.get(number, [])) == len(self.book.sweep.seeds)

    def _tell_known(self, number: int, values: Mapping[str, Any]) -> None:
        known = _mean_score(self.scores[number])
        parameters = _encode_point(self.book.sweep, values)
        self.study.add_evaluated_point(parameters, known, error=known is None)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """The next trial's settings."""
        sweep, points = self.book.sweep, len(self.book.points())
        if not self.left:
            if points >= sweep.samples:
                return str(Searcher.FINISHED)
            point = self.book.add_point(_decode_point(sweep, self.study.suggest(str(points))))
            self.left.extend(Trial(self.book, point, seed, {}) for seed in sweep.seeds)
        trial = self.left.popleft()
        self.given[trial_id] = trial.point.number
        return {"trial": {"id": trial.id, "seed": trial.seed, "values": dict(trial.values)}}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Tell the study when the last seed of a point is over."""
        number = self.given.pop(trial_id)
        scores = self.scores.setdefault(number, [])
        scores.append(None if error or not result else result.get("score"))
        if self._is_complete(number):
            known = _mean_score(scores)
            told = None if known is None else {"score": known}
            self.study.on_trial_complete(str(number), told, error=known is None)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        """A round says nothing yet."""

    def save(self, checkpoint_path: str) -> None:
        """Nothing: the book is written before a point is tried."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing: see the book."""


def _mean_score(scores: list[float | None]) -> float | None:
    """None if any is missing."""
    known = [score for score in scores if score is not None]
    return sum(known) / len(known) if len(known) == len(scores) else None


def require_optuna() -> None:
    """Optuna, or a message that says how to get it."""
    try:
        import optuna  # noqa: F401
    except ImportError:
        remedy = 'pip install "rayfl[optuna]"'
        raise ConfigError(
            f"searcher: optuna needs the package optuna, which is not installed. {remedy}"
        ) from None


def _make_search(sweep: Sweep, first: list[dict[str, Any]], seed: int) -> Any:
    """A study of the sweep's settings that begins with these points."""
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = {path: _distribution_of(domain) for path, domain in sweep.search.items()}
    return OptunaSearch(space, metric="score", mode=sweep.mode, points_to_evaluate=first, seed=seed)


def _distribution_of(domain: Domain) -> Any:
    """Choices are numbered, because Optuna knows no mappings."""
    from optuna import distributions

    if domain.values is not None:
        return distributions.CategoricalDistribution(range(len(domain.values)))
    low, high = domain.bounds
    if domain.randint is not None:
        return distributions.IntDistribution(int(low), int(high) - 1)
    step = None if domain.quniform is None else domain.quniform[2]
    return distributions.FloatDistribution(low, high, log=domain.loguniform is not None, step=step)


def _encode_point(sweep: Sweep, values: Mapping[str, Any]) -> dict[str, Any]:
    """A point as Optuna writes it."""
    encoded = {}
    for path, value in values.items():
        choices = sweep.search[path].values
        encoded[path] = value if choices is None else choices.index(value)
    return encoded


def _decode_point(sweep: Sweep, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """A point as Optuna means it."""
    found = {}
    for path, domain in sweep.search.items():
        value = parameters[path]
        found[path] = domain.within(value) if domain.values is None else domain.values[value]
    return found
