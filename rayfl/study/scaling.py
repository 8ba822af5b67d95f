"""How `--scale` shrinks a study.

A scale of s makes a run of roughly s x s of the work: s of the rounds, each with s of the images.

- Rounds are multiplied by s, and with them whatever a method counts in rounds or passes over the
  whole run: FedRN's warm-up, FedCR's pre-training, FedNoRo's ramp, FedCorr's stages. They keep
  their share of the run, as do the last rounds that a score is the mean of.
- Clients are multiplied by s, and so are the training images, so that a client keeps its size, and
  the partition's and the noise's settings keep their meaning. Amounts of the split (public,
  validation, labelled, client_samples) shrink as the training images do; shares stay.
- The participants of a round keep their share of the clients.
- Test images are multiplied by s.
- Networks, batches, local epochs, learning rates and everything else stay.

Nothing grows, and nothing falls below its least value (5 rounds, 10 clients, 4 participants, 1,000
training and 1,000 test images, 100 public images; a study may set others): a federation of two
clients would show nothing. A least value that holds is why a scaled client may be smaller than the
paper's."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from rayfl.config.files import put_setting
from rayfl.config.schema import Config, validate_config
from rayfl.errors import ConfigError, broken
from rayfl.federation.datasets import DATASETS, find_data_root
from rayfl.study.schema import Study

LEAST: Mapping[str, float] = {
    "training.rounds": 5,
    "clients": 10,
    "training.clients_per_round": 4,
    "split.train_samples.total": 1000,
    "split.test_samples.total": 1000,
    "split.public.total": 100,
    "split.validation.per_class": 2,
    "split.labelled.per_class": 2,
    "method.warmup": 1,
    "method.ramp": 1,
    "method.pretraining": 1,
    "method.iterations": 1,
    "method.finetuning": 1,
    "method.begin": 0,
    "method.end": 0,
    "method.correct_after": 1,
    "method.host.warmup": 1,
    "method.host.iterations": 1,
    "method.host.finetuning": 1,
}
"""Settings that are multiplied, each with its least value."""

COUNTED = (
    "training.rounds",
    "clients",
    "method.warmup",
    "method.ramp",
    "method.pretraining",
    "method.iterations",
    "method.finetuning",
    "method.begin",
    "method.end",
    "method.correct_after",
    "method.host.warmup",
    "method.host.iterations",
    "method.host.finetuning",
)
"""Those that need nothing but multiplying."""

SIZES = {
    "mnist": (60_000, 10_000),
    "fashion-mnist": (60_000, 10_000),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "svhn": (73_257, 26_032),
    "pathmnist": (89_996, 7_180),
    "mura": (36_808, 3_197),
    "webvision": (65_944, 2_500),
    "tiny-imagenet": (100_000, 10_000),
}
"""Training and test images of known datasets: a scale can be planned before the files are there."""

NAMES = {
    "training.rounds": "rounds",
    "training.clients_per_round": "clients a round",
    "split.train_samples.total": "training images",
    "split.test_samples.total": "test images",
}

SERVER_SETS = ("public", "validation", "labelled", "client_samples")
"""Amounts of the split that shrink as the training images do."""

Sizes = Callable[[Config], tuple[int, int]]
"""Training and test images of a configuration's dataset."""
Changes = dict[str, tuple[int, int]]
"""By dotted path: a setting at full size, and scaled."""


@dataclass(frozen=True)
class ScaledConfig:
    """A configuration at a scale, and what that changed: `rounds 100 -> 10, clients 100 -> 10`."""

    config: Config
    note: str = ""


def scale_config(
    settings: Mapping[str, Any],
    study: Study,
    scale: float,
    where: str,
    sizes: Sizes | None = None,
) -> ScaledConfig:
    """The configuration of plain settings at a scale.

    Parameters
    ----------
    study
        May set least values of its own.
    scale
        1 is the paper's size.
    where
        What a message calls the settings.
    sizes
        How many images a dataset has; by default it is looked up, or the dataset is read."""
    if not 0 < scale <= 1:
        remedy = "It shrinks a study; 1 is the paper's size."
        raise ConfigError(broken("--scale lies in (0, 1]", scale, remedy))
    full = validate_config(settings, where)
    if scale == 1:
        return ScaledConfig(full)
    least = {**LEAST, **study.scaling.least}
    changes = _shrink_settings(full, least, scale, (sizes or find_sizes)(full))
    small = _apply_changes(settings, changes)
    config = validate_config(small, f"{where}, scaled by {scale:g}")
    return ScaledConfig(config, _describe_changes(changes))


