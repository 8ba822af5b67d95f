"""From a configuration and a scenario to the parts that a fleet is made of."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from rayfl.bits import hold_bits
from rayfl.component import is_all_ours
from rayfl.config.schema import Config
from rayfl.errors import ConfigError, DataError, broken, suggest_nearest
from rayfl.federation.dataset import Dataset
from rayfl.federation.public_images import PublicImages, take_public_images
from rayfl.federation.scenario import Scenario
from rayfl.federation.split import SERVER_SETS, Role
from rayfl.fleet.base import Spec
from rayfl.fleet.executor import Holdings
from rayfl.fleet.memory import GB
from rayfl.fleet.safeguards import Safeguards
from rayfl.fleet.streams import Streams
from rayfl.learn.training import Normalisation
from rayfl.protocol import Algorithm, Shard
from rayfl.run.hostility import let_in_hostile

if TYPE_CHECKING:
    from torch import nn

    from rayfl.learn.learner import Learner


@dataclass(frozen=True)
class NetworkBlueprint:
    """The configured network, for a method to make its own of: see `protocol.Blueprint`."""

    config: Config
    shape: tuple[int, int, int]
    classes: int

    def __call__(self, i: int = 0) -> nn.Module:
        """The network with first weights number `i`."""
        import torch

        if not i:
            built: nn.Module = self.config.model.build(self.shape, self.classes)
            return built
        # A stream of its own: what is drawn after this network is the same with and without it.
        ambient = torch.default_generator.initial_seed()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(_derive_seed(ambient, i))
            return self(0)

    def width(self, encoder: str) -> int:
        """How many features the method's encoder of this name gives an image."""
        encoders = self.config.method.encoders()
        if encoder not in encoders:
            known = ", ".join(encoders) or "none"
            raise ConfigError(broken(f"this method has the encoders {known}", f"'{encoder}'"))
        return int(encoders[encoder].build(self.shape).dim)


@dataclass(frozen=True)
class NetworkRecipe:
    """The network that a method trains, from the same seed the same bits."""

    config: Config
    shape: tuple[int, int, int]
    classes: int

    def __call__(self, i: int = 0) -> nn.Module:
        """The method's network with first weights number `i`."""
        import torch

        blueprint = NetworkBlueprint(self.config, self.shape, self.classes)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(_derive_seed(self.config.seeds_for("model"), i))
            return self.config.method.network(blueprint)


def _derive_seed(seed: int, i: int) -> int:
    """Hashed, so that the second first weights of one seed are not the first of another."""
    return int(np.random.default_rng([seed, i]).integers(1 << 62)) if i else seed


@dataclass(frozen=True)
class LearnerRecipe:
    """What an actor builds once, when it starts."""

    network: NetworkRecipe
    normalisation: Normalisation
    device: str

    def __call__(self) -> Learner:
        from rayfl.fleet.host import keep_freed_memory
        from rayfl.learn.learner import Learner

        keep_freed_memory()
        config = self.network.config
        hold_bits([config.bits])
        return Learner(
            self.network,
            config.training,
            self.normalisation,
            self.device,
            config.evaluation.batch_size,
            self.network.shape,
            foreign=not is_all_ours(config),
        )


def build_spec(config: Config, dataset: Dataset, scenario: Scenario, device: str) -> Spec:
    """What every place of the fleet needs to know."""
    network = NetworkRecipe(config, dataset.shape, len(scenario.classes))
    return Spec(
        make_learner=LearnerRecipe(network, normalisation_of(config, dataset), device),
        streams=Streams(config.seeds_for("training")),
        cohort=config.training.cohort(config.clients),
        threads=config.threads,
        training=config.training,
        safeguards=build_safeguards(config),
    )


def build_safeguards(config: Config) -> Safeguards:
    """What the fleet does about clients that misbehave."""
    limit, memory = config.resources.visit_limit, config.resources.memory_per_client
    return Safeguards(
        visit_seconds=limit if isinstance(limit, float) else None,
        visit_multiple=float(limit[:-1]) if isinstance(limit, str) else None,
        memory_bytes=None if memory is None else int(memory * GB),
        leave_out=config.safety.unfinished == "leave_out",
        norm_multiple=config.safety.norm_multiple,
        absurd=config.safety.absurd,
    )


def normalisation_of(config: Config, dataset: Dataset) -> Normalisation:
    """The configured normalisation, one value a channel; `dataset` measures the training images."""
    wanted = config.training.normalise
    if wanted is None:
        return Normalisation()
    if wanted == "dataset":
        mean, std = measure_moments(dataset.train.x)
        return Normalisation(mean=tuple(mean), std=tuple(np.maximum(std, 1e-6)))
    channels = dataset.shape[2]
    for name in ("mean", "std"):
        given = len(getattr(wanted, name))
        if given not in (1, channels):
            raise ConfigError(
                broken(f"training.normalise.{name} has one value a channel ({channels})", given)
            )
    return wanted


