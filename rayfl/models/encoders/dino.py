"""DINO's vision transformer (Caron et al., ICCV 2021), in the layout of its released weights, which
timm shares."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rayfl.component import component
from rayfl.errors import DataError, broken
from rayfl.models.encoders.base import Sight, TorchEncoder
from rayfl.models.network import Shape
from rayfl.models.weight_files import Weights, load_exactly, read_weights, strip_prefix

_HEAD_WIDTH = 64
_EPSILON = 1e-6


@component
class DinoViTS16:
    """The class token of a ViT-S/16: 384 features. Width, depth and patches are read off the file,
    so that its larger siblings load as well. Images are resized to the side for which the positions
    were learnt (224)."""

    path: str
    prefix: str = ""

    def build(self, shape: Shape) -> TorchEncoder:
        weights = strip_prefix(read_weights(self.path), self.prefix, self.path)
        network = _build_transformer(weights, self.path)
        load_exactly(network, weights, self.path, skip=("head.",))
        return TorchEncoder("dino_vits16", network, shape, Sight(network.side))


class VisionTransformer(nn.Module):
    """Patches, a class token, learnt positions, pre-normalised blocks; answers with the class
    token.

    Parameters
    ----------
    width
        The length of a token.
    depth
        How many blocks.
    patch
        The side of a patch, in pixels.
    grid
        How many patches an image is high and wide.
    """

    def __init__(
        self,
        width: int,
        depth: int,
        patch: int,
        grid: int,
    ) -> None:
        super().__init__()
        tokens = 1 + grid * grid
        self.side = patch * grid
        # The attributes are named as the tensors of the released file.
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, tokens, width))
        projection = nn.Conv2d(3, width, patch, patch)
        self.patch_embed = nn.ModuleDict({"proj": projection})
        blocks = [TransformerBlock(width) for _ in range(depth)]
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width, _EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """The class tokens of the images `x`."""
        embedded = self.patch_embed["proj"](x)
        patches = embedded.flatten(2).transpose(1, 2)
        first = self.cls_token.expand(len(x), -1, -1)
        tokens = torch.cat([first, patches], 1) + self.pos_embed
        answer: Tensor = self.norm(self.blocks(tokens))[:, 0]
        return answer


class TransformerBlock(nn.Module):
    """Self-attention, then a hidden layer four times as wide, each added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = 4 * width
        self.norm1 = nn.LayerNorm(width, _EPSILON)
        self.attn = SelfAttention(width)
        self.norm2 = nn.LayerNorm(width, _EPSILON)
        self.mlp = nn.ModuleDict(
            {
                "fc1": nn.Linear(width, hidden),
                "fc2": nn.Linear(hidden, width),
            }
        )

    def forward(self, x: Tensor) -> Tensor:
        """The next tokens after `x`."""
        attended: Tensor = x + self.attn(self.norm1(x))
        active = F.gelu(self.mlp["fc1"](self.norm2(attended)))
        residual: Tensor = self.mlp["fc2"](active)
        return attended + residual


class SelfAttention(nn.Module):
    """Heads of width 64."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """What each token of `x` takes from all."""
        count, length, width = x.shape
        heads = width // _HEAD_WIDTH
        split = self.qkv(x).reshape(count, length, 3, heads, _HEAD_WIDTH)
        # (query, key or value; image; head; token; number)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        joined = mixed.transpose(1, 2).reshape(count, length, width)
        answer: Tensor = self.proj(joined)
        return answer


def _build_transformer(weights: Weights, where: str) -> VisionTransformer:
    """An empty transformer of the size that the weights have."""
    try:
        width = weights["cls_token"].shape[-1]
        patch = weights["patch_embed.proj.weight"].shape[-1]
        positions = weights["pos_embed"].shape[1]
    except KeyError as error:
        rule = "a vision transformer's file must hold its embeddings"
        remedy = "Set `prefix` if the file nests the backbone ('backbone.', 'module.backbone.')"
        raise DataError(broken(rule, f"no {error} in {where}", remedy)) from error
    # One position is the class token's.
    grid = round((positions - 1) ** 0.5)
    blocks = {name.split(".")[1] for name in weights if name.startswith("blocks.")}
    if width % _HEAD_WIDTH:
        rule = f"a transformer's width must divide into heads of {_HEAD_WIDTH}"
        raise DataError(broken(rule, f"{width} in {where}"))
    return VisionTransformer(width, len(blocks), patch, grid)
