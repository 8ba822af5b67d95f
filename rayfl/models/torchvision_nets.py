"""torchvision's classification networks by name, cut into trunk and head."""

from __future__ import annotations

from typing import Any

from torch import nn

from rayfl.component import component
from rayfl.errors import ConfigError, broken, suggest_nearest
from rayfl.models.network import Network, Shape, measure_features
from rayfl.models.weight_files import find_weights, load_exactly, strip_prefix


@component
class Torchvision:
    """Any network that `torchvision.models` can build and that ends in a linear layer.

    `weights` is "imagenet" or a file in torchvision's layout, below `prefix`; the head stays
    random."""

    network: str
    weights: str | None = None
    prefix: str = ""

    def build(self, shape: Shape, classes: int) -> Network:
        network, head_name = cut_network(self.network, shape, classes)
        if self.weights is not None:
            source = find_weights(self.weights, self.network)
            given = strip_prefix(source, self.prefix, self.weights)
            load_exactly(network.trunk, given, self.weights, skip=(head_name,))
        return network


def cut_network(
    name: str,
    shape: Shape,
    classes: int,
) -> tuple[Network, str]:
    """A new torchvision network whose last linear layer has become the head, and the name which
    that layer had.

    Parameters
    ----------
    name
        What torchvision calls it.
    shape
        (height, width, channels) of the images.
    classes
        How many logits it answers.
    """
    whole = _build_whole(name, shape, classes)
    head_name = ""
    head: nn.Linear | None = None
    for path, part in whole.named_modules():
        if isinstance(part, nn.Linear):
            head_name, head = path, part
    if head is None or head.out_features != classes:
        rule = "a network must end in a linear layer to be cut into trunk and head"
        remedy = "Choose another one, or write a component that splits it"
        raise ConfigError(broken(rule, name, remedy))
    parent, _, attribute = head_name.rpartition(".")
    setattr(whole.get_submodule(parent), attribute, nn.Identity())
    # Something behind it would change the width, or the layer was not the last to run.
    if measure_features(whole, shape, name) != head.in_features:
        raise ConfigError(broken("the last linear layer of a network must be what ends it", name))
    return Network(whole, head, head.in_features), f"{head_name}."


def _build_whole(
    name: str,
    shape: Shape,
    classes: int,
) -> nn.Module:
    """The whole torchvision network with random weights."""
    from torchvision import models

    known = models.list_models(module=models)
    if name not in known:
        hint = suggest_nearest(name, known)
        names = ", ".join(known)
        raise ConfigError(f"torchvision has no network '{name}'. {hint} Known: {names}")
    if shape[2] != 3:
        rule = f"torchvision's '{name}' takes three channels"
        remedy = (
            "Use cnn4, vgg, mobilenet or a resnet, which take any number, or turn the images to RGB"
        )
        raise ConfigError(broken(rule, f"{shape[2]} channels", remedy))
    settings = _choose_settings(name, shape)
    network: nn.Module = models.get_model(
        name,
        weights=None,
        num_classes=classes,
        **settings,
    )
    return network


def _choose_settings(name: str, shape: Shape) -> dict[str, Any]:
    """What single families must be told to take these images and to answer with logits alone."""
    if name in ("googlenet", "inception_v3"):
        return {"aux_logits": False, "init_weights": True}
    if not name.startswith(("vit_", "maxvit")):
        return {}
    height, width, _ = shape
    if height != width:
        rule = f"torchvision's '{name}' takes square images"
        raise ConfigError(broken(rule, f"{height}x{width}"))
    if name.startswith("vit_"):
        return {"image_size": height}
    return {"input_size": (height, width)}
