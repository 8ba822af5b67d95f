"""The configuration of a run: its settings, and what a run is known by."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from typing_extensions import Self

from rayfl.algorithms import METHODS
from rayfl.bits import Bits
from rayfl.component import (
    Count,
    ImportFolders,
    Natural,
    NonNegative,
    Positive,
    neutral,
    registry_of,
    slot,
    without_neutral,
)
from rayfl.config.explain import explain_errors
from rayfl.config.files import (
    read_config,
)
from rayfl.errors import ConfigError, broken
from rayfl.federation.paths import AbsolutePath, make_absolute
from rayfl.federation.plan import FederationPlan, default_component
from rayfl.learn.training import Training
from rayfl.models import MODELS
from rayfl.protocol import Algorithm
from rayfl.secrets import mask_secrets

Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Uri = Annotated[str, AfterValidator(lambda text: _make_absolute(text.strip()))]
Multiple = Annotated[str, Field(pattern=r"^\d+(\.\d+)?x$")]
Plain = Annotated[str, AfterValidator(lambda text: text.strip())]


def _make_absolute(uri: str) -> str:
    """A URI as it is; a path made absolute, because actors run in other directories."""
    return uri if "://" in uri else str(make_absolute(Path(uri)))


class Section(BaseModel):
    """A part of the configuration: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Seeds(Section):
    """Separate seeds for what is random; each defaults to `seed`."""

    data: Seed | None = None
    model: Seed | None = None
    training: Seed | None = None


class Evaluation(Section):
    """When and how the global model meets the test set."""

    every: Count = 1
    batch_size: Count = 256
    training_losses: Annotated[bool, neutral(False)] = False
    """Measure, too, the mean loss of the clients' samples with right and with wrong labels
    (`train/loss_right`, `train/loss_wrong`): one more pass over all of them."""


class Resources(Section):
    """What each client actor is pinned to, and how many there are."""

    cpus_per_client: Positive = 1.0
    gpus_per_client: NonNegative | Literal["auto"] | None = None
    """A fraction of a GPU for each actor; by default none on a CPU, and a quarter where the device
    is a GPU. `auto` measures what one client takes."""
    actors: Count | Literal["auto"] = "auto"
    memory_per_client: Positive | None = None
    """Gigabytes of its own memory that each actor may take while it visits clients: what is
    allocated beyond is a MemoryError of that visit. Linux alone."""
    visit_limit: Positive | Multiple | None = None
    """How long one visit of a client may take: seconds, or `20x` for so many times the median of
    the visits by the same phase since the run was started or taken up (at least 10 s). What
    follows says `safety.unfinished`."""
    keepers: Natural | Literal["auto"] = "auto"
    """Processes that own the large states which clients leave, so that the coordinator need not;
    they take no processor of their own. `auto`: none up to 64 actors, then one for every 64."""


class Safety(Section):
    """What is done about clients that misbehave: docs/misbehaving.md."""

    unfinished: Annotated[Literal["stop", "leave_out"], neutral("stop")] = "stop"
    """A visit that is over its time, out of memory or ends its actor each time ends the run; or it
    is left out of its round, named and counted. Which visits are late is up to the clock: the
    decision is recorded beside the checkpoints, and repeated whenever its round is computed
    again."""
    absurd: Annotated[Literal["name", "clip", "drop"], neutral("name")] = "name"
    """A finite update whose largest value is beyond `norm_multiple` times the cohort's median, or
    too large for a sum in float32, is counted and named. `clip` scales it down to the limit, `drop`
    leaves it out of the replies."""
    norm_multiple: Annotated[float, Field(ge=1, allow_inf_nan=False), neutral(1000.0)] = 1000.0


class Checkpointing(Section):
    """How often a run can be taken up again, and where that is kept."""

    every: Natural = 1
    """Rounds between checkpoints; 0 for none but the last."""
    min_seconds: NonNegative = 5.0
    """Rounds that follow the last checkpoint sooner than this do not write another."""
    uri: Uri | None = None


class Tracking(Section):
    """Where MLflow keeps the run; sqlite below `output` by default."""

    enabled: bool = True
    uri: Plain | None = None
    experiment: Plain = "rayfl"
    run_name: Plain | None = None
    """By default method, seed, noise and partition, and when it began."""
    system_metrics: Annotated[bool, neutral(True)] = True
    """Sample processor, memory, disk and network of the driver's machine every ten seconds."""
    tags: dict[str, str] = Field(default_factory=dict)


def default_output() -> Path:
    """Where runs go: the environment variable RAYFL_OUTPUT, or `outputs` here."""
    return Path(os.environ.get("RAYFL_OUTPUT", "outputs"))


