"""RandAugment and Cutout: each operation against torchvision's, and how they are drawn."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rayfl.errors import ConfigError, DataError
from rayfl.learn.augment import strong
from rayfl.learn.augment.strong import (
    OPERATIONS,
    SIGNED,
    TOP,
    Strong,
    apply_random_operation_,
    cut_out_squares,
)

TORCHVISION_NAMES = {
    "identity": "Identity",
    "shear_x": "ShearX",
    "shear_y": "ShearY",
    "translate_x": "TranslateX",
    "translate_y": "TranslateY",
    "rotate": "Rotate",
    "brightness": "Brightness",
    "colour": "Color",
    "contrast": "Contrast",
    "sharpness": "Sharpness",
    "posterize": "Posterize",
    "solarize": "Solarize",
    "autocontrast": "AutoContrast",
    "equalize": "Equalize",
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def photos(n: int, height: int = 32, width: int = 32) -> Tensor:
    coarse = torch.rand(n, 3, 5, 5, generator=seeded(1))
    fine = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")
    return (255 * fine.clamp(0, 1)).to(torch.uint8)


def torchvisions(x: Tensor, name: str, magnitude: int, sign: int) -> Tensor:
    """One operation of torchvision's RandAugment at one of its 31 magnitudes."""
    from torchvision.transforms import InterpolationMode, RandAugment
    from torchvision.transforms.autoaugment import _apply_op

    height, width = x.shape[2:]
    space = RandAugment()._augmentation_space(TOP + 1, (height, width))
    magnitudes, signed = space[name]
    value = float(magnitudes[magnitude]) if magnitudes.ndim else 0.0
    out: Tensor = _apply_op(
        x, name, sign * value if signed else value, InterpolationMode.NEAREST, None
    )
    return out


def test_the_operations_are_torchvisions() -> None:
    from torchvision.transforms import RandAugment

    space = RandAugment()._augmentation_space(TOP + 1, (32, 32))
    assert set(TORCHVISION_NAMES) == set(OPERATIONS)
    assert set(TORCHVISION_NAMES.values()) == set(space)
    assert {ours for ours, theirs in TORCHVISION_NAMES.items() if space[theirs][1]} == SIGNED


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("magnitude", [0, 7, 10, 30])
@pytest.mark.parametrize("sign", [1, -1])
def test_each_operation_is_torchvisions(name: str, magnitude: int, sign: int) -> None:
    x = photos(3, 32, 36)
    strength = torch.full((3,), magnitude / TOP * (sign if name in SIGNED else 1))
    ours = OPERATIONS[name](x, strength)
    theirs = torch.cat(
        [torchvisions(image[None], TORCHVISION_NAMES[name], magnitude, sign) for image in x]
    )
    assert ours.dtype == torch.uint8
    if name in ("brightness", "colour", "contrast", "sharpness"):
        assert (ours.int() - theirs.int()).abs().max() <= 1
    elif name in ("rotate", "shear_x", "shear_y"):
        assert (ours == theirs).float().mean() > 0.99
    else:
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("name", ["shear_x", "shear_y", "translate_x", "translate_y", "rotate"])
def test_images_in_a_group_keep_their_own_strength(name: str) -> None:
    x, strength = photos(4), torch.tensor([-1.0, -0.2, 0.4, 1.0])
    alone = torch.cat([OPERATIONS[name](x[i : i + 1], strength[i : i + 1]) for i in range(4)])
    assert torch.equal(OPERATIONS[name](x, strength), alone)


