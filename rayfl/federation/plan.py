"""The plan of a federation: the part of a configuration that says who owns which data with which
labels."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from rayfl.component import Count, slot
from rayfl.errors import broken
from rayfl.federation.dataset import Loader
from rayfl.federation.datasets import DATASETS
from rayfl.federation.noise import NOISES
from rayfl.federation.partition import PARTITIONS
from rayfl.federation.scenario_store import read_header
from rayfl.federation.split import SplitPlan
from rayfl.federation.views import Noise, Partition

if TYPE_CHECKING:
    from typing_extensions import Self

# Absolute at once: a tuning trial or a job runs in another directory than the one that the path was
# written for.
Place = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]
_NoiseSlot = Annotated[Noise, slot(NOISES)]


def part(name: str) -> Any:
    """A default that is written as in a configuration file."""
    return Field(default=name, validate_default=True)


class FederationPlan(BaseModel):
    """Everything that a scenario is built from, besides the seed.

    labels    `true`: the dataset's labels are the truth, and noise is added to them. `given`: they are what somebody
              really wrote, nobody knows the truth, and metrics based on truth are absent
    scenario  a saved scenario to use exactly as it is; the keys that it was built from need not be
    written again,
              and may not contradict it
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    data: Annotated[Loader, slot(DATASETS)] = part("digits")
    data_root: Place | None = None
    clients: Count = 10
    labels: Literal["true", "given"] = "true"
    split: SplitPlan = Field(default_factory=SplitPlan)
    partition: Annotated[Partition, slot(PARTITIONS)] = part("iid")
    noise: _NoiseSlot = part("none")
    labelled_noise: _NoiseSlot = part("none")
    public_noise: _NoiseSlot = part("none")
    scenario: Place | None = None

    def recorded(self) -> dict[str, Any]:
        """The settings that a scenario is made of, as plain mappings: no paths of this machine."""
        keys = set(FederationPlan.model_fields) - {"data_root", "scenario"}
        return self.model_dump(mode="json", include=keys)

    @model_validator(mode="before")
    @classmethod
    def adopt_scenario(cls, written: Any) -> Any:
        """Complete what is written by the settings of the saved scenario."""
        if not isinstance(written, Mapping) or written.get("scenario") is None:
            return written
        return {**read_header(Path(written["scenario"]).expanduser())["plan"], **written}

    @model_validator(mode="after")
    def agree_with_scenario(self) -> Self:
        """Refuse a key that says otherwise than the saved scenario."""
        if self.scenario is not None:
            mine, saved = self.recorded(), read_header(self.scenario)["plan"]
            for key in sorted(set(mine) & set(saved)):
                if mine[key] != saved[key]:
                    rule = f"{key} is {saved[key]} in the scenario that is to be re-used"
                    raise ValueError(
                        broken(rule, mine[key], f"Leave out '{key}', or leave out 'scenario'.")
                    )
        return self
