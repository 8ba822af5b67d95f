"""Pre-activation ResNet-18 for small images (He et al., ECCV 2016), in the layouts that noisy-label
papers use."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from rayfl.component import component
from rayfl.models.blocks import build_conv_block, build_global_pooling, choose_norm
from rayfl.models.network import Network, Shape, add_linear_head
from rayfl.models.norm import Norm

_WIDTHS = (64, 128, 256, 512)


@component
class PreActResNet18:
    """A 3x3 stem, four stages of two blocks, average pooling.

    `stem_norm=True, final_norm=False` is the layout of CTRR's released code (Yi et al., CVPR 2022);
    the default is the canonical one, which normalises once more before pooling."""

    stem_norm: bool = False
    final_norm: bool = True
    norm: Norm = "batch"
    track_running_stats: bool = True

    def build(self, shape: Shape, classes: int) -> Network:
        norm = choose_norm(self.norm, self.track_running_stats)
        stem = nn.Conv2d(shape[2], _WIDTHS[0], 3, padding=1, bias=False)
        layers: list[nn.Module] = build_conv_block(stem, norm) if self.stem_norm else [stem]
        for inputs, outputs in zip((_WIDTHS[0], *_WIDTHS), _WIDTHS, strict=False):
            layers += [_PreActBlock(inputs, outputs, norm), _PreActBlock(outputs, outputs, norm)]
        if self.final_norm:
            layers += [norm(_WIDTHS[-1]), nn.ReLU(inplace=True)]
        trunk = nn.Sequential(*layers, *build_global_pooling())
        _draw_he_normal(trunk)
        return add_linear_head(trunk, _WIDTHS[-1], classes)


class _PreActBlock(nn.Module):
    """Normalise, activate, convolve, twice; where the width grows, the stride is 2 and a 1x1
    convolution of the activated input is the shortcut."""

    def __init__(self, inputs: int, outputs: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        stride = 1 if inputs == outputs else 2
        self.norm1 = norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = None if stride == 1 else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        carried: Tensor = x if self.shortcut is None else self.shortcut(active)
        inner: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return inner + carried


def _draw_he_normal(module: nn.Module) -> None:
    """Draw every convolution from He's normal distribution over the fan-out."""
    for part in module.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
