"""SemiFL against numbers worked out by hand, and its rounds on a toy federation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from rayfl.algorithms import semifl
from rayfl.algorithms.parts import fix_and_mix as part
from rayfl.algorithms.parts.alternate_training import Moving
from rayfl.algorithms.parts.fix_and_mix import fix_and_mix
from rayfl.algorithms.semifl import SemiFL
from rayfl.learn.augment.base import Unchanged
from rayfl.learn.batches import draw_batches
from rayfl.learn.mixing import blend_losses
from rayfl.learn.sample_stream import SampleStream
from rayfl.protocol import Client, Out
from tests.algorithms.conformance import Row
from tests.algorithms.semi_toys import SERVED, STRONG, run_row
from tests.algorithms.toys import fleet_of_numbers
from tests.learn.kit import CLASSES, make_client

METHOD: dict[str, Any] = {
    "name": "semifl",
    "server_epochs": 2,
    "threshold": 0.9,
    "strong": STRONG,
    "clip": None,
}

ROWS = [
    Row(
        "semifl",
        METHOD,
        SERVED,
        # Where nothing is sure, the server is alone.
        neutral={**METHOD, "threshold": 1.1, "labels_loss": {"name": "gce", "gamma": 0.6}},
        same_as={"name": "server_sl", "epochs": 2, "loss": "gce"},
        refused=[
            ({"beta_g": 1.5}, "beta_g"),
            ({"beta": -1}, "beta"),
            ({"mixed": "none"}, "mixed"),
            ({"clip": 0}, "clip"),
            ({"statistics": "clients"}, "statistics"),
        ],
    )
]


@pytest.mark.parametrize(
    ("beta", "expected"),
    [(0.5, [(0.5, 0.5), (0.35, 0.15), (-0.075, 0.225)]), (0.0, [(0.5, 0.5), (0.1, 0.4), (0, 0.4)])],
)
def test_the_servers_momentum(beta: float, expected: list[tuple[float, float]]) -> None:
    """Clients come back with 0.5, 0.4 and 0.4; W began at 1. torch's SGD of step 1 on W - mean,
    the rule of diaoenmao/SemiFL @ 4ec3663, gives the same."""
    fleet = fleet_of_numbers([1])
    state = Moving(fleet.put(np.ones(1, np.float32)))
    for mean, (momentum, model) in zip((0.5, 0.4, 0.4), expected, strict=True):
        came = fleet.put(np.array([mean], np.float32))
        w, v = SemiFL(beta_g=beta).move(fleet, state, came)
        state = Moving(w, v)
        assert fleet.get(v)[0] == pytest.approx(momentum, abs=1e-6)
        assert fleet.get(w)[0] == pytest.approx(model, abs=1e-6)


@pytest.mark.parametrize(("share", "expected"), [(0.3, 1.807606), (1.0, 0.407606)])
def test_both_labels_of_a_mixture_count(share: float, expected: float) -> None:
    logits = torch.tensor([[1.0, 0.0, -1.0]])
    labels = torch.tensor([0]), torch.tensor([2])
    found = blend_losses(functional.cross_entropy, logits, *labels, share)
    assert found.item() == pytest.approx(expected, abs=1e-6)


def visit_mixed(monkeypatch: pytest.MonkeyPatch, mixed: str) -> tuple[Client, list[Client]]:
    """A client that is sure of its first five images, and where its D_mix comes from."""
    seen: list[Client] = []

    def watch(client: Client) -> SampleStream:
        seen.append(client)
        return SampleStream(client)

    monkeypatch.setattr(part, "SampleStream", watch)
    client = make_client(20)
    sure = np.arange(20) < 5
    pool = sure if mixed == "sure" else np.ones_like(sure)
    loss = fix_and_mix(client, sure, pool, 0.75, Unchanged())
    batch = next(iter(draw_batches(client, client.learner.training, keep=sure)))
    value = loss(client.learner.build(), batch)
    assert value is not None
    assert torch.isfinite(value)
    return client, seen


@pytest.mark.parametrize(("mixed", "pool"), [("sure", 5), ("all", 20)])
def test_as_many_images_are_mixed_in_as_are_sure(
    mixed: str, pool: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn with their guesses from the sure ones, or from all as in the released code."""
    client, (drawn,) = visit_mixed(monkeypatch, mixed)
    assert len(drawn) == 5
    known = {(x.tobytes(), int(y)) for x, y in zip(client.x[:pool], client.y[:pool], strict=True)}
    assert {(x.tobytes(), int(y)) for x, y in zip(drawn.x, drawn.y, strict=True)} <= known
    assert drawn.y.max() < CLASSES


def leave_number(client: Client, *, w: Any, method: SemiFL) -> Out:
    """Client k comes back with k, and was sure of something unless it is the last."""
    return Out({"sure": int(client.id < 2)}, np.array([client.id], np.float32))


def test_clients_that_were_sure_count_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many images they have; who was not is left out."""
    monkeypatch.setattr(semifl, "train_on_guesses", leave_number)
    fleet = fleet_of_numbers([1, 9, 4])
    state = Moving(fleet.put(np.ones(1, np.float32)))
    w, v = SemiFL(beta_g=0.0).train_clients(state, fleet, [0, 1, 2])
    assert fleet.get(w)[0] == 0.5
    assert v is not None
    assert fleet.take_logged() == {"pseudo/valid": 2.0, "pseudo/sure": 2 / 14}
    assert SemiFL().train_clients(state, fleet, [2]) == (state.model, None)


def test_clients_rest_while_the_server_pretrains(tmp_path: Path) -> None:
    outcome = run_row(ROWS[0], tmp_path, 3, method={"pretraining": 3})
    metrics = [record["metrics"] for record in outcome.history]
    assert [found["clients/participants"] for found in metrics] == [0, 0, 4]
    assert [found["cost/server_backward"] for found in metrics] == [80, 40, 80]


def test_passes_of_a_round(tmp_path: Path) -> None:
    """Every image is judged once; of the sure ones two views go forward and back, twice. The model
    that the server made goes to the clients once more, for their statistics of it."""
    outcome = run_row(ROWS[0], tmp_path, 1, method={"threshold": 0.0})
    found = outcome.history[0]["metrics"]
    assert found["pseudo/sure"] == 1
    assert found["cost/backward"] == 4 / 5 * found["cost/forward"]
    assert 2 * found["cost/up_mb"] == pytest.approx(found["cost/down_mb"], rel=0.01)


def test_statistics_are_of_server_and_participants(tmp_path: Path) -> None:
    """The same bits on every run; another choice of images gives other statistics."""
    batch_norm = {"model": {"name": "cnn4", "widths": [4], "track_running_stats": True}}
    found = {
        run_row(ROWS[0], tmp_path, 1, who, method={"statistics": who}, **batch_norm).sha256
        for who in ("server", "active", "all")
    }
    assert len(found) == 3


@pytest.mark.parametrize("persist", [True, False])
def test_a_clients_optimiser_may_go_on(persist: bool, tmp_path: Path) -> None:
    settings = {"persist": persist, "threshold": 0.0}
    outcome = run_row(ROWS[0], tmp_path, 2, str(persist), method=settings)
    other = run_row(ROWS[0], tmp_path, 2, "other", method={**settings, "persist": not persist})
    assert outcome.sha256 != other.sha256
