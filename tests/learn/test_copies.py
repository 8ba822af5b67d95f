"""Frozen copies and teachers: what they answer, how they follow, and that nothing stays behind."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rayfl.errors import ConfigError, RayflError
from rayfl.learn.batches import Batch
from rayfl.learn.copies import Decay, Ema, Frozen
from rayfl.learn.fit import carry_out
from rayfl.learn.learner import Learner
from rayfl.learn.local_fit import Fit
from rayfl.learn.losses.distillation import kl_divergence, soften
from rayfl.learn.schedules import warm_decay
from rayfl.protocol import Client
from tests.learn.kit import build_linear, build_normed, first_weights, make_client, make_learner


def images(client: Client) -> Tensor:
    return client.learner.normalise(client.learner.pixels(client.x))


def wide(i: int = 0) -> nn.Module:
    """More than 2^18 numbers, whose memory is given away at the end of a training."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(i)
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 14000), nn.ReLU(), nn.Linear(14000, 3))


def distil(client: Client, teacher: Frozen) -> Fit:
    def loss(net: nn.Module, batch: Batch) -> Tensor:
        return kl_divergence(soften(teacher(batch.x)), net(batch.x)).mean()

    return Fit(first_weights(client.learner), loss=loss)


# -- frozen ----------------------------------------------------------------------------------------


def test_a_frozen_copy_answers_in_evaluation_mode_without_gradients() -> None:
    client = make_client(9, make_learner(build_normed))
    w = first_weights(client.learner, 3)
    teacher = Frozen(client, w)
    answer = teacher(images(client))
    assert not answer.requires_grad
    net = build_normed(3).eval()
    torch.testing.assert_close(answer, net(images(client)).detach())
    assert np.array_equal(teacher.dump(), w)


@pytest.mark.parametrize("build", [build_linear, build_normed, wide])
def test_a_student_trains_and_its_teacher_does_not(build: type[nn.Module]) -> None:
    client = make_client(12, make_learner(build, epochs=2, batch_size=4, lr=0.1))
    w = first_weights(client.learner, 1)
    teacher = Frozen(client, w)
    trained = carry_out(client, distil(client, teacher))
    assert trained.steps == 6
    assert not np.array_equal(trained.weights, first_weights(client.learner))
    assert np.array_equal(teacher.dump(), w)


def test_answers_are_counted() -> None:
    client = make_client(9)
    teacher = Frozen(client, first_weights(client.learner))
    client.learner.passes.take()
    teacher(images(client))
    assert client.learner.passes.take() == (9, 0)


def test_two_copies_have_two_names() -> None:
    client = make_client(9)
    one, other = (first_weights(client.learner, i) for i in (0, 1))
    first = Frozen(client, one, "a")
    second = Frozen(client, other, "b")
    assert not torch.equal(first(images(client)), second(images(client)))
    Frozen(client, other, "a")
    with pytest.raises(RayflError, match=r"have a name each; got 'a' twice. Say Frozen\("):
        first(images(client))
    with pytest.raises(RayflError, match="have a name each; got 'a' twice"):
        first.dump()


def test_the_trained_network_is_no_copy() -> None:
    client = make_client(9)
    with pytest.raises(RayflError, match="a copy is not called 'first'"):
        Frozen(client, first_weights(client.learner), "first")


def test_a_network_in_training_is_no_copy_either() -> None:
    client = make_client(12, make_learner(batch_size=4))
    w = first_weights(client.learner)
    teacher = Frozen(client, w, "b")

    def loss(nets: dict[str, nn.Module], batch: Batch) -> Tensor:
        return kl_divergence(soften(teacher(batch.x)), nets["a"](batch.x)).mean()

    with pytest.raises(RayflError, match="otherwise than the networks that a Fit trains; got 'b'"):
        carry_out(client, Fit({"a": w, "b": w}, loss=loss))


# -- teachers --------------------------------------------------------------------------------------


def followed(client: Client, decay: Decay, steps: int = 0) -> tuple[list[np.ndarray], Ema]:
    """The student after each step, and its teacher."""
    start = first_weights(client.learner)
    teacher = Ema(client, start, decay, steps=steps)
    seen = []

    def follow(student: object) -> None:
        teacher.follow(student)  # type: ignore[arg-type]
        seen.append(student.dump())  # type: ignore[attr-defined]

    carry_out(client, Fit(start, after_step=follow))
    return seen, teacher


@pytest.mark.parametrize("build", [build_linear, wide])
def test_a_teacher_is_the_moving_average_of_its_student(build: type[nn.Module]) -> None:
    client = make_client(12, make_learner(build, batch_size=4, lr=0.2))
    seen, teacher = followed(client, 0.8)
    expected = first_weights(client.learner).astype(np.float64)
    for student in seen:
        expected = 0.8 * expected + 0.2 * student
    assert len(seen) == teacher.steps == 3
    np.testing.assert_allclose(teacher.dump(), expected, rtol=1e-5, atol=1e-6)


def test_limits_of_the_decay() -> None:
    client = make_client(12, make_learner(batch_size=4, lr=0.2))
    seen, copy = followed(client, 0.0)
    np.testing.assert_allclose(copy.dump(), seen[-1], rtol=1e-6, atol=1e-8)
    _, still = followed(make_client(12, make_learner(batch_size=4)), 1.0)
    assert np.array_equal(still.dump(), first_weights(client.learner))


def test_a_decay_that_warms_up_counts_earlier_visits() -> None:
    asked: list[int] = []

    def decay(step: int) -> float:
        asked.append(step)
        return warm_decay(step)

    followed(make_client(12, make_learner(batch_size=4)), decay, steps=5)
    assert asked == [5, 6, 7]


@pytest.mark.parametrize("decay", [-0.1, 1.1, float("nan")])
def test_an_impossible_decay_is_refused(decay: float) -> None:
    client = make_client(9)
    with pytest.raises(ConfigError, match=r"decay of a teacher lies in \[0, 1\]; got"):
        Ema(client, first_weights(client.learner), decay)


def test_statistics_are_the_students_or_its_own() -> None:
    client = make_client(12, make_learner(build_normed, batch_size=6, lr=0.2))
    seen, teacher = followed(client, 0.5)
    rest = slice(client.learner.shape_of().n_parameters, None)
    assert np.array_equal(teacher.dump()[rest], seen[-1][rest])
    assert not teacher.resident.net.training

    start = first_weights(client.learner)
    own = Ema(client, start, 0.5, "own", statistics="own")
    assert own.resident.net.training
    own.follow(client.learner.resident(seen[-1]))
    assert np.array_equal(own.dump()[rest], start[rest])
    own(images(client))
    assert not np.array_equal(own.dump()[rest], start[rest])


def visit(learner: Learner, number: int) -> np.ndarray:
    client = make_client(12, learner, number, seed=number)
    trained = followed(client, 0.7)[1]
    return trained.dump()


@pytest.mark.parametrize("build", [build_linear, build_normed, wide])
def test_nothing_of_one_client_reaches_the_next(build: type[nn.Module]) -> None:
    alone = visit(make_learner(build, batch_size=4, lr=0.2), 1)
    shared = make_learner(build, batch_size=4, lr=0.2)
    visit(shared, 0)
    assert np.array_equal(visit(shared, 1), alone)


def test_a_teacher_of_another_network_is_refused() -> None:
    client = make_client(9)
    teacher = Ema(client, first_weights(client.learner), 0.9)
    other = make_learner(build_normed)
    student = other.resident(first_weights(other))
    with pytest.raises(RayflError, match=r"as many numbers as its student \(\d+\); got 51"):
        teacher.follow(student)
