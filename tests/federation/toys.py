"""A made-up dataset of any size, and settings that the tests of scenarios share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rayfl.component import component
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.interfaces import Corruption, Truth
from rayfl.federation.plan import FederationPlan
from rayfl.federation.scenario import Scenario, build_scenario

SYMMETRIC = {"name": "symmetric", "rate": 0.4}
SERVER = {"public": 0.1, "validation": {"per_class": 5}, "labelled": {"per_class": 10}}


@component
class Toy:
    """Balanced classes in random order; the pixel is the label, so that a noise model can be seen
    to look at it."""

    samples: int = 1000
    classes: int = 10

    def load(self, root: Path) -> Dataset:
        y = np.random.default_rng(0).permutation(np.arange(self.samples) % self.classes)
        images = Images(y.astype(np.uint8).reshape(-1, 1, 1, 1), y)
        return Dataset("toy", images, images, tuple(f"c{i}" for i in range(self.classes)))


@component
class Peeking:
    """A user's own noise that reads pixels; `shift` moves the label that they show, `extra` adds
    clients."""

    shift: int = 0
    extra: int = 0
    dtype: str = "int64"

    def corrupt(self, truth: Truth, rng: np.random.Generator) -> Corruption:
        shown = truth.images()[:, 0, 0, 0].astype(self.dtype)
        return Corruption(shown + self.shift, np.full(truth.clients + self.extra, np.nan))


def build_toy(seed: int = 0, **settings: Any) -> Scenario:
    plan = FederationPlan.model_validate({"data": Toy(), **settings})
    return build_scenario(plan, plan.data.load(Path()), seed)


def save_toy(directory: Path, **settings: Any) -> Scenario:
    scenario = build_toy(**settings)
    scenario.save(directory)
    return scenario