def measure_moments(x: NDArray[np.uint8]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per-channel mean and standard deviation of pixels in [0, 1], from exact counts of the 256
    values."""
    values = np.arange(256) / 255
    counts = np.stack(
        [np.bincount(x[..., channel].ravel(), minlength=256) for channel in range(x.shape[3])]
    )
    mean = counts @ values / counts.sum(axis=1)
    variance = counts @ values**2 / counts.sum(axis=1) - mean**2
    return mean, np.sqrt(np.maximum(variance, 0))


def narrow_scenario(method: Algorithm, scenario: Scenario) -> Scenario:
    """The scenario with the labels that the method's clients are to get, and without names, which
    no place needs."""
    scenario = scenario.without_names()
    if method.labels == "given":
        return scenario
    return scenario.correct_only() if method.labels == "clean" else scenario.truly_labelled()


def build_holdings(config: Config, dataset: Dataset, scenario: Scenario) -> Holdings:
    """The arrays that lie on every node. True labels are not among them, nor labels that the method
    may not see."""
    order, starts = scenario.by_owner
    first = -int(min(Role))
    sets, rows_of = {"test": take_test_set(dataset, scenario)}, {"test": scenario.test}
    if config.method.encoders() or config.evaluation.training_losses:
        sets["train"], rows_of["train"] = Shard(dataset.train.x, None), None
    for role in (Role.PUBLIC, Role.VALIDATION, Role.LABELLED):
        rows = scenario.indices(role)
        if len(rows):
            name = role.name.lower()
            visible = config.method.needs.get(name) == "labels"
            sets[name], rows_of[name] = (
                Shard(dataset.train.x[rows], scenario.given[rows] if visible else None),
                rows,
            )
    fingerprints = {
        name: "all" if rows is None else hash_rows(rows) for name, rows in rows_of.items()
    }
    if scenario.public is not None:
        sets["public"] = take_foreign_set(config, scenario.public, dataset.shape)
        fingerprints["public"] = f"{scenario.public.sha256[:16]}{hash_rows(scenario.public.rows)}"
    honest = Holdings(
        x=dataset.train.x,
        y=scenario.given,
        order=order,
        offsets=starts[first:],
        sets=sets,
        client_labels=config.method.client_labels,
        classes=len(scenario.classes),
        fingerprints=fingerprints,
    )
    return let_in_hostile(honest, config, scenario)


def hash_rows(rows: NDArray[np.int64]) -> str:
    return hashlib.sha256(rows.astype("<i8").tobytes()).hexdigest()[:16]


def take_test_set(dataset: Dataset, scenario: Scenario) -> Shard:
    """The test images that the scenario keeps, with their clean labels (for the evaluation
    only)."""
    if scenario.test is None:
        return Shard(dataset.test.x, dataset.test.y)
    return Shard(dataset.test.x[scenario.test], dataset.test.y[scenario.test])


def take_foreign_set(config: Config, public: PublicImages, shape: tuple[int, int, int]) -> Shard:
    """The public images of another dataset, which have no labels of the clients' classes."""
    if config.method.needs.get("public") == "labels":
        rule = f"{type(config.method).__name__} reads the public set's labels"
        remedy = "Leave out public_data: another dataset's classes are not the clients'."
        raise ConfigError(broken(rule, f"images of {public.name}, without any", remedy))
    return Shard(take_public_images(config, public, shape), None)


def refuse_missing_sets(method: Algorithm, holdings: Holdings) -> None:
    """A method that reads a named set needs a scenario that has it."""
    refuse_missing_names(type(method).__name__, method.needs, list(holdings.sets))


def refuse_missing_names(owner: str, needs: Mapping[str, str], sets: Sequence[str]) -> None:
    """The same where only the names are known.

    Parameters
    ----------
    owner : str
        The class of the method.
    needs : mapping
        The sets that it reads, and what of them.
    sets : sequence of str
        Those that there are.
    """
    for name in needs:
        if name in sets:
            continue
        remedy = f"Set split.{name}, for example {{fraction: 0.1}} or {{per_class: 100}}."
        if name not in SERVER_SETS:
            # It is the method that is wrong: no split has such a set.
            guess = suggest_nearest(name, SERVER_SETS)
            remedy = " ".join(filter(None, [guess, f"A split knows {', '.join(SERVER_SETS)}."]))
        got = f"a split without it (sets: {', '.join(sorted(sets))})"
        raise ConfigError(broken(f"{owner} needs the set '{name}'", got, remedy))


def filled_network(recipe: NetworkRecipe, weights: NDArray[np.float32]) -> nn.Module:
    """A network of its own with these weights, in the usual memory layout."""
    import torch

    from rayfl.learn.resident import Resident

    layout = recipe.config.training.layout
    filled = Resident(recipe(), torch.device("cpu"), layout)
    if len(weights) != len(filled.flat):
        rule = f"the network of this configuration has {len(filled.flat):,} weights"
        raise DataError(broken(rule, f"{len(weights):,}"))
    tensors = filled.load(weights).net.state_dict()
    network = recipe()
    network.load_state_dict({name: tensor.contiguous() for name, tensor in tensors.items()})
    return network
