"""What a place keeps, and how pixels become input."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfl.errors import RayflError
from rayfl.learn.batches import Batch
from rayfl.learn.fit import carry_out
from rayfl.learn.learner import Learner, Passes, _affine, draw_seed
from rayfl.learn.local_fit import Fit
from rayfl.learn.resident import LARGE
from rayfl.learn.training import LocalTraining, Normalisation
from tests.learn.toys import client, conv_net, dropout_net, learner, linear_net, seeded, start

IMAGES = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 2), dtype=np.uint8)


def wide_net() -> nn.Module:
    """So many numbers that they are given away instead of copied."""
    hidden = LARGE // 128
    return seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(128, hidden), nn.Linear(hidden, 3)))


# -- residents -------------------------------------------------------------------------------------


def test_residents_are_made_once_a_name() -> None:
    place = learner()
    ones, zeros = np.ones(387, np.float32), np.zeros(387, np.float32)
    first = place.resident(ones)
    assert place.resident(zeros, "peer") is not first
    assert place.resident() is first is place.shape_of()
    assert np.array_equal(place.resident().dump(), ones)
    assert np.array_equal(place.resident(name="peer").dump(), zeros)


@pytest.mark.parametrize("name", ["first", "teacher"])
def test_a_resident_that_this_visit_has_not_loaded_is_refused(name: str) -> None:
    """It would be whoever's was there before."""
    place = learner()
    rule = rf"given weights before it is used in a visit; got none for '{name}'\. Say learner\.res"
    with pytest.raises(RayflError, match=rule):
        place.resident(name=name)
    place.resident(np.ones(387, np.float32), name)
    place.begin_visit(np.random.default_rng(0))
    with pytest.raises(RayflError, match=rule):
        place.resident(name=name)


@pytest.mark.parametrize("name", ["first", "teacher"])
def test_what_was_loaded_before_a_training_is_gone_after_it(name: str) -> None:
    place = learner()
    visited = client(9, place)
    w = np.ones(387, np.float32)
    place.resident(w, name)
    carry_out(visited, Fit(w))
    with pytest.raises(RayflError, match=f"got none for '{name}'"):
        place.resident(name=name)


def test_a_loss_may_look_at_what_the_visit_has_loaded() -> None:
    place = learner()
    visited = client(9, place)
    teacher = place.resident(np.full(387, 0.5, np.float32), "teacher")

    def loss(net: nn.Module, batch: Batch) -> Tensor:
        assert place.resident(name="teacher") is teacher
        return net(batch.x).sum()  # type: ignore[no-any-return]

    assert carry_out(visited, Fit(np.ones(387, np.float32), loss=loss)).steps == 1


def averaging_net() -> nn.Module:
    """BatchNorm whose statistics are plain averages over all batches that it counted."""
    norm = nn.BatchNorm1d(128, momentum=None)
    return seeded(lambda: nn.Sequential(nn.Flatten(), norm, nn.Linear(128, 3)))


def test_counters_of_batches_do_not_count_on_from_client_to_client() -> None:
    place, fresh = (learner(averaging_net, batch_size=4, epochs=2) for _ in range(2))
    w = start(averaging_net)
    carry_out(client(30, place), Fit(w))
    second = carry_out(client(9, place), Fit(w)).weights
    assert np.array_equal(second, carry_out(client(9, fresh), Fit(w)).weights)
    assert not np.array_equal(second, w)


@pytest.mark.parametrize("build", [linear_net, wide_net])
def test_two_trainings_of_a_visit_give_two_results(build: Callable[[], nn.Module]) -> None:
    """Also where weights are so many that they are given away instead of copied."""
    place = learner(build, batch_size=4)
    assert place.shape_of().large == (build is wide_net)
    visited, w = client(9, place), start(build)
    once = carry_out(visited, Fit(w)).weights
    kept = once.copy()
    twice = carry_out(visited, Fit(once)).weights
    third = carry_out(visited, Fit(w)).weights
    assert np.array_equal(once, kept)
    assert len({vector.tobytes() for vector in (w, once, twice, third)}) == 4


