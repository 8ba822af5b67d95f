"""mixup: the mixing share's distribution, the mixture itself, what it refuses."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.errors import ConfigError, DataError
from rayfl.learn.augment.mixup import mixing_share, mixup


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(n: int = 8, classes: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs that are their own one-hot label, so that a mixture shows its parts."""
    y = F.one_hot(torch.arange(n) % classes, classes).float()
    return y.view(n, classes, 1, 1).clone(), y


@pytest.mark.parametrize("alpha", [0.2, 0.75, 1.0, 4.0])
def test_share_is_a_beta_variate(alpha: float) -> None:
    generator = seeded()
    shares = torch.tensor(
        [mixing_share(alpha, generator) for _ in range(3000)], dtype=torch.float64
    )
    variance = 1 / (4 * (2 * alpha + 1))
    assert 0 <= shares.min() <= shares.max() <= 1
    assert shares.mean().item() == pytest.approx(0.5, abs=4 * (variance / 3000) ** 0.5)
    assert shares.var().item() == pytest.approx(variance, rel=0.1)


@pytest.mark.parametrize("seed", range(5))
def test_inputs_and_labels_are_mixed_alike(seed: int) -> None:
    x, y = batch()
    mixed_x, mixed_y = mixup(x, y, 1.0, seeded(seed))
    share = mixing_share(1.0, seeded(seed))
    assert torch.equal(mixed_x.flatten(1), mixed_y)
    torch.testing.assert_close(mixed_y.sum(1), torch.ones(8))
    own = mixed_y.diagonal()
    kept_whole = own > 0.999
    assert own[~kept_whole].tolist() == pytest.approx([share] * int((~kept_whole).sum()), abs=1e-6)
    torch.testing.assert_close(mixed_y.sum(0), torch.ones(8))


def test_cross_entropy_of_mixed_labels_is_the_mixture_of_cross_entropies() -> None:
    x, y = batch(6, 3)
    _, mixed = mixup(x, y, 1.0, seeded(3))
    generator = seeded(3)
    share = mixing_share(1.0, generator)
    other = torch.randperm(6, generator=generator)
    logits = torch.randn(6, 3, generator=seeded(1))
    expected = share * F.cross_entropy(logits, y.argmax(1)) + (1 - share) * F.cross_entropy(
        logits, y.argmax(1)[other]
    )
    torch.testing.assert_close(F.cross_entropy(logits, mixed), expected)


def test_alpha_zero_mixes_nothing_and_draws_nothing() -> None:
    x, y = batch()
    generator = seeded()
    mixed_x, mixed_y = mixup(x, y, 0.0, generator)
    assert torch.equal(mixed_x, x)
    assert torch.equal(mixed_y, y)
    assert torch.equal(generator.get_state(), seeded().get_state())


def test_equal_generators_give_equal_mixtures() -> None:
    x, y = batch()
    assert all(
        torch.equal(*pair)
        for pair in zip(mixup(x, y, 0.5, seeded(4)), mixup(x, y, 0.5, seeded(4)), strict=True)
    )
    assert not torch.equal(mixup(x, y, 0.5, seeded(4))[0], mixup(x, y, 0.5, seeded(5))[0])


@pytest.mark.parametrize("alpha", [-0.5, float("inf"), float("nan")])
def test_impossible_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(
        ConfigError, match=r"alpha must be finite and at least 0; got .*switches mixup off"
    ):
        mixing_share(alpha, seeded())


@pytest.mark.parametrize("y", [torch.arange(8), F.one_hot(torch.arange(8)), torch.ones(7, 3)])
def test_labels_that_are_not_rows_of_probabilities_are_refused(y: Tensor) -> None:
    with pytest.raises(
        DataError, match=r"rows of probabilities, one for each of 8 inputs; got torch\.\w+ \("
    ):
        mixup(batch()[0], y, 1.0, seeded())


def test_raw_images_are_refused() -> None:
    with pytest.raises(DataError, match=r"mixup takes float inputs; got torch\.uint8\. Normalise"):
        mixup(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.ones(2, 1), 1.0, seeded())
