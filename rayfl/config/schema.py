"""The configuration of a run: YAML files with inheritance, overrides, validation, and messages for
people.

base: quickstart.yaml          another file, or a list of them, that this one builds on
method: {name: fedavg}         components are a name, or a mapping with a name and settings
training.lr=0.1                an override on the command line
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from rayfl.algorithms import METHODS
from rayfl.component import Count, Natural, NonNegative, Positive, slot
from rayfl.config.explain import explained, shown
from rayfl.errors import ConfigError
from rayfl.federation.plan import FederationPlan, Place, part
from rayfl.learn.training import Training
from rayfl.models import MODELS
from rayfl.protocol import Algorithm

Seed = Annotated[int, Field(ge=0, lt=1 << 63)]
Uri = Annotated[str, AfterValidator(lambda text: absolute(text.strip()))]
Plain = Annotated[str, AfterValidator(lambda text: text.strip())]


def absolute(uri: str) -> str:
    """A URI as it is; a path made absolute, because actors run in other directories."""
    return uri if "://" in uri else str(Path(uri).expanduser().absolute())


NEUTRAL = {
    "precision": "fp32",
    "stack": "never",
    "layout": "channels_last",
    "kernels": "whole",
    "compile": "never",
}
"""Settings of `training` that are about speed: at these values a run is what it was before there
were any."""


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


class Resources(Section):
    """What each client actor is pinned to, and how many there are."""

    cpus_per_client: Positive = 1.0
    gpus_per_client: NonNegative | Literal["auto"] | None = None
    """A fraction of a GPU for each actor; by default none on a CPU, and a quarter where the device
    is a GPU. `auto` measures what one client takes."""
    actors: Count | Literal["auto"] = "auto"
    keepers: Natural | Literal["auto"] = "auto"
    """Processes that own the large states which clients leave, so that the coordinator need not;
    they take no processor of their own. `auto`: none up to 64 actors, then one for every 64."""


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
    tags: dict[str, str] = Field(default_factory=dict)


def default_output() -> Path:
    """Where runs go: the environment variable RAYFL_OUTPUT, or `outputs` here."""
    return Path(os.environ.get("RAYFL_OUTPUT", "outputs"))


class Config(FederationPlan):
    """One run."""

    seed: Seed = 0
    seeds: Seeds = Field(default_factory=Seeds)
    model: Annotated[Any, slot(MODELS)] = part("mlp")
    method: Annotated[Algorithm, slot(METHODS)] = part("fedavg")
    training: Training = Field(default_factory=Training)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    fleet: Literal["ray", "inline"] = "ray"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    resources: Resources = Field(default_factory=Resources)
    checkpoint: Checkpointing = Field(default_factory=Checkpointing)
    tracking: Tracking = Field(default_factory=Tracking)
    output: Place = Field(default_factory=default_output, validate_default=True)

    def seeds_for(self, purpose: Literal["data", "model", "training"]) -> int:
        """The seed of one purpose."""
        own: int | None = getattr(self.seeds, purpose)
        return self.seed if own is None else own

    @property
    def digest(self) -> str:
        """A hash of all that decides the result; where and how it runs, and for how many rounds, is
        left out."""
        place = {
            "fleet",
            "device",
            "resources",
            "checkpoint",
            "tracking",
            "output",
            "data_root",
            "scenario",
        }
        decisive = self.model_dump(mode="json", exclude=place)
        training = decisive["training"]
        del training["rounds"]
        for speed, neutral in NEUTRAL.items():
            if training[speed] == neutral:
                del training[speed]
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def resolved(self) -> dict[str, Any]:
        """Every setting as plain values, without secrets."""
        masked: dict[str, Any] = mask(self.model_dump(mode="json"))
        return masked


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The validated configuration of a file with overrides."""
    return validated(read_config(path, overrides), str(path))


def read_config(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """The plain values of a file with overrides."""
    settings = read_file(path)
    for override in overrides:
        settings = overridden(settings, override)
    return settings


def validated(settings: Mapping[str, Any], where: str = "configuration") -> Config:
    """A configuration from plain values, or one message about all that is wrong with them."""
    try:
        return Config(**settings)
    except ValidationError as error:
        raise ConfigError(explained(error, Config, settings, where)) from None
    except TypeError as error:
        raise ConfigError(f"{where}: keys are text; {error}") from None


def read_file(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """The plain values of a file, merged onto those of its `base` files."""
    path = path.expanduser().absolute()
    if path in above:
        chain = " -> ".join(str(p) for p in (*above, path))
        raise ConfigError(f"`base` must not lead back to itself; got {chain}")
    settings = parsed(path)
    bases = settings.pop("base", [])
    names = [bases] if isinstance(bases, str) else bases
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ConfigError(f"{path}: `base` is a file name or a list of them; got {shown(bases)}")
    merged: dict[str, Any] = {}
    for base in names:
        merged = merge(merged, read_file(path.parent / base, (*above, path)))
    return merge(merged, settings)


def parsed(path: Path) -> dict[str, Any]:
    """The mapping that one YAML file holds."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"a configuration is a readable YAML file; got {path} ({error})"
        ) from None
    settings = from_yaml(text, str(path))
    if settings is None:
        return {}
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        raise ConfigError(
            f"{path}: a configuration is a mapping of keys to values; got {type(settings).__name__}"
        )
    return settings


def from_yaml(text: str, where: str) -> Any:
    """The plain values of a text."""
    try:
        return yaml.load(text, Loader=StrictLoader)
    # A tag on a value that it does not fit, such as `!!timestamp 9`, surfaces as any of the last
    # four.
    except (
        yaml.YAMLError,
        RecursionError,
        ValueError,
        AttributeError,
        LookupError,
        TypeError,
    ) as error:
        raise ConfigError(f"{where} is not valid YAML: {error}") from None


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` onto `below`, key by key; a component of another name replaces the one below."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = value
        if (
            isinstance(old, Mapping)
            and isinstance(value, Mapping)
            and value.get("name", old.get("name")) == old.get("name")
        ):
            merged[key] = merge(old, value)
    return merged


def overridden(settings: Mapping[str, Any], override: str) -> dict[str, Any]:
    """`a.b=value` put into the settings; the value is read as YAML."""
    path, equals, text = override.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise ConfigError(f"an override has the form key.sub=value; got '{override}'")
    return put(settings, keys, from_yaml(text, f"the value of override '{override}'"))


def put(settings: Mapping[str, Any], keys: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of `settings` with one nested key set; `method.mu` of `method: fedprox` becomes a
    mapping."""
    first, *rest = keys
    if not rest:
        return {**settings, first: value}
    inner = settings.get(first)
    if isinstance(inner, str):
        inner = {"name": inner}
    return {**settings, first: put(inner if isinstance(inner, Mapping) else {}, rest, value)}


SECRET = re.compile(r"(?<=://)[^/@\s]*:[^/@\s]*(?=@)|(?<=://)[^/@:\s]+(?=@)")


def mask(value: Any) -> Any:
    """Values with the credentials inside URIs replaced by stars."""
    if isinstance(value, str):
        return SECRET.sub("***", value)
    if isinstance(value, Mapping):
        return {key: mask(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [mask(item) for item in value]
    return value


class StrictLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice and reads 1e-3 as the number it is."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = next((key for key in keys if isinstance(key, str) and keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.YAMLError(
                f"the key '{twice}' is written twice, line {node.start_mark.line + 1}"
            )
        return dict(super().construct_mapping(node, deep=deep))


StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)
