"""FedCR's pair loss and CTRR's: printed values, gradient, guard, invariances."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rayfl.learn.losses.contrastive_pairs import (
    Diagonal,
    Reduction,
    contrastive_pairs,
    ctrr_pairs,
    measure_pair_confidence,
)
from rayfl.learn.losses.cosine import compare_cosines

Q = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, 1.0]], dtype=torch.float64)
Z = torch.tensor([[0.8, 0.6], [0.96, 0.28], [0.28, 0.96]], dtype=torch.float64)
P = torch.tensor([[0.9, 0.05, 0.05], [0.95, 0.03, 0.02], [0.2, 0.7, 0.1]], dtype=torch.float64)
UNSURE = torch.full((3, 10), 0.1, dtype=torch.float64)


def test_similarity_and_confidence() -> None:
    assert compare_cosines(Q, Z).flatten().tolist() == pytest.approx(
        [0.8, 0.96, 0.28, 0.96, 0.8, 0.936, 0.6, 0.28, 0.96]
    )
    expected = [0.815, 0.8575, 0.22, 0.8575, 0.9038, 0.213, 0.22, 0.213, 0.54]
    assert measure_pair_confidence(P).flatten().tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("eta", "force_diag", "reduction", "diag", "expected"),
    [
        (0.8, True, "sum", "log", -25.751007),
        (0.8, True, "pair_mean", "log", -5.150201),
        (0.8, True, "row_mean", "log", -5.364793),
        (0.8, False, "sum", "log", -19.313255),
        (1.0, True, "row_mean", "log", -4.291834),
        (0.0, True, "row_mean", "log", -3.821705),
        (0.8, True, "row_mean", "neg_cos", -3.319251),
    ],
)
def test_values(
    eta: float, force_diag: bool, reduction: Reduction, diag: Diagonal, expected: float
) -> None:
    loss = contrastive_pairs(Q, Z, P, eta, force_diag, reduction, diag)
    assert loss.item() == pytest.approx(expected, abs=5e-7)
    in_float32 = contrastive_pairs(
        Q.float(), Z.float(), P.float(), eta, force_diag, reduction, diag
    )
    assert in_float32.item() == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("reduction", ["row_mean", "sum", "pair_mean"])
@pytest.mark.parametrize("force_diag", [True, False])
def test_values_pair_by_pair(reduction: Reduction, force_diag: bool) -> None:
    generator = torch.Generator().manual_seed(4)
    q, z = torch.randn(2, 7, 4, generator=generator, dtype=torch.float64).unbind(0)
    # being selected is not transitive here: rows differ in their number of pairs
    sure = torch.tensor([1.0, 1.0, 0.81, 0.82, 0.0, 0.1, 0.5], dtype=torch.float64)
    p = torch.stack((sure, 1 - sure), 1)
    rows: list[list[float]] = []
    for j in range(7):
        chosen = [k for k in range(7) if p[j] @ p[k] >= 0.8 or (force_diag and j == k)]
        rows.append([one_pair_value(q[j], z[k]) + one_pair_value(q[k], z[j]) for k in chosen])
    pairs = [value for row in rows for value in row]
    expected = {
        "sum": sum(pairs),
        "pair_mean": sum(pairs) / len(pairs),
        "row_mean": sum(sum(row) / max(len(row), 1) for row in rows) / 7,
    }
    assert len(pairs) > 10
    loss = contrastive_pairs(q, z, p, force_diag=force_diag, reduction=reduction)
    assert loss.item() == pytest.approx(expected[reduction], abs=1e-12)


def one_pair_value(q: Tensor, z: Tensor) -> float:
    return math.log(1 - float(q @ z / (q.norm() * z.norm())))


def test_value_of_ctrr() -> None:
    assert ctrr_pairs(Q, Z, P).item() == pytest.approx(0.402518, abs=5e-7)


def test_ctrr_sees_no_negative_coordinates() -> None:
    one = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    certain = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    dot = 2 - ctrr_pairs(one, torch.tensor([[-0.8, -0.6]], dtype=torch.float64), certain).item()
    assert dot == pytest.approx(1e-4 * (1 - 1e-4) + 1e-8, abs=1e-12)


def one_pair(q: list[float], z: list[float], delta: float = 1e-4) -> tuple[float, Tensor]:
    """log(1 - cos) of one pair and its gradient; the loss counts a pair in both orders."""
    online = torch.tensor([q], dtype=torch.float64, requires_grad=True)
    both = contrastive_pairs(
        online, torch.tensor([z], dtype=torch.float64), UNSURE[:1].to(torch.float64), delta=delta
    )
    (gradient,) = torch.autograd.grad(both / 2, online)
    return both.item() / 2, gradient[0]


def test_gradient_of_one_pair() -> None:
    value, gradient = one_pair([3, 4], [1, 0])
    assert value == pytest.approx(-0.916291, abs=5e-7)
    assert gradient.tolist() == pytest.approx([-0.32, 0.24], abs=5e-7)
    assert gradient.square().sum().item() == pytest.approx(0.16, abs=5e-7)
    assert gradient @ torch.tensor([3.0, 4.0], dtype=torch.float64) == pytest.approx(0, abs=1e-12)


def test_gradient_of_minus_the_cosine() -> None:
    q = torch.tensor([[3.0, 4.0]], dtype=torch.float64, requires_grad=True)
    loss = contrastive_pairs(
        q, torch.tensor([[1.0, 0.0]], dtype=torch.float64), UNSURE[:1], diag="neg_cos"
    )
    (gradient,) = torch.autograd.grad(loss / 2, q)
    assert gradient.square().sum().item() == pytest.approx(0.0256, abs=5e-7)


@pytest.mark.parametrize(
    ("cosine", "norm"),
    [
        (-0.9, 0.229416),
        (0.0, 1.0),
        (0.5, 1.732051),
        (0.9, 4.358899),
        (0.99, 14.106736),
        (1 - 1.0001e-4, 141.410748),
    ],
)
def test_norm_of_the_gradient_grows_with_the_cosine(cosine: float, norm: float) -> None:
    _, gradient = one_pair([1, 0], [cosine, math.sqrt(1 - cosine**2)])
    assert gradient.norm().item() == pytest.approx(norm, abs=2e-6)
    assert gradient.norm().item() <= math.sqrt((2 - 1e-4) / 1e-4)


@pytest.mark.parametrize("cosine", [1 - 0.9e-4, 1 - 1e-9, 1.0])
def test_the_guard_bounds_the_loss_and_stops_the_gradient(cosine: float) -> None:
    value, gradient = one_pair([1, 0], [cosine, math.sqrt(1 - cosine**2)])
    assert 2 * value == pytest.approx(-18.420681, abs=5e-7)
    assert gradient.abs().max() == 0


@pytest.mark.parametrize("seed", range(3))
def test_identical_views_in_float32_are_finite(seed: int) -> None:
    q = torch.randn(16, 2048, generator=torch.Generator().manual_seed(seed), requires_grad=True)
    for loss in (
        contrastive_pairs(q, q, torch.full((16, 4), 0.25), eta=0.0),
        ctrr_pairs(q.abs(), q.abs(), torch.full((16, 4), 0.25), eta=0.0),
    ):
        (gradient,) = torch.autograd.grad(loss, q)
        assert loss.isfinite()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("loss", [contrastive_pairs, ctrr_pairs])
def test_equal_images_have_no_infinite_logarithm(
    loss: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> None:
    q = torch.full((4, 4), 0.5, requires_grad=True)
    value = loss(q, q.detach(), torch.tensor([[0.5, 0.5]] * 4))
    value.backward()  # type: ignore[no-untyped-call]
    assert value.isfinite()
    assert q.grad is not None
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("reduction", ["row_mean", "sum", "pair_mean"])
def test_without_confident_pairs_and_diagonal_nothing_moves(reduction: Reduction) -> None:
    q = Q.clone().requires_grad_()
    loss = contrastive_pairs(q, Z, UNSURE, force_diag=False, reduction=reduction)
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert q.grad is not None
    assert q.grad.abs().max() == 0


def test_without_confident_pairs_the_diagonal_remains() -> None:
    expected = 2 * (1 - (Q * Z).sum(1)).log().mean()
    torch.testing.assert_close(contrastive_pairs(Q, Z, UNSURE), expected)


def test_zero_vectors_lose_nothing() -> None:
    q = torch.zeros(3, 2, requires_grad=True)
    loss = contrastive_pairs(q, Z.float(), P.float())
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.item() == 0
    assert q.grad is not None
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("reduction", ["row_mean", "sum", "pair_mean"])
@pytest.mark.parametrize("seed", range(3))
def test_scaling_and_permuting_change_nothing(seed: int, reduction: Reduction) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, z = torch.randn(2, 10, 6, generator=generator, dtype=torch.float64).unbind(0)
    p = (8 * torch.randn(10, 3, generator=generator, dtype=torch.float64)).softmax(1)
    lengths = torch.rand(10, 1, generator=generator, dtype=torch.float64) + 0.1
    order = torch.randperm(10, generator=generator)
    expected = contrastive_pairs(q, z, p, reduction=reduction)
    for changed in ((lengths * q, z, p), (q, lengths * z, p), (q[order], z[order], p[order])):
        torch.testing.assert_close(contrastive_pairs(*changed, reduction=reduction), expected)


def test_a_selected_pair_is_confident_on_both_sides_and_agrees() -> None:
    p = (
        6 * torch.randn(300, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ).softmax(1)
    first, second = (measure_pair_confidence(p) >= 0.8).nonzero(as_tuple=True)
    others = first != second
    assert others.sum() > 100
    assert p[first[others]].amax(1).min() >= 0.8
    assert torch.equal(p.argmax(1)[first], p.argmax(1)[second])
    differ = p.argmax(1)[:, None] != p.argmax(1)
    assert measure_pair_confidence(p)[differ].max() <= 0.5


def test_only_the_online_side_receives_gradient() -> None:
    q, z, p = (side.clone().requires_grad_() for side in (Q, Z, P))
    contrastive_pairs(q, z, p).backward()  # type: ignore[no-untyped-call]
    assert q.grad is not None
    assert z.grad is None
    assert p.grad is None


def test_half_precision_is_computed_in_float32() -> None:
    loss = contrastive_pairs(Q.half(), Z.half(), P.half())
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(-5.364793, abs=0.05)
