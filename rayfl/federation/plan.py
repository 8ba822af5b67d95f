"""The plan of a federation: the part of a configuration that says who owns which data with which
labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    ValidationInfo,
    field_validator,
    model_validator,
)

from rayfl.component import Count, neutral, slot
from rayfl.errors import broken
from rayfl.federation.dataset import Loader
from rayfl.federation.datasets import DATASETS
from rayfl.federation.datasets.on_disk import OnDisk
from rayfl.federation.hostile import HOSTILITIES, Hostility
from rayfl.federation.interfaces import Noise, Partition
from rayfl.federation.label_table import LabelTable
from rayfl.federation.noise import NOISES
from rayfl.federation.partition import PARTITIONS
from rayfl.federation.paths import AbsolutePath, make_absolute
from rayfl.federation.scenario_store import read_header
from rayfl.federation.split import SplitPlan

if TYPE_CHECKING:
    from typing_extensions import Self

_LoaderSlot = Annotated[Loader, slot(DATASETS)]
_PartitionSlot = Annotated[Partition, slot(PARTITIONS)]
_NoiseSlot = Annotated[Noise, slot(NOISES)]
# Told apart at once, so that a refusal speaks of what was meant alone.
_Labels = Annotated[
    Annotated[Literal["true", "given"], Tag("Word")] | Annotated[LabelTable, Tag("Table")],
    Discriminator(lambda labels: "Word" if isinstance(labels, str) else "Table"),
]
_HostilitySlot = Annotated[Hostility, slot(HOSTILITIES)]

# What belongs to one machine, or names the whole instead of describing it.
_NOT_RECORDED = {"data_root", "scenario"}


def default_component(name: str) -> Any:
    """A default that is written as in a configuration file: by its `name`."""
    return Field(default=name, validate_default=True)


class FederationPlan(BaseModel):
    """Everything that a scenario is built from, besides the seed.

    labels    `true`: the dataset's labels are the truth, and noise is added to them. `given`: they
              are what somebody really wrote, nobody knows the truth unless the data name it, and
              metrics based on truth are absent without. By default `given` for data with `sites`,
              `true` for all others. `{table: FILE}`, or the path alone: the labels of a table, such
              as corrected ones, in place of all these
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
    labels: _Labels = Field(default=None, validate_default=True)
    split: SplitPlan = Field(default_factory=SplitPlan)
    partition: _PartitionSlot = default_component("iid")
    public_data: Annotated[_LoaderSlot | None, neutral(None)] = None
    noise: _NoiseSlot = default_component("none")
    labelled_noise: _NoiseSlot = default_component("none")
    public_noise: _NoiseSlot = default_component("none")
    hostile: Annotated[_HostilitySlot | None, neutral(None)] = None
    scenario: AbsolutePath | None = None

    @property
    def own_labels(self) -> Literal["true", "given"]:
        """What the labels of the data are, whether or not those of a table take their place."""
        if not isinstance(self.labels, LabelTable):
            return self.labels
        assert self.labels.over is not None, "a plan says what its table lies over"
        return self.labels.over

    @field_validator("labels", mode="before")
    @classmethod
    def _choose_labels(cls, written: Any, others: ValidationInfo) -> Any:
        """The default, which depends on the data, and the short form of a table."""
        data = others.data.get("data")
        usual = "given" if isinstance(data, OnDisk) and data.labels_are_given else "true"
        if written is None or written in ("true", "given"):
            return written or usual
        # In YAML the bare word is no text.
        if written is True:
            return "true"
        if isinstance(written, Path) or (isinstance(written, str) and _is_path(written)):
            written = {"table": written}
        if isinstance(written, Mapping) and "over" not in written:
            return {**written, "over": usual}
        return written

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
        directory = make_absolute(Path(written["scenario"]))
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
        header = read_header(self.scenario)["plan"]
        # By way of a plan: settings that are newer than the scenario have their defaults there.
        known = {key: header[key] for key in FederationPlan.model_fields if key in header}
        saved = FederationPlan.model_validate(known).recorded()
        for key in sorted(set(mine) & set(saved) & set(header)):
            # A table takes the place of the scenario's labels, and is no contradiction.
            if key == "labels" and isinstance(self.labels, LabelTable):
                continue
            if mine[key] != saved[key]:
                rule = f"{key} is {saved[key]} in the scenario that is to be re-used"
                remedy = f"Leave out '{key}', or leave out 'scenario'."
                raise ValueError(broken(rule, mine[key], remedy))
        return self


def _is_path(text: str) -> bool:
    """Whether a text is meant as a path: it has a folder or a suffix, or something lies there."""
    path = Path(text)
    if len(path.parts) > 1 or path.suffix:
        return True
    try:
        return path.expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # longer than a path, or nobody's home
        return False