def test_weights_that_were_given_away_are_not_written_to() -> None:
    place = learner(wide_net)
    given = carry_out(client(9, place), Fit(start(wide_net))).weights
    kept = given.copy()
    place.resident(np.zeros_like(given)).flat.add_(1)
    assert np.array_equal(given, kept)


# -- first weights ---------------------------------------------------------------------------------


def test_first_weights_are_the_networks_own_and_numbered_ones_differ() -> None:
    def numbered(i: int = 0) -> nn.Module:
        return seeded(lambda: nn.Linear(3, 2), seed=i)

    place, other = learner(numbered), learner(numbered)
    found = [place.first_weights(i) for i in (0, 1, 2, 1)]
    for i, weights in enumerate(found[:3]):
        expected = [parameter.detach().flatten() for parameter in numbered(i).parameters()]
        assert np.array_equal(weights, torch.cat(expected).numpy())
        assert np.array_equal(weights, other.first_weights(i))
    assert np.array_equal(found[1], found[3])
    assert len({weights.tobytes() for weights in found}) == 3
    with pytest.raises(ValueError, match="read-only"):
        found[1][0] = 1


# -- passes ----------------------------------------------------------------------------------------


def test_networks_count_what_passes_through_them() -> None:
    place = learner()
    net = place.resident(start()).net
    x = place.normalise(place.pixels(IMAGES))
    with torch.no_grad():
        net(x)
    assert place.passes.take() == (4, 0)
    place.backward(net(x).sum() + net(x[:1]).sum())
    assert place.passes.take() == (5, 5)
    assert place.passes.take() == (0, 0)


def test_every_resident_and_every_counted_module_counts() -> None:
    place = learner(conv_net)
    encoder = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3))
    place.count_passes(encoder)
    x = place.normalise(place.pixels(IMAGES))
    with torch.no_grad():
        for _ in range(2):
            encoder(x)
        place.resident(start(conv_net), "peer").net.eval()(x)
    assert place.passes.take() == (12, 0)


def test_what_went_forward_and_not_back_does_not_count_backward_later() -> None:
    """Neither a pass before a training, nor its own last batch."""
    place = learner(batch_size=4)
    visited, w = client(9, place), start()
    place.resident(w).net(place.normalise(place.pixels(IMAGES)))
    carry_out(visited, Fit(w))
    assert place.passes.take() == (4 + 9, 9)
    net = place.resident(w).net
    place.backward(net(place.normalise(place.pixels(IMAGES[:1]))).sum())
    assert place.passes.take() == (1, 1)
    net(place.normalise(place.pixels(IMAGES)))
    place.begin_visit(np.random.default_rng(0))
    net = place.resident(w).net
    place.backward(net(place.normalise(place.pixels(IMAGES[:1]))).sum())
    assert place.passes.take() == (5, 1)


def test_several_networks_in_one_count_apart() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.networks = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])

        def forward(self, x: Tensor) -> Tensor:
            answers = [net(x) for net in self.networks]
            return answers[0] + answers[1]  # type: ignore[no-any-return]

    place = learner()
    both = Two()
    place.count_passes(both)
    both(torch.zeros(5, 3))
    assert place.passes.take() == (10, 0)


def test_passes_are_not_counted_while_nobody_asks() -> None:
    place = learner()
    net = place.resident(start()).net
    place.passes.counting = False
    net(place.normalise(place.pixels(IMAGES)))
    assert place.passes.take() == (0, 0)


# -- what a place keeps ----------------------------------------------------------------------------


def test_kept_things_are_made_once() -> None:
    place, made = learner(), []
    for _ in range(2):
        assert place.keep("encoder", lambda: made.append(1) or "it") == "it"  # type: ignore[func-returns-value]
    assert made == [1]


