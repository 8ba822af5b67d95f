"""Networks and frozen encoders, by name. Importing this room imports no network and no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rayfl.component import Registry

if TYPE_CHECKING:
    from rayfl.models.encoders.base import EncoderSpec
    from rayfl.models.network import Architecture

__all__ = ["ENCODERS", "MODELS"]

MODELS: Registry[Architecture] = Registry(
    "model",
    {
        "cnn4": "rayfl.models.cnn:CNN4",
        "linear": "rayfl.models.mlp:Linear",
        "mlp": "rayfl.models.mlp:MLP",
        "mnist_cnn": "rayfl.models.cnn:MnistCNN",
        "mnist_cnn_wide": "rayfl.models.cnn:MnistCNNWide",
        "mobilenet": "rayfl.models.mobilenet:MobileNet",
        "preact_resnet18": "rayfl.models.preact_resnet:PreActResNet18",
        "resnet10": "rayfl.models.resnet:ResNet10",
        "resnet18": "rayfl.models.resnet:ResNet18",
        "resnet34": "rayfl.models.resnet:ResNet34",
        "resnet50": "rayfl.models.resnet:ResNet50",
        "torchvision": "rayfl.models.torchvision_nets:Torchvision",
        "vgg": "rayfl.models.cnn:VGG",
    },
    plugins="rayfl.models",
)

ENCODERS: Registry[EncoderSpec] = Registry(
    "encoder",
    {
        "augnet": "rayfl.models.encoders.pretrained:AugNet",
        "dino_vits16": "rayfl.models.encoders.dino:DinoViTS16",
        "efficientnet_lite0": "rayfl.models.encoders.efficientnet:EfficientNetLite0",
        "hog": "rayfl.models.encoders.hog:HoG",
        "imagenet_resnet18": "rayfl.models.encoders.pretrained:ImageNetResNet18",
        "pixels": "rayfl.models.encoders.pixels:Pixels",
        "random": "rayfl.models.encoders.random_net:RandomResNet50",
        "simclr": "rayfl.models.encoders.pretrained:SimCLR",
        "state_dict": "rayfl.models.encoders.pretrained:StateDict",
    },
)
