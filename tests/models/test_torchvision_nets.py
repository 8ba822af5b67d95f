"""torchvision's networks, cut into trunk and head."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rayfl.errors import ConfigError, DataError
from rayfl.models.network import Shape, build_network
from rayfl.models.torchvision_nets import Torchvision, cut_network


@pytest.mark.parametrize(
    ("name", "shape", "width", "head"),
    [
        ("resnet18", (32, 32, 3), 512, "fc."),
        ("mobilenet_v3_small", (32, 32, 3), 1024, "classifier.3."),
        ("shufflenet_v2_x0_5", (32, 32, 3), 1024, "fc."),
        ("densenet121", (32, 32, 3), 1024, "classifier."),
        ("googlenet", (64, 64, 3), 1024, "fc."),
        ("swin_t", (32, 32, 3), 768, "head."),
        ("vit_b_32", (64, 64, 3), 768, "heads.head."),
    ],
)
def test_a_network_is_cut_before_its_last_linear_layer(
    name: str, shape: Shape, width: int, head: str
) -> None:
    network, found = cut_network(name, shape, classes=5)
    assert (network.feature_dim, found) == (width, head)
    x = torch.rand(2, 3, *shape[:2], generator=torch.Generator().manual_seed(0))
    assert network(x).shape == (2, 5)


def test_the_cut_changes_no_logit() -> None:
    from torchvision.models import get_model

    network = build_network(Torchvision(network="resnet18"), (32, 32, 3), 10, seed=5).eval()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(5)
        whole = get_model("resnet18", weights=None, num_classes=10).eval()
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(network(x), whole(x))


@pytest.mark.parametrize(
    ("name", "shape", "rule"),
    [
        ("resnet81", (32, 32, 3), r"no network 'resnet81'. Did you mean 'resnet18'\?"),
        ("fcn_resnet50", (32, 32, 3), "no network 'fcn_resnet50'"),
        ("resnet18", (28, 28, 1), "three channels; got 1 channels. Use cnn4"),
        ("squeezenet1_0", (64, 64, 3), "must end in a linear layer .* got squeezenet1_0"),
        ("vit_b_16", (32, 64, 3), "square images; got 32x64"),
        ("alexnet", (32, 32, 3), "large enough .* 'alexnet'; got 32x32x3"),
    ],
)
def test_what_cannot_be_cut_is_refused(name: str, shape: Shape, rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        cut_network(name, shape, classes=10)


def test_weights_fill_the_trunk_and_leave_the_head_random(tmp_path: Path) -> None:
    from torchvision.models import get_model

    whole = get_model("mobilenet_v3_small", weights=None)
    torch.save({f"backbone.{k}": v for k, v in whole.state_dict().items()}, tmp_path / "weights.pt")
    settings = {
        "network": "mobilenet_v3_small",
        "prefix": "backbone.",
        "weights": str(tmp_path / "weights.pt"),
    }
    loaded = build_network(Torchvision(**settings), (32, 32, 3), 10, seed=1)
    fresh = build_network(Torchvision(network="mobilenet_v3_small"), (32, 32, 3), 10, seed=1)
    assert torch.equal(loaded.state_dict()["head.weight"], fresh.state_dict()["head.weight"])
    given = whole.state_dict()
    assert all(torch.equal(value, given[name]) for name, value in loaded.trunk.state_dict().items())


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    from torchvision.models import get_model

    torch.save(get_model("resnet18", weights=None).state_dict(), tmp_path / "weights.pt")
    spec = Torchvision(network="resnet34", weights=str(tmp_path / "weights.pt"))
    with pytest.raises(
        DataError, match=r"must be those of the network; got \d+ missing \(layer1.2.conv1.weight"
    ):
        spec.build((32, 32, 3), 10)
