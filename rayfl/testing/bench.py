"""The bench: a candidate, and its runs in all places, each made once."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

from rayfl.config.files import merge_settings
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError
from rayfl.protocol import ClientId, Vector
from rayfl.run.engine import Outcome
from rayfl.testing.findings import Untried, find_difference
from rayfl.testing.places import (
    INLINE_PLACES,
    MakeFleet,
    ReceivingFleet,
    RefusedBeforehand,
    WatchedFleet,
    run_in,
    seeded_globals,
    shorten,
)
from rayfl.testing.toy import LARGE, complete_toy

if TYPE_CHECKING:
    from rayfl.testing.actors import ActorReserve

FIRST_SEED, OTHER_SEED = 1, 2
"""Of the global streams, which must decide nothing."""

SHORT = 2
"""Rounds of a run that only has to show a place's memory: what the first one leaves, the second
one meets."""


@dataclass(frozen=True)
class Candidate:
    """A method that is to be checked.

    Parameters
    ----------
    method
        Its settings, as in a configuration: `name`, and hyper-parameters.
    config
        What else of the toy configuration it needs (sets, partition, network, rounds ...), or a
        whole configuration of its own.
    floor
        Test accuracy that it must pass where it learns.
    learns_on
        What it needs of the toy configuration to learn there, where `config` has data of its own or
        is too brief for it.
    """

    method: Mapping[str, Any]
    config: Mapping[str, Any] = field(default_factory=dict)
    floor: float = 0.5
    learns_on: Mapping[str, Any] | None = None


class Bench:
    """Runs a candidate, each time in a folder of its own.

    Parameters
    ----------
    candidate
        The method, and what it is tried on.
    folder
        Where runs may write; what they wrote is removed with each.
    actors
        Lends actors to runs on Ray; a bench without it runs in this process only.
    """

    def __init__(
        self, candidate: Candidate, folder: Path, actors: ActorReserve | None = None
    ) -> None:
        self.candidate, self.folder, self.actors = candidate, folder, actors

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The configuration that most promises are tried on."""
        return complete_toy(self.candidate.method, self.candidate.config)

    @cached_property
    def toy_settings(self) -> dict[str, Any]:
        """The configuration on the toy federation, with which it learns."""
        learns_on = self.candidate.learns_on
        if learns_on is None:
            return self.settings
        return complete_toy(self.candidate.method, learns_on)

    def config_of(self, settings: Mapping[str, Any] | None = None, **more: Any) -> Config:
        """A configuration with an output folder of its own, with `more` on top."""
        place = {
            "output": str(more.pop("output", None) or self.make_folder()),
            "fleet": "inline",
            # One every round costs as much as the round, and only resuming asks for it.
            "checkpoint": {"every": 0},
            "tracking": {"enabled": False},
        }
        return validate_config(
            merge_settings(merge_settings(settings or self.settings, place), more)
        )

    def make_folder(self) -> str:
        """A new folder below the bench's."""
        return mkdtemp(prefix="run-", dir=self.folder)

    def variant_of(
        self, more: Mapping[str, Any], settings: Mapping[str, Any] | None = None
    ) -> Config:
        """Another network or federation, which a method may refuse with a message."""
        try:
            return self.config_of(settings, **more)
        except ConfigError as refusal:
            raise Untried(f"refused: {refusal}") from refusal

    def run(
        self,
        config: Config,
        place: str | MakeFleet = "inline",
        *,
        rounds: int | None = None,
        streams: int = FIRST_SEED,
    ) -> Outcome:
        """Run, and forget what was written.

        Parameters
        ----------
        config
            Of `config_of` or `variant_of`: no two runs may share a folder.
        place
            A name of `INLINE_PLACES`, or what makes the fleet.
        rounds
            At most so many, where not all of the configuration's are wanted.
        streams
            Where Python's, numpy's and torch's global streams begin.
        """
        make_fleet = INLINE_PLACES[place] if isinstance(place, str) else place
        if rounds is not None:
            config = shorten(config, min(rounds, config.training.rounds))
        try:
            with seeded_globals(streams):
                outcome, self.latest = run_in(config, make_fleet)
        except RefusedBeforehand as refusal:
            raise Untried(f"refused: {refusal}") from refusal
        finally:
            shutil.rmtree(config.output, ignore_errors=True)
        return outcome

    @cached_property
    def reference(self) -> Outcome:
        """The run in this process that all others are compared with."""
        outcome = self.run(self.config_of(), "watched")
        assert isinstance(self.latest, WatchedFleet)
        self.watched = self.latest
        return outcome

    @cached_property
    def large(self) -> Outcome:
        """A short run on a network above 2^18 numbers; `receiving` knows what came to the
        coordinator."""
        outcome = self.run(self.variant_of(LARGE), "receiving", rounds=SHORT)
        assert isinstance(self.latest, ReceivingFleet)
        self.receiving = self.latest
        return outcome

    @cached_property
    def withstands(self) -> bool:
        """Whether a second run gives the same bits although everything is against it at once: other
        numbers in the global streams, clients backwards, evaluations late.

        If it does, four promises hold for the price of one run; if not, each is tried alone."""
        try:
            adverse = self.run(self.config_of(), "adverse", streams=OTHER_SEED)
        except Exception:
            return False
        return find_difference(self.reference, adverse) is None

    @cached_property
    def learned(self) -> Outcome:
        """The run in which it must have learned."""
        if self.candidate.learns_on is None:
            return self.reference
        return self.run(self.config_of(self.toy_settings))

    @cached_property
    def first_models(self) -> Mapping[ClientId | None, Vector]:
        """The models before the first round."""
        return self.run(self.config_of(), rounds=0).models
