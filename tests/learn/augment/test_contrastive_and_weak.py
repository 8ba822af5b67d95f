"""The gentle views: what they are made of, how often and in which order."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torch import Tensor

from rayfl.learn.augment import views
from rayfl.learn.augment.colour import make_grey
from rayfl.learn.augment.crop import CropFlip
from rayfl.learn.augment.resize import ResizeCrop
from rayfl.learn.augment.views import Contrastive, Weak, jitter_colours_

CHANGES = ("change_brightness", "change_contrast", "change_saturation", "turn_hue")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def noise(n: int, side: int = 4) -> Tensor:
    return torch.randint(256, (n, 3, side, side), generator=seeded(1), dtype=torch.uint8)


def share_changed(x: Tensor, out: Tensor) -> float:
    return (out != x).flatten(1).any(1).double().mean().item()


def colours_only(jitter: float = 0.0, greyscale: float = 0.0) -> Contrastive:
    return Contrastive(scale=(1, 1), ratio=(1, 1), flip=0, jitter=jitter, greyscale=greyscale)


@pytest.mark.parametrize("jitter", [0.0, 0.8, 1.0])
def test_share_of_jittered_images(jitter: float) -> None:
    x = noise(3000)
    expected = pytest.approx(jitter, abs=4 * (jitter * (1 - jitter) / 3000) ** 0.5)
    assert share_changed(x, colours_only(jitter=jitter)(x, seeded())) == expected


@pytest.mark.parametrize("greyscale", [0.0, 0.2, 1.0])
def test_share_of_grey_images(greyscale: float) -> None:
    x = noise(3000)
    out = colours_only(greyscale=greyscale)(x, seeded())
    greyed = (out == out[:, :1]).flatten(1).all(1)
    expected = pytest.approx(greyscale, abs=4 * (greyscale * (1 - greyscale) / 3000) ** 0.5)
    assert greyed.double().mean().item() == expected
    torch.testing.assert_close(out[greyed], make_grey(x[greyed].float()).expand(-1, 3, -1, -1))
    assert torch.equal(out[~greyed], x[~greyed].float())


def test_geometry_is_that_of_the_resized_crop() -> None:
    x = noise(16)
    plain = Contrastive(jitter=0, greyscale=0)(x, seeded())
    assert torch.equal(plain, ResizeCrop(scale=(0.2, 1.0))(x, seeded()))


@pytest.mark.parametrize("jitter", [0.5, 1.0])
def test_colours_change_after_the_crop(jitter: float) -> None:
    x = noise(16)
    weightless = Contrastive(
        jitter=jitter, brightness=0, contrast=0, saturation=0, hue=0, greyscale=0
    )
    plain = ResizeCrop(scale=(0.2, 1.0))(x, seeded())
    torch.testing.assert_close(weightless(x, seeded()), plain, rtol=0, atol=0.01)


def test_each_image_draws_its_own_order_of_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    for digit, name in enumerate(CHANGES, start=1):
        monkeypatch.setattr(views, name, lambda x, amount, digit=digit: 10 * x + digit)
    n = 4800
    x = torch.zeros(n, 3, 1, 1)
    jitter_colours_(x, torch.ones(n, dtype=torch.bool), (0.4, 0.4, 0.4, 0.1), seeded())
    seen, counts = torch.unique(x[:, 0].flatten().long(), return_counts=True)
    assert set(seen.tolist()) == {int("".join(order)) for order in permutations("1234")}
    assert counts.tolist() == pytest.approx([200] * 24, abs=4 * 200**0.5)


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("change_brightness", 0.6, 1.4),
        ("change_contrast", 0.6, 1.4),
        ("change_saturation", 0.6, 1.4),
        ("turn_hue", -0.1, 0.1),
    ],
)
def test_amounts_are_uniform(
    monkeypatch: pytest.MonkeyPatch, name: str, low: float, high: float
) -> None:
    seen: list[Tensor] = []

    def record(x: Tensor, amount: Tensor) -> Tensor:
        seen.append(amount)
        return x

    monkeypatch.setattr(views, name, record)
    jitter_colours_(
        torch.zeros(4000, 3, 1, 1),
        torch.ones(4000, dtype=torch.bool),
        (0.4, 0.4, 0.4, 0.1),
        seeded(),
    )
    amounts = torch.cat(seen)
    assert len(amounts) == 4000
    assert low <= amounts.min() <= amounts.max() <= high
    assert amounts.mean().item() == pytest.approx(
        (low + high) / 2, abs=4 * (high - low) / (12 * 4000) ** 0.5
    )
    assert amounts.var().item() == pytest.approx((high - low) ** 2 / 12, rel=0.1)


@pytest.mark.parametrize("flip", [0.0, 0.5])
def test_weak_is_a_reflected_crop_and_flip(flip: float) -> None:
    x = noise(16, 16)
    assert torch.equal(
        Weak(flip=flip)(x, seeded()), CropFlip(mode="reflect", flip=flip)(x, seeded())
    )


@pytest.mark.parametrize("flip", [0.0, 0.5])
def test_weak_of_ctrr_is_a_resized_crop(flip: float) -> None:
    x = noise(16, 16)
    expected = ResizeCrop(scale=(0.08, 1.0), flip=flip)(x, seeded())
    assert torch.equal(Weak(flip=flip, ctrr=True)(x, seeded()), expected)
