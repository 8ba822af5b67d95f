"""What can be known to be wrong with a run before anything of it exists: before Ray starts, before
there is a folder or an MLflow run.

What needs no torch comes first, for it is told in a fraction of a second: the settings, as far as
the catalogue knows them; the sets that a method reads; the data, and who owns which of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

from rayfl.bits import hold_bits
from rayfl.config.quick_look import look_quickly
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError, broken, explain_missing
from rayfl.federation.dataset import Dataset
from rayfl.federation.scenario import Scenario, open_federation
from rayfl.federation.split import SERVER_SETS, Role
from rayfl.fleet.host import spare_imports
from rayfl.fleet.on_ray.connection import connect_ahead
from rayfl.learn.training import Training
from rayfl.protocol import ClientId, DataRef
from rayfl.run.assembly import narrow_scenario, normalisation_of, refuse_missing_names
from rayfl.run.progress import Doing, choose_doing

if TYPE_CHECKING:
    from rayfl.protocol import Fleet

LOADING = "loading data"


@dataclass
class PreparedRun:
    """A run that nothing is known to be wrong with, and that has not begun."""

    config: Config
    scenario: Scenario
    shape: tuple[int, int, int]
    """Of an image."""
    _dataset: Dataset | None = None

    def hand_over(self) -> Dataset:
        """The dataset, once: on a cluster it is needed here no more, and may be large."""
        dataset, self._dataset = self._dataset, None
        assert dataset is not None, "a prepared run is run once"
        return dataset


@contextmanager
def prepare_run(
    settings: Config | Mapping[str, Any],
    address: str | None = None,
    where: str = "configuration",
    ahead: bool = True,
    doing: Doing | None = None,
) -> Iterator[PreparedRun]:
    """Refuse what is wrong with a run, and get ready what it needs.

    Parameters
    ----------
    settings : Config or mapping
        A configuration, or the plain values of one.
    address : str or None
        A cluster; by default RAY_ADDRESS, or a Ray of our own.
    where : str
        What the values are, for messages.
    ahead : bool
        Whether Ray may start, as soon as nothing can be wrong any more, while torch is imported.
    doing : callable or None
        Says what is being done, while it lasts.
    """
    doing = doing or choose_doing(False)
    if isinstance(settings, Config):
        _refuse_needless_work(settings)
        with doing(LOADING):
            opened = _open_examined(settings)
        yield opened
        return
    with ExitStack() as while_running:
        look = look_quickly(settings, Config, where)
        drawn: list[Any] = []
        if look.config is not None:
            _refuse_needless_work(look.config)
            for owner, needs in look.needs:
                _refuse_missing_plan(look.config, owner, needs)
            with doing(LOADING):
                drawn += open_federation(look.config, look.config.seeds_for("data"))
            if ahead and look.complete:
                while_running.enter_context(connect_ahead(settings, address))
        with doing("importing torch"), spare_imports():
            config = validate_config(settings, where)
        if not drawn:
            _refuse_needless_work(config)
        with doing(LOADING):
            prepared = _examine(config, *drawn) if drawn else _open_examined(config)
        drawn.clear()
        yield prepared


def _open_examined(config: Config) -> PreparedRun:
    return _examine(config, *open_federation(config, config.seeds_for("data")))


def _examine(config: Config, dataset: Dataset, scenario: Scenario) -> PreparedRun:
    """Hold the method to the federation that it is to work on."""
    refuse_missing_names(type(config.method).__name__, config.method.needs, _list_sets(scenario))
    normalisation_of(config, dataset)
    # Whoever asks for phases to be run asks again before the first round.
    with suppress(_MoreThanCountsError):
        config.method.check(cast("Fleet", _Survey(config, scenario)))
    return PreparedRun(config, scenario, dataset.shape, dataset)


# -- without torch ---------------------------------------------------------------------------------


def _refuse_needless_work(config: Config) -> None:
    """What a look at the configuration, at this process and at this machine's packages shows."""
    hold_bits([config.bits])
    if config.fleet == "inline" and config.device == "cuda":
        rule = "fleet: inline runs on the CPU"
        raise ConfigError(broken(rule, "device: cuda", "Use fleet: ray."))
    if config.fleet == "ray":
        _require_package("ray")
    if config.tracking.enabled:
        _require_package("mlflow")
        _require_package("matplotlib")


def _require_package(package: str) -> None:
    if find_spec(package) is None:
        refusal = explain_missing(ModuleNotFoundError(name=package))
        assert refusal is not None, f"{package} is not said to be wanted"
        raise refusal


def _refuse_missing_plan(config: Config, owner: str, needs: Mapping[str, str]) -> None:
    """A set that the method reads, and the split does not cut."""
    if config.split.table is not None:
        return  # what the table names is known once the data are
    planned = [name for name in SERVER_SETS if getattr(config.split, name) is not None]
    refuse_missing_names(owner, needs, ["test", *planned])


# -- the federation in numbers ---------------------------------------------------------------------


def _list_sets(scenario: Scenario) -> list[str]:
    """The sets that there are images of, the test set first."""
    roles = (Role.PUBLIC, Role.VALIDATION, Role.LABELLED)
    held = {role.name.lower() for role in roles if len(scenario.indices(role))}
    foreign = {"public"} if scenario.public is not None else set()
    return ["test", *sorted(held | foreign)]


class _MoreThanCountsError(Exception):
    """A method's check wants more of its fleet than a survey has."""


class _Survey:
    """What a method's check looks at in most cases: who there is, and how much they hold."""

    def __init__(self, config: Config, scenario: Scenario) -> None:
        narrowed = narrow_scenario(config.method, scenario)
        self.classes = len(scenario.classes)
        self.training: Training = config.training
        self._sizes = narrowed.sizes()
        self.clients: list[ClientId] = [int(k) for k in self._sizes.nonzero()[0]]
        self.cohort = min(config.training.cohort(config.clients), len(self.clients))
        self._scenario = narrowed

    def data(self, name: str) -> DataRef:
        """As a fleet's."""
        sets = _list_sets(self._scenario)
        if name not in sets[1:]:
            known = ", ".join(sets[1:]) or "none"
            rule = f"this federation has the named sets {known}"
            raise ConfigError(broken(rule, f"'{name}'", f"Set split.{name}."))
        return DataRef(name)

    def size(self, owner: ClientId | str) -> int:
        """As a fleet's."""
        if not isinstance(owner, str):
            return 0 if owner < 0 else int(self._sizes[owner])
        if owner not in SERVER_SETS or self._scenario.public is not None:
            raise _MoreThanCountsError
        return len(self._scenario.indices(Role[owner.upper()]))

    def __getattr__(self, name: str) -> Any:
        raise _MoreThanCountsError(name)
