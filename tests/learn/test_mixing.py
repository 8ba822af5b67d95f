"""mixup and MixMatch's pieces: shares, mixtures, guesses, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from rayfl.errors import ConfigError, DataError
from rayfl.learn.losses import CrossEntropy
from rayfl.learn.mixing import (
    MixedBatch,
    average_guesses,
    blend_losses,
    draw_share,
    encode_labels,
    mix_batch,
    mix_inputs,
    mix_rows,
    refine_labels,
    sharpen,
    trust_guesses,
)

CE = CrossEntropy()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def batch(n: int = 8, classes: int = 8) -> tuple[Tensor, Tensor]:
    """Inputs that are their own one-hot label, so that a mixture shows its parts."""
    rows = encode_labels(torch.arange(n) % classes, classes)
    return rows.view(n, classes, 1, 1).clone(), rows


# -- the share -------------------------------------------------------------------------------------


@pytest.mark.parametrize("alpha", [0.2, 0.75, 1.0, 4.0])
def test_share_is_a_beta_variate(alpha: float) -> None:
    generator = seeded()
    drawn = [draw_share(alpha, generator) for _ in range(3000)]
    shares = torch.tensor(drawn, dtype=torch.float64)
    variance = 1 / (4 * (2 * alpha + 1))
    assert 0 <= shares.min() <= shares.max() <= 1
    assert shares.mean().item() == pytest.approx(0.5, abs=4 * (variance / 3000) ** 0.5)
    assert shares.var().item() == pytest.approx(variance, rel=0.1)


def test_share_of_the_first_is_the_larger_one() -> None:
    one, other = seeded(), seeded()
    plain = [draw_share(0.75, one) for _ in range(50)]
    larger = [draw_share(0.75, other, at_least_half=True) for _ in range(50)]
    assert larger == [max(share, 1 - share) for share in plain]


def test_alpha_zero_mixes_nothing_and_draws_nothing() -> None:
    x, rows = batch()
    generator = seeded()
    mixed = mix_batch(x, 0.0, generator)
    assert mixed.x is x
    assert mixed.share == 1
    y = torch.arange(8)
    assert torch.equal(mixed.blend_losses(CE, rows, y), CE(rows, y))
    assert mix_rows(x, rows, 0.0, generator) == (x, rows)
    assert torch.equal(generator.get_state(), seeded().get_state())


@pytest.mark.parametrize("alpha", [-0.5, float("inf"), float("nan")])
def test_impossible_alpha_is_refused(alpha: float) -> None:
    with pytest.raises(
        ConfigError, match=r"alpha must be finite and at least 0; got .*switches mixup off"
    ):
        draw_share(alpha, seeded())


# -- mixtures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_inputs_and_rows_are_mixed_alike(seed: int) -> None:
    x, rows = batch()
    mixed_x, mixed_rows = mix_rows(x, rows, 1.0, seeded(seed))
    share = draw_share(1.0, seeded(seed))
    assert torch.equal(mixed_x.flatten(1), mixed_rows)
    torch.testing.assert_close(mixed_rows.sum(1), torch.ones(8))
    own = mixed_rows.diagonal()
    kept_whole = own > 0.999
    assert own[~kept_whole].tolist() == pytest.approx([share] * int((~kept_whole).sum()), abs=1e-6)
    torch.testing.assert_close(mixed_rows.sum(0), torch.ones(8))


def test_both_labels_of_a_mixture_make_the_loss_of_mixed_rows() -> None:
    x, rows = batch(6, 3)
    y = rows.argmax(1)
    mixed = mix_batch(x, 1.0, seeded(3))
    logits = torch.randn(6, 3, generator=seeded(1))
    by_labels = mixed.blend_losses(CE, logits, y)
    _, blended = mix_rows(x, rows, 1.0, seeded(3))
    torch.testing.assert_close(by_labels, CE(logits, blended))
    expected = mixed.share * CE(logits, y) + (1 - mixed.share) * CE(logits, y[mixed.other])
    assert torch.equal(by_labels, expected)


def test_two_batches_are_mixed_as_semifl_does() -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0]])
    loss = blend_losses(CE, logits, torch.tensor([0]), torch.tensor([2]), 0.3)
    assert loss.item() == pytest.approx(1.807606, abs=1e-6)
    x, other = torch.tensor([[1.0]]), torch.tensor([[3.0]])
    assert mix_inputs(x, other, 0.3).item() == pytest.approx(2.4)
    assert mix_inputs(x, other, 1.0) is x


def test_equal_generators_give_equal_mixtures() -> None:
    x, _ = batch()
    one, again, other = (mix_batch(x, 0.5, seeded(seed)) for seed in (4, 4, 5))
    assert torch.equal(one.x, again.x)
    assert torch.equal(one.other, again.other)
    assert not torch.equal(one.x, other.x)


def test_the_larger_part_is_the_images_own() -> None:
    x, _ = batch()
    for seed in range(8):
        mixed: MixedBatch = mix_batch(x, 4.0, seeded(seed), at_least_half=True)
        assert mixed.share >= 0.5
        assert (mixed.x.flatten(1).diagonal() >= mixed.share - 1e-6).all()


def test_a_batch_of_one_is_mixed_with_itself() -> None:
    x = torch.tensor([[0.1, 0.7]])
    assert torch.allclose(mix_batch(x, 1.0, seeded()).x, x)


@pytest.mark.parametrize("rows", [torch.arange(8), F.one_hot(torch.arange(8)), torch.ones(7, 3)])
def test_labels_that_are_not_rows_of_probabilities_are_refused(rows: Tensor) -> None:
    with pytest.raises(
        DataError, match=r"rows of probabilities, one for each of 8 inputs; got torch\.\w+ \("
    ):
        mix_rows(batch()[0], rows, 1.0, seeded())


def test_raw_images_are_refused() -> None:
    raw = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(DataError, match=r"mixup takes float inputs; got torch\.uint8\. Normalise"):
        mix_batch(raw, 1.0, seeded())
    with pytest.raises(DataError, match=r"mixup takes float inputs; got torch\.uint8\. Normalise"):
        mix_inputs(raw.float(), raw, 0.5)


def test_batches_of_two_lengths_are_refused() -> None:
    with pytest.raises(DataError, match=r"what is mixed has one shape; got \(2,\) and \(1,\)"):
        mix_inputs(torch.zeros(2), torch.zeros(1), 0.5)


# -- guesses ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("p", "expected"),
    [
        ([0.5, 0.3, 0.2], [0.657895, 0.236842, 0.105263]),
        ([0.15, 0.825, 0.025], [0.031972, 0.967140, 0.000888]),
        ([0.55, 0.325, 0.125], [0.713864, 0.249263, 0.036873]),
    ],
)
def test_sharpened_rows_in_print(p: list[float], expected: list[float]) -> None:
    assert sharpen(torch.tensor([p]), 0.5)[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_limits_of_sharpening() -> None:
    p = torch.tensor([[0.5, 0.3, 0.2]])
    assert sharpen(p, 1.0) is p
    assert sharpen(p, 1e-4).tolist() == [[1.0, 0.0, 0.0]]
    assert torch.equal(sharpen(torch.eye(3), 0.5), torch.eye(3))
    tiny = torch.tensor([[1e-30, 2e-30]])
    assert sharpen(tiny, 0.5)[0].tolist() == pytest.approx([0.2, 0.8])


@pytest.mark.parametrize("temperature", [0.0, -1.0])
def test_impossible_temperatures_are_refused(temperature: float) -> None:
    with pytest.raises(ConfigError, match="temperature of sharpening must be positive; got"):
        sharpen(torch.ones(1, 2), temperature)


def test_the_guess_of_dividemix() -> None:
    answers = [[0.6, 0.3, 0.1], [0.5, 0.4, 0.1], [0.7, 0.2, 0.1], [0.4, 0.4, 0.2]]
    logits = [torch.tensor([row]).log().requires_grad_() for row in answers]
    guess = average_guesses(logits)
    assert guess[0].tolist() == pytest.approx([0.55, 0.325, 0.125])
    assert not guess.requires_grad


def test_the_refinement_of_dividemix() -> None:
    rows, guess = encode_labels(torch.tensor([1]), 3), torch.tensor([[0.6, 0.3, 0.1]])
    refined = refine_labels(rows, guess, torch.tensor([0.75]))
    assert refined[0].tolist() == pytest.approx([0.15, 0.825, 0.025])
    assert torch.equal(refine_labels(rows, guess, torch.tensor([1.0])), rows)


@pytest.mark.parametrize(
    ("threshold", "expected"), [(0.95, [True, False, True]), (0.0, [True] * 3), (1.1, [False] * 3)]
)
def test_guesses_of_fixmatch(threshold: float, expected: list[bool]) -> None:
    weak = torch.tensor([[4.0, 0.0, 0.0], [1.0, 0.5, 0.0], [0.0, 5.0, 0.0]]).requires_grad_()
    labels, sure = trust_guesses(weak.softmax(1), threshold)
    assert labels.tolist() == [0, 0, 1]
    assert sure.tolist() == expected
    strong = torch.tensor([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0], [2.0, 1.0, 0.0]])
    if threshold == 0.95:
        loss = (CE(strong, labels) * sure).mean()
        assert loss.item() == pytest.approx(0.653017, abs=1e-6)
