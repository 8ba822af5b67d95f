"""A public set of another dataset than the clients': images at the server whose classes are
nobody's, for methods that let models vote on unlabelled images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.random import Generator

from rayfl.errors import ConfigError, DataError, broken
from rayfl.federation.arrays import Ints, Pixels
from rayfl.federation.dataset import Dataset
from rayfl.federation.datasets import find_data_root
from rayfl.federation.split import Cap, cap_rows

if TYPE_CHECKING:
    from rayfl.federation.plan import FederationPlan

_MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True, eq=False)
class PublicImages:
    """Which images of which dataset: its name, the mapping that loads it, the hash of its content,
    and rows of its training set."""

    name: str
    spec: Mapping[str, Any]
    sha256: str
    rows: Ints


def load_public_dataset(plan: FederationPlan) -> Dataset:
    """The dataset that `public_data` names."""
    assert plan.public_data is not None, "a plan without public_data has no other dataset"
    return plan.public_data.load(plan.data_root or find_data_root())


def draw_public_images(
    plan: FederationPlan,
    dataset: Dataset | None,
    rng: Generator,
) -> PublicImages | None:
    """As many images as `split.public` says, stratified by the other dataset's own classes; None
    for a plan without `public_data`.

    Parameters
    ----------
    plan
        Names the dataset and the amount.
    dataset
        The one that `public_data` names; None loads it.
    rng
        Draws the images.
    """
    if plan.public_data is None:
        return None
    dataset = dataset or load_public_dataset(plan)
    amount = plan.split.public
    assert amount is not None, "a plan with public_data has split.public"
    cap = Cap(fraction=amount.fraction, per_class=amount.per_class, total=amount.total)
    rows = cap_rows(dataset.train.y, dataset.classes, cap, rng, "split.public")
    return PublicImages(dataset.name, plan.recorded()["public_data"], dataset.sha256, rows)


def take_public_images(
    plan: FederationPlan,
    public: PublicImages,
    shape: tuple[int, int, int],
) -> Pixels:
    """The images, in the shape of the clients' own.

    Parameters
    ----------
    plan
        Loads the dataset.
    public
        Which images; a dataset of other content is refused.
    shape
        (height, width, channels) of the clients' images.
    """
    dataset = load_public_dataset(plan)
    if dataset.sha256 != public.sha256:
        rule = f"the public set of this scenario is of '{public.name}', sha256 {public.sha256}"
        raise DataError(broken(rule, f"{dataset.sha256} in '{dataset.name}'"))
    return fit_images(dataset.train.x[public.rows], shape)


def fit_images(x: Pixels, shape: tuple[int, int, int]) -> Pixels:
    """Images of another size or of other channels: grey to colour by repetition, colour to grey by
    luminance, then scaled bilinearly.

    Parameters
    ----------
    x
        Any images.
    shape
        (height, width, channels) that they are to have.
    """
    from PIL import Image

    if x.shape[1:] == shape:
        return x
    height, width, channels = shape
    for number in (x.shape[3], channels):
        if number not in _MODES:
            rule = "public images of another dataset are grey or RGB, as the clients' are"
            raise ConfigError(broken(rule, f"{number} channels"))
    fitted = np.empty((len(x), *shape), np.uint8)
    for at, pixels in enumerate(x):
        picture = Image.fromarray(pixels[..., 0] if x.shape[3] == 1 else pixels)
        scaled = picture.convert(_MODES[channels]).resize(
            (width, height), Image.Resampling.BILINEAR
        )
        fitted[at] = np.asarray(scaled).reshape(shape)
    return fitted
