"""Changes of colour against torchvision's own, image by image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from rayfl.learn.augment import colour


def photos(n: int = 6, channels: int = 3, seed: int = 0) -> Tensor:
    coarse = torch.rand(n, channels, 5, 5, generator=torch.Generator().manual_seed(seed))
    fine = torch.nn.functional.interpolate(coarse, (24, 24), mode="bicubic")
    return (30 + 200 * fine.clamp(0, 1)).to(torch.uint8)


def each(x: Tensor, amounts: Tensor, operation: Callable[..., Any]) -> Tensor:
    """torchvision's operation on one image after the other."""
    return torch.stack(
        [operation(image, amount) for image, amount in zip(x, amounts.tolist(), strict=True)]
    )


def torchvisions(name: str) -> Callable[..., Any]:
    from torchvision.transforms import functional

    operation: Callable[..., Any] = getattr(functional, name)
    return operation


DYADIC = torch.tensor([0.0, 0.5, 0.75, 1.0, 1.25, 2.0])
DECIMAL = torch.tensor([0.6, 0.7, 0.9, 1.1, 1.3, 1.4])
BLENDS: list[tuple[Callable[[Tensor, Tensor], Tensor], str]] = [
    (colour.change_brightness, "adjust_brightness"),
    (colour.change_contrast, "adjust_contrast"),
    (colour.change_saturation, "adjust_saturation"),
    (colour.change_sharpness, "adjust_sharpness"),
]


@pytest.mark.parametrize(("ours", "theirs"), BLENDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_blends_of_uint8(
    ours: Callable[[Tensor, Tensor], Tensor], theirs: str, channels: int
) -> None:
    x = photos(channels=channels)
    # torchvision takes a contrast's mean in another order, which may move a value across a whole
    # number
    near = (ours(x, DYADIC).int() - each(x, DYADIC, torchvisions(theirs)).int()).abs()
    assert near.max() <= 1
    assert near.float().mean() < 1e-3
    roughly = (ours(x, DECIMAL).int() - each(x, DECIMAL, torchvisions(theirs)).int()).abs()
    assert roughly.max() <= 1
    assert roughly.float().mean() < 0.02


@pytest.mark.parametrize(("ours", "theirs"), BLENDS)
@pytest.mark.parametrize("channels", [1, 3])
def test_blends_of_floats(
    ours: Callable[[Tensor, Tensor], Tensor], theirs: str, channels: int
) -> None:
    x = photos(channels=channels).float()
    expected = 255 * each(x / 255, DECIMAL, torchvisions(theirs))
    torch.testing.assert_close(ours(x, DECIMAL), expected, rtol=0, atol=2e-3)


@pytest.mark.parametrize(("ours", "theirs"), BLENDS)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_factor_one_leaves_every_bit(
    ours: Callable[[Tensor, Tensor], Tensor], theirs: str, dtype: torch.dtype
) -> None:
    x = photos().to(dtype)
    assert torch.equal(ours(x, torch.ones(6)), x)


@pytest.mark.parametrize("turns", [[0.1, -0.1, 0.03, -0.07, 0.5, -0.5], [0.0] * 6])
def test_hue(turns: list[float]) -> None:
    x, turn = photos().float(), torch.tensor(turns)
    expected = 255 * each(x / 255, turn, torchvisions("adjust_hue"))
    torch.testing.assert_close(colour.turn_hue(x, turn), expected, rtol=0, atol=0.01)


def test_hue_of_grey_and_saturated_colours() -> None:
    x = torch.tensor(
        [[0.0, 0, 0], [255, 255, 255], [80, 80, 80], [255, 0, 0], [0, 255, 0], [0, 0, 255]]
    )
    third = colour.turn_hue(x.view(6, 3, 1, 1), torch.full((6,), 1 / 3)).view(6, 3)
    expected = torch.cat((x[:3], x[[4, 5, 3]]))
    torch.testing.assert_close(third, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("change", [colour.change_saturation, colour.turn_hue])
def test_one_channel_has_no_colour(change: Callable[[Tensor, Tensor], Tensor]) -> None:
    x = photos(channels=1)
    assert torch.equal(change(x, torch.full((6,), 0.3)), x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_grey(dtype: torch.dtype) -> None:
    x = photos().to(dtype)
    torch.testing.assert_close(colour.make_grey(x), torchvisions("rgb_to_grayscale")(x))
    assert torch.equal(colour.make_grey(colour.make_grey(x)), colour.make_grey(x))


@pytest.mark.parametrize("bits", range(1, 9))
def test_posterize(bits: int) -> None:
    x = photos()
    out = colour.posterize(x, torch.full((6,), float(bits)))
    assert torch.equal(out, torchvisions("posterize")(x, bits) if bits < 8 else x)


@pytest.mark.parametrize("threshold", [0.0, 127.5, 170.0, 255.0])
def test_solarize(threshold: float) -> None:
    x = photos()
    assert torch.equal(
        colour.solarize(x, torch.full((6,), threshold)), torchvisions("solarize")(x, threshold)
    )


def odd_images() -> Tensor:
    """Constant, two-valued, black, white and full-range images next to ordinary ones."""
    x = torch.cat((photos(seed=1), photos(seed=2)))
    x[0], x[1], x[2] = 90, 0, 255
    x[3, 0] = 17
    x[4] = torch.where(x[4] > 128, 200, 199).to(torch.uint8)
    x[5, :, 0, 0], x[5, :, 1, 1] = 0, 255
    return x


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(colour.stretch_contrast, "autocontrast"), (colour.equalize, "equalize")],
    ids=["auto", "equal"],
)
@pytest.mark.parametrize("channels", [1, 3])
def test_histogram_operations(ours: Callable[[Tensor], Tensor], theirs: str, channels: int) -> None:
    x = odd_images()[:, :channels]
    expected = torch.stack([torchvisions(theirs)(image) for image in x])
    assert torch.equal(ours(x), expected)


@pytest.mark.parametrize(
    "change",
    [
        colour.change_brightness,
        colour.change_contrast,
        colour.change_saturation,
        colour.change_sharpness,
        colour.turn_hue,
    ],
)
def test_each_image_has_its_own_amount(change: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, amount = photos().float(), torch.linspace(0.05, 0.4, 6)
    alone = torch.cat([change(x[i : i + 1], amount[i : i + 1]) for i in range(6)])
    assert torch.equal(change(x, amount), alone)


def test_sharpness_leaves_tiny_images() -> None:
    x = photos()[:, :, :2, :2]
    assert torch.equal(colour.change_sharpness(x, torch.full((6,), 0.3)), x)
