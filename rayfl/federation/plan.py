"""The plan of a federation: the part of a configuration that says who owns which data with which
labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rayfl.component import Count, neutral, slot
from rayfl.errors import broken
from rayfl.federation.dataset import Loader
from rayfl.federation.datasets import DATASETS
from rayfl.federation.hostile import HOSTILITIES, Hostility
from rayfl.federation.interfaces import Noise, Partition
from rayfl.federation.noise import NOISES
from rayfl.federation.partition import PARTITIONS
from rayfl.federation.scenario_store import read_header
from rayfl.federation.split import SplitPlan

if TYPE_CHECKING:
    from typing_extensions import Self

# Absolute at once: a tuning trial or a job runs in another directory than the one that the path was
# written for.
AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
_LoaderSlot = Annotated[Loader, slot(DATASETS)]
_PartitionSlot = Annotated[Partition, slot(PARTITIONS)]
_NoiseSlot = Annotated[Noise, slot(NOISES)]
_HostilitySlot = Annotated[Hostility, slot(HOSTILITIES)]

# What belongs to one machine, or names the whole instead of describing it.
_NOT_RECORDED = {"data_root", "scenario"}


def default_component(name: str) -> Any:
    """A default that is written as in a configuration file: by its `name`."""
    return Field(default=name, validate_default=True)


class FederationPlan(BaseModel):
    """Everything that a scenario is built from, besides the seed.

    labels    `true`: the dataset's labels are the truth, and noise is added to them. `given`: they
              are what somebody really wrote, nobody knows the truth, and metrics based on truth are
              absent
    public_data  a dataset that `split.public` is taken from in place of the clients' own; its
              images come without labels, at the clients' size
    hostile   clients that mean harm, by kind: `{name: sign_flip, clients: 0.2}`; null for none
    scenario  a saved scenario to use exactly as it is; the keys that it was built from need not be
              written again, and may not contradict it
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: _LoaderSlot = default_component("digits")
    data_root: AbsolutePath | None = None
    clients: Count = 10
    labels: Literal["true", "given"] = "true"
    split: SplitPlan = Field(default_factory=SplitPlan)
    partition: _PartitionSlot = default_component("iid")
    public_data: Annotated[_LoaderSlot | None, neutral(None)] = None
    noise: _NoiseSlot = default_component("none")
    labelled_noise: _NoiseSlot = default_component("none")
    public_noise: _NoiseSlot = default_component("none")
    hostile: Annotated[_HostilitySlot | None, neutral(None)] = None
    scenario: AbsolutePath | None = None

    def recorded(self) -> dict[str, Any]:
        """The settings that a scenario is made of, as plain mappings: no paths of this machine."""
        keys = set(FederationPlan.model_fields) - _NOT_RECORDED
        return self.model_dump(mode="json", include=keys)

    @model_validator(mode="before")
    @classmethod
    def _adopt_scenario(cls, written: Any) -> Any:
        """Complete what is written by the settings of the saved scenario."""
        if not isinstance(written, Mapping) or written.get("scenario") is None:
            return written
        directory = Path(written["scenario"]).expanduser()
        saved = read_header(directory)["plan"]
        return {**saved, **written}

    @model_validator(mode="after")
    def _check_public_data(self) -> Self:
        """Images of another dataset need an amount, and have no labels of the clients' classes."""
        if self.public_data is None:
            return self
        if self.split.public is None:
            rule = "public_data needs split.public: how many images the server takes of it"
            raise ValueError(broken(rule, "none", "Write split.public: {total: 5000}."))
        if self.public_noise != NOISES.build("none"):
            rule = "a public set of another dataset has no labels, and so no public_noise"
            found = self.recorded()["public_noise"]["name"]
            raise ValueError(broken(rule, found, "Leave out public_noise."))
        return self

    @model_validator(mode="after")
    def _agree_with_scenario(self) -> Self:
        """Refuse a key that says otherwise than the saved scenario."""
        if self.scenario is None:
            return self
        mine = self.recorded()
        saved = read_header(self.scenario)["plan"]
        for key in sorted(set(mine) & set(saved)):
            if mine[key] != saved[key]:
                rule = f"{key} is {saved[key]} in the scenario that is to be re-used"
                remedy = f"Leave out '{key}', or leave out 'scenario'."
                raise ValueError(broken(rule, mine[key], remedy))
        return self
