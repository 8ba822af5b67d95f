"""What the tests of local k similarity share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rayfl.component import component
from rayfl.config.schema import Config
from rayfl.federation.scenario import open_federation
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.inline import InlineFleet
from rayfl.models.encoders.base import Sight, TorchEncoder
from rayfl.models.network import Shape
from rayfl.run.assembly import build_holdings, build_spec
from rayfl.run.features import share_features
from tests.algorithms.conformance import Row, toy_config


@component
class TinyEncoder:
    """One fixed random convolution: a torch encoder that takes images of any size."""

    seed: int = 0

    def build(self, shape: Shape) -> TorchEncoder:
        convolution = nn.Conv2d(3, 8, 3, bias=False)
        with torch.no_grad():
            convolution.weight.normal_(generator=torch.Generator().manual_seed(self.seed))
        network = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        return TorchEncoder(
            f"tiny {self.seed}", network, shape, Sight(mean=(0.5,) * 3, std=(0.25,) * 3)
        )


TINY = {"name": f"{__name__}:TinyEncoder"}


METHOD = {"name": "local_k_similarity", "encoder": "pixels"}


BATCH = {"name": "local_k_similarity", "encoder": TINY, "view": "batch"}


def toy(method: Mapping[str, Any], folder: Path, **more: Any) -> Config:
    """The toy configuration with another method."""
    return toy_config(Row("toy", method, config=more), folder)


def fleet_of(config: Config, place: str = "inline") -> tuple[BaseFleet, str, Shape]:
    """The fleet of a configuration, with the hash of its dataset and the shape of its images."""
    dataset, scenario = open_federation(config, config.seeds_for("data"))
    holdings, spec = (
        build_holdings(config, dataset, scenario),
        build_spec(config, dataset, scenario, "cpu"),
    )
    shape, sha256 = dataset.shape, scenario.dataset.sha256
    if place == "inline":
        return InlineFleet(spec, holdings), sha256, shape
    import ray

    from rayfl.fleet.on_ray.hiring import Hiring
    from rayfl.fleet.on_ray.placement import Placement
    from rayfl.fleet.on_ray.ray_fleet import RayFleet

    hiring = Hiring(ray.put(spec), ray.put(holdings), Placement(actors=3, cpus=0.5))
    return RayFleet(spec, holdings, hiring), sha256, shape


def shared(fleet: BaseFleet, config: Config, sha256: str, shape: Shape, root: Path) -> list[str]:
    """Give the fleet the features that the method asks for; what was said on the way."""
    said: list[str] = []
    share_features(config.method, fleet, sha256, shape, root, said.append)
    return said


def constraint(z: Tensor, reference: Tensor, k: int, temperature: float, self_in: bool) -> Tensor:
    """Eq. 2 for every image, written with loops and Euclidean distances."""
    z = z / z.norm(dim=1, keepdim=True)
    unit = reference / reference.norm(dim=1, keepdim=True)
    losses = []
    for j in range(len(z)):
        others = [i for i in range(len(z)) if i != j]
        distance = (unit - unit[j]).norm(dim=1)
        nearest = sorted(others, key=distance.tolist().__getitem__)[:k]
        pull = sum(torch.exp(z[j] @ z[i] / temperature) for i in nearest)
        whole = sum(
            torch.exp(z[j] @ z[i] / temperature) for i in (range(len(z)) if self_in else others)
        )
        losses.append(-torch.log(torch.as_tensor(pull / whole)))
    return torch.stack(losses)
