"""Padding, cropping and flipping against torchvision and against their distributions."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rayfl.errors import DataError
from rayfl.learn.augment.crop import CropFlip, Mode, crop_randomly, flip_randomly, pad_images


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def coordinates(n: int, side: int = 16) -> Tensor:
    """Images whose two channels hold 1 + row and 1 + column."""
    down, across = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    return (1 + torch.stack((down, across))).to(torch.uint8).expand(n, -1, -1, -1)


def offsets(crops: Tensor) -> Tensor:
    """(N, 2) row and column that the centre of each crop shows, less its own place."""
    middle = crops.shape[2] // 2
    return crops[:, :, middle, middle].long() - 1 - middle


@pytest.mark.parametrize(("mode", "name"), [("zero", "constant"), ("reflect", "reflect")])
@pytest.mark.parametrize("by", [1, 4, 15])
def test_padding_is_torchvisions(mode: Mode, name: str, by: int) -> None:
    from torchvision.transforms import functional

    x = torch.randint(256, (2, 3, 16, 20), generator=seeded(), dtype=torch.uint8)
    assert torch.equal(pad_images(x, by, mode), functional.pad(x, [by], padding_mode=name))


@pytest.mark.parametrize("mode", ["zero", "reflect"])
def test_each_crop_is_a_window_of_the_padded_image(mode: Mode) -> None:
    x = torch.randint(256, (40, 3, 16, 16), generator=seeded(1), dtype=torch.uint8)
    moved = offsets(crop_randomly(coordinates(40), 4, mode, seeded(2))).tolist()
    wide = pad_images(x, 4, mode)
    expected = [wide[i, :, 4 + a : 20 + a, 4 + b : 20 + b] for i, (a, b) in enumerate(moved)]
    assert torch.equal(crop_randomly(x, 4, mode, seeded(2)), torch.stack(expected))


def test_offsets_are_uniform_and_independent() -> None:
    n, cells = 8100, 81
    moved = offsets(crop_randomly(coordinates(n), 4, "zero", seeded(3))) + 4
    counts = torch.bincount(9 * moved[:, 0] + moved[:, 1], minlength=cells)
    chi_square = ((counts - n / cells) ** 2 / (n / cells)).sum().item()
    # 80 degrees of freedom: mean 80, standard deviation 12.6
    assert len(counts) == cells
    assert 40 < chi_square < 130


@pytest.mark.parametrize("heads", [0.0, 0.5, 1.0])
def test_flip_frequency(heads: float) -> None:
    x = coordinates(4000)
    out = flip_randomly(x, heads, seeded(4))
    flipped = (out == x.flip(-1)).flatten(1).all(1)
    assert ((out == x).flatten(1).all(1) ^ flipped).all()
    assert flipped.double().mean().item() == pytest.approx(
        heads, abs=4 * (heads * (1 - heads) / 4000) ** 0.5
    )


def test_crop_and_flip_together() -> None:
    generator, x = seeded(5), coordinates(10)
    expected = flip_randomly(crop_randomly(x, 4, "zero", generator), 0.5, generator)
    assert torch.equal(CropFlip()(x, seeded(5)), expected)


@pytest.mark.parametrize("by", [16, 40])
def test_reflection_wider_than_the_image_is_refused(by: int) -> None:
    with pytest.raises(
        DataError, match=rf"less than the side of an image \(16x16\); got {by}\. Reduce padding"
    ):
        CropFlip(padding=by, mode="reflect")(coordinates(1), seeded())