def test_every_operation_is_equally_likely(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = {name: lambda x, s, k=k: torch.full_like(x, k) for k, name in enumerate(OPERATIONS)}
    monkeypatch.setattr(strong, "OPERATIONS", marks)
    n = 14_000
    x = torch.zeros(n, 1, 1, 1)
    apply_random_operation_(x, 10, 10, seeded())
    counts = torch.bincount(x.flatten().long())
    assert counts.tolist() == pytest.approx([1000] * 14, abs=4 * (n * 13 / 14**2) ** 0.5)


@pytest.mark.parametrize(("least", "most"), [(10, 10), (2, 5), (0, 30)])
def test_strengths_and_signs(monkeypatch: pytest.MonkeyPatch, least: int, most: int) -> None:
    seen: dict[str, Tensor] = {}

    def record(name: str, x: Tensor, strength: Tensor) -> Tensor:
        seen[name] = strength
        return x

    spies = {name: lambda x, s, name=name: record(name, x, s) for name in OPERATIONS}
    monkeypatch.setattr(strong, "OPERATIONS", spies)
    apply_random_operation_(torch.zeros(30_000, 1, 1, 1), least, most, seeded())
    allowed = {round(m / TOP, 5) for m in range(least, most + 1)}
    for name, strength in seen.items():
        assert {round(s, 5) for s in torch.unique(strength.abs()).tolist()} == allowed
        share = (strength < 0).double().mean().item()
        if name in SIGNED and least > 0:
            assert share == pytest.approx(0.5, abs=0.05)
        elif name not in SIGNED:
            assert share == 0


@pytest.mark.parametrize("side", [1, 8, 16, 31])
def test_cutout_is_a_grey_square_cut_off_at_the_border(side: int) -> None:
    cut = cut_out_squares(torch.zeros(3000, 1, 32, 32, dtype=torch.uint8), side, seeded())
    assert set(torch.unique(cut).tolist()) == {0, 127}
    heights = (cut[:, 0] == 127).any(2).sum(1)
    widths = (cut[:, 0] == 127).any(1).sum(1)
    assert torch.equal((cut == 127).flatten(1).sum(1), heights * widths)
    assert heights.max() == widths.max() == side
    assert heights.min() == side - side // 2


def test_cutout_centres_are_uniform() -> None:
    cut = cut_out_squares(torch.zeros(6400, 1, 8, 8), 1, seeded())
    counts = (cut == 127).sum((0, 1)).flatten()
    assert counts.sum() == 6400
    assert 30 < ((counts - 100) ** 2 / 100).sum().item() < 110


@pytest.mark.parametrize("cutout", [0, 16])
def test_only_cutout_is_left_when_the_rest_is_off(cutout: int) -> None:
    x = photos(8)
    out = Strong(n=0, cutout=cutout, padding=0, flip=0)(x, seeded())
    changed = (out != x).any(1).flatten(1).sum(1)
    assert changed.max() <= cutout**2
    assert bool((changed > 0).all()) == (cutout > 0)


@pytest.mark.parametrize("side", [32, 33])
def test_the_square_of_32_pixels_is_the_usual_one(side: int) -> None:
    x = photos(16, side, side)
    assert torch.equal(Strong()(x, seeded()), Strong(cutout=16)(x, seeded()))


@pytest.mark.parametrize("shape", [(8, 8), (8, 20), (28, 28)])
def test_the_square_leaves_something_of_a_small_image(shape: tuple[int, int]) -> None:
    x = torch.zeros(400, 1, *shape, dtype=torch.uint8)
    cut = Strong(n=0, padding=0, flip=0)(x, seeded())
    covered = (cut == 127).flatten(1).sum(1)
    assert covered.min() > 0
    assert covered.max() == (min(shape) // 2) ** 2


@pytest.mark.parametrize("cutout", [8, 16])
def test_a_square_as_large_as_the_image_is_refused(cutout: int) -> None:
    digits = torch.zeros(2, 1, 8, 10, dtype=torch.uint8)
    rule = rf"strong.cutout is less than the shorter side of the images \(8\); got {cutout}. Lower"
    with pytest.raises(DataError, match=rule):
        Strong(cutout=cutout)(digits, seeded())
    assert Strong(cutout=7)(digits, seeded()).shape == digits.shape


def test_float_images_are_rounded_to_levels() -> None:
    x = photos(8)
    assert torch.equal(Strong()(x.float() + 0.4, seeded()), Strong()(x, seeded()))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_given_images_are_not_written_to(dtype: torch.dtype) -> None:
    x = photos(32).to(dtype)
    before = x.clone()
    out = Strong(padding=0, flip=0)(x, seeded())
    assert torch.equal(x, before)
    assert not torch.equal(out, before.float())


def test_more_operations_change_more() -> None:
    x = photos(64)
    changed = [
        (Strong(n=n, m=20, cutout=0, padding=0, flip=0)(x, seeded()) - x).abs().mean().item()
        for n in (0, 1, 2, 4)
    ]
    assert changed[0] == 0
    assert changed == sorted(changed)


def test_least_above_m_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"strong.least must not exceed strong.m \(10\); got 11"):
        Strong(least=11)