def _apply_changes(settings: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Settings with the new values in place of the old ones."""
    # A tenth of ten clients is one: the share is replaced by a number, which has a least value.
    small = put_setting(settings, ["training", "fraction"], None)
    for path, (_, new) in changes.items():
        *section, unit = path.split(".")
        if section[:1] == ["split"]:
            # An amount has one unit: a share that was written gives way to the total.
            small = put_setting(small, section, {unit: new})
        else:
            small = put_setting(small, [*section, unit], new)
    return small


def _describe_changes(changes: Changes) -> str:
    """What is smaller, in words."""
    told = [
        f"{NAMES.get(path, path)} {old} -> {new}"
        for path, (old, new) in changes.items()
        if old != new
    ]
    return ", ".join(told)


def _shrink_settings(
    full: Config,
    least: Mapping[str, float],
    scale: float,
    sizes: tuple[int, int],
) -> Changes:
    """Every setting that a scale may change."""
    written = full.resolved()
    changes: Changes = {}
    for path in COUNTED:
        old = _find_value(written, path)
        if isinstance(old, int):
            changes[path] = (old, shrink_count(old, scale, least[path]))
    _, clients = changes["clients"]
    path = "training.clients_per_round"
    cohort = full.training.cohort(full.clients)
    # A round keeps its share of the clients, and cannot have more of them than there are.
    share = shrink_count(cohort, clients / full.clients, least[path])
    changes[path] = (cohort, min(share, clients))
    return changes | _shrink_images(written, least, scale, sizes)


def _shrink_images(
    written: Mapping[str, Any],
    least: Mapping[str, float],
    scale: float,
    sizes: tuple[int, int],
) -> Changes:
    """Training and test images, and the amounts that the server takes of the former."""
    changes: Changes = {}
    for part, size in zip(("train_samples", "test_samples"), sizes, strict=True):
        path = f"split.{part}.total"
        before = count_images(written["split"][part], size)
        changes[path] = (before, shrink_count(before, scale, least[path]))
    before, after = changes["split.train_samples.total"]
    for part in SERVER_SETS:
        for unit in ("total", "per_class"):
            path = f"split.{part}.{unit}"
            old = _find_value(written, path)
            if isinstance(old, int):
                new = shrink_count(old, after / before, least.get(path, 1))
                changes[path] = (old, new)
    return changes


def count_images(written: Mapping[str, Any] | None, size: int) -> int:
    """How many images a cap leaves of a dataset of this size."""
    if written is None:
        return size
    if written.get("fraction") is not None:
        return round(float(written["fraction"]) * size)
    chosen = written.get("total") or written.get("first")
    if chosen is None:
        rule = "a study that is to be scaled caps images by total, fraction or first"
        raise ConfigError(broken(rule, "per_class"))
    return int(chosen)


def shrink_count(value: int, factor: float, least: float) -> int:
    """A count multiplied and rounded: not below its least, and never more than it was."""
    if not value:
        return 0
    new = max(round(value * factor), round(least), 1)
    return min(value, new)


def _find_value(tree: Any, path: str) -> Any:
    """The value at a dotted path of plain settings, or None."""
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree


# -- sizes of datasets -----------------------------------------------------------------------------


def find_sizes(config: Config) -> tuple[int, int]:
    """Training and test images of a configuration's dataset, which is read if nobody knows them."""
    data = config.resolved()["data"]
    known = find_known_sizes(data)
    if known is not None:
        return known
    return _count_loaded(json.dumps(data), config.data_root or find_data_root())


def find_known_sizes(data: Mapping[str, Any]) -> tuple[int, int] | None:
    """The sizes of a known dataset, or of several that are joined."""
    parts = [find_known_sizes(part) for part in data.get("parts", ())]
    known = [sizes for sizes in parts if sizes is not None]
    if parts and len(known) == len(parts):
        return sum(train for train, _ in known), sum(test for _, test in known)
    return SIZES.get(str(data["name"]))


@lru_cache(maxsize=16)
def _count_loaded(data: str, root: Path) -> tuple[int, int]:
    """The sizes of a dataset that must be read for them."""
    dataset = DATASETS.build(json.loads(data)).load(root)
    return len(dataset.train), len(dataset.test)