PLACE = {
    "fleet",
    "device",
    "resources",
    "checkpoint",
    "tracking",
    "output",
    "data_root",
    "scenario",
}
"""Settings of a run that say where and how it runs."""

PORTABLE_NEEDS: Mapping[str, Sequence[str]] = {
    "device": ("cpu",),
    "training.precision": ("fp32",),
    # Kernels of many small products round by where in memory a row lies, and by whom it is beside.
    "training.stack": ("never",),
    # What is compiled on a machine is that machine's.
    "training.compile": ("never",),
}
"""The values beside which bits can be portable."""


class Config(FederationPlan):
    """One run."""

    seed: Seed = 0
    seeds: Seeds = Field(default_factory=Seeds)
    model: Annotated[Any, slot(MODELS)] = default_component("mlp")
    method: Annotated[Algorithm, slot(METHODS)] = default_component("fedavg")
    training: Training = Field(default_factory=Training)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    fleet: Literal["ray", "inline"] = "ray"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    bits: Annotated[Bits, neutral("fast")] = "fast"
    """`fast`: the kernels that suit the processor best, so that processors of different kinds make
    different bits. `portable`: kernels that make the same bits on every x86-64 processor with AVX2,
    of one thread in each actor, for the same versions of torch and numpy; what that costs, and what
    it does not do, says docs/reliability_bits.md. It needs `device: cpu` and fp32."""
    resources: Resources = Field(default_factory=Resources)
    safety: Safety = Field(default_factory=Safety)
    checkpoint: Checkpointing = Field(default_factory=Checkpointing)
    tracking: Tracking = Field(default_factory=Tracking)
    output: AbsolutePath = Field(default_factory=default_output, validate_default=True)

    @model_validator(mode="after")
    def _check_cohort(self) -> Self:
        wanted = self.training.clients_per_round
        if wanted is not None and wanted > self.clients:
            rule = f"training.clients_per_round is at most clients ({self.clients})"
            raise ValueError(broken(rule, wanted, "Lower it, or set more clients."))
        return self

    @model_validator(mode="after")
    def _check_bits(self) -> Self:
        if self.bits == "portable":
            for setting, needed in PORTABLE_NEEDS.items():
                section, _, key = setting.rpartition(".")
                got = getattr(getattr(self, section) if section else self, key)
                if got not in needed:
                    rule = f"bits: portable needs {setting}: {' or '.join(needed)}"
                    raise ValueError(broken(rule, f"'{got}'", f"Set {setting}: {needed[0]}."))
        return self

    def __getstate__(self) -> dict[Any, Any]:
        # First of all: the method and its like may be of modules that lie there.
        return {"folders": ImportFolders(), **super().__getstate__()}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        super().__setstate__({key: state[key] for key in state if key != "folders"})

    def seeds_for(self, purpose: Literal["data", "model", "training"]) -> int:
        """The seed of one purpose."""
        own: int | None = getattr(self.seeds, purpose)
        return self.seed if own is None else own

    @property
    def threads(self) -> int:
        """How many torch computes with, wherever clients are visited."""
        if self.bits == "portable":
            return 1
        return max(int(self.resources.cpus_per_client), 1)

    def name_of(self, setting: str) -> str:
        """The name, or the import path, of the component in a slot."""
        return registry_of(type(self), setting).name_of(getattr(self, setting))

    @property
    def digest(self) -> str:
        """A hash of all that decides the result.

        Where and how it runs, and for how many rounds, is left out; so is every setting at its
        declared neutral value (`rayfl.component.neutral`), so that a new one orphans no run."""
        decisive = without_neutral(self, self.model_dump(mode="json", exclude=PLACE))
        # As many rounds as one likes can be added to a run.
        del decisive["training"]["rounds"]
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def resolved(self) -> dict[str, Any]:
        """Every setting as plain values, without secrets."""
        masked: dict[str, Any] = mask_secrets(self.model_dump(mode="json"))
        return masked


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The validated configuration of a file with overrides.

    Parameters
    ----------
    path : Path
        A YAML file. Modules of one's own, with methods or datasets, are found in its folder.
    overrides : sequence of str
        `key.sub=value` each; the value is read as YAML, and later ones win.
    """
    return validate_config(read_config(path, overrides), str(path))


def validate_config(settings: Mapping[str, Any], where: str = "configuration") -> Config:
    """A configuration from plain values, or one message about all that is wrong with them.

    Parameters
    ----------
    settings : mapping
        As in a configuration file, without `base`.
    where : str
        What the values are, for the message.
    """
    try:
        return Config(**settings)
    except ValidationError as error:
        raise ConfigError(explain_errors(error, Config, settings, where)) from None
    except TypeError as error:
        raise ConfigError(f"{where}: keys are text; {error}") from None