@pytest.mark.parametrize(
    ("mean", "std"),
    [((0.0,), (1.0,)), ((0.5,), (0.25,)), ((0.1, 0.9), (0.5, 2.0))],
    ids=["none", "one", "a channel"],
)
def test_pixels_are_scaled_to_one_then_normalised(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    place = Learner(linear_net, LocalTraining(), Normalisation(mean=mean, std=std))
    found = place.normalise(place.pixels(IMAGES)).numpy()
    expected = (IMAGES / 255 - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(found, expected.transpose(0, 3, 1, 2), atol=1e-6)


def test_one_image_alone_is_normalised_to_the_same_bits() -> None:
    place = Learner(linear_net, LocalTraining(), Normalisation(mean=(0.3, 0.7), std=(0.2, 0.3)))
    whole = place.normalise(place.pixels(IMAGES))
    assert torch.equal(place.normalise(place.pixels(IMAGES[2:3])), whole[2:3])


@pytest.mark.parametrize("writeable", [True, False])
def test_pixels_keep_their_bytes_channels_last(writeable: bool) -> None:
    x = IMAGES.copy()
    x.flags.writeable = writeable
    pixels = learner().pixels(x)
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (4, 2, 8, 8)
    assert pixels.is_contiguous(memory_format=torch.channels_last)
    assert np.array_equal(pixels.permute(0, 2, 3, 1).numpy(), x)


def test_scale_and_shift() -> None:
    scale, shift = _affine(Normalisation(mean=(0.5,), std=(0.25,)), torch.device("cpu"))
    assert scale.item() == pytest.approx(1 / 63.75)
    assert shift.item() == -2.0


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(2).tolist(),
        lambda: np.random.rand(2).tolist(),  # noqa: NPY002
        lambda: np.random.permutation(9).tolist(),  # noqa: NPY002
        lambda: [random.random(), random.randrange(1 << 30)],
    ],
    ids=["torch", "numpy", "numpy's permutation", "Python"],
)
def test_global_draws_are_bound_to_the_stream(
    draw: Callable[[], object], global_streams: None
) -> None:
    place, draws = learner(), []
    for seed in (1, 1, 2):
        place.begin_visit(np.random.default_rng(seed))
        draws.append(draw())
    assert draws[0] == draws[1] != draws[2]


def test_a_visits_seed_is_the_first_draw_of_its_stream(global_streams: None) -> None:
    seed = learner().begin_visit(np.random.default_rng(3))
    assert seed == int(np.random.default_rng(3).integers(1 << 62))
    assert torch.default_generator.initial_seed() == seed


@pytest.mark.parametrize(("build", "smallest"), [(linear_net, 1), (dropout_net, 1), (conv_net, 1)])
def test_most_networks_can_train_on_one_sample(
    build: Callable[[], nn.Module], smallest: int
) -> None:
    place = learner(build)
    place.probe(IMAGES)
    assert place.smallest_batch == smallest


def test_batch_statistics_of_one_value_need_two_samples() -> None:
    place = learner(lambda: nn.Sequential(nn.Flatten(), nn.BatchNorm1d(128), nn.Linear(128, 3)))
    place.probe(IMAGES)
    assert place.smallest_batch == 2


def test_the_smallest_batch_is_not_guessed() -> None:
    with pytest.raises(RuntimeError, match="smallest_batch is known after `probe`"):
        _ = learner().smallest_batch


def test_probing_uses_up_no_draws(global_streams: None) -> None:
    """Whoever visits a place first must draw what it would draw later."""
    place = learner(dropout_net)
    place.begin_visit(np.random.default_rng(5))
    before = torch.random.get_rng_state()
    place.probe(IMAGES)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_passes_are_taken_once() -> None:
    passes = Passes(3, 4)
    assert passes.take() == (3, 4)
    assert passes.take() == (0, 0)


def test_a_fresh_seed_is_the_draw_below_a_power_of_two() -> None:
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    assert [draw_seed(one) for _ in range(2000)] == [
        int(other.integers(1 << 62)) for _ in range(2000)
    ]
    assert one.random() == other.random()
