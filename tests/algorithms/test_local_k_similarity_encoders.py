"""Local K-similarity: its encoders, views and refusals."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from rayfl.algorithms.local_k_similarity import (
    LocalKSimilarity,
    keep_encoder,
    train_with_neighbours,
)
from rayfl.config.schema import Config, load_config
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.resident import Resident
from rayfl.models.encoders.base import hash_encoder
from rayfl.models.network import Network
from rayfl.protocol import SERVER, Client, Out, Vector
from tests.algorithms.conformance import run_toy, shortened
from tests.algorithms.local_k_similarity_toys import (
    BATCH,
    METHOD,
    TINY,
    TinyEncoder,
    constraint,
    fleet_of,
    shared,
    toy,
)

CONFIGS = Path(__file__).parents[2] / "configs"


@pytest.mark.parametrize("k", [14, 15])
def test_as_many_neighbours_as_a_batch_has_are_allowed(k: int, tmp_path: Path) -> None:
    method = {**METHOD, "k": k, "self_in_denominator": k == 15}
    outcome, _ = run_toy(shortened(toy(method, tmp_path), 1))
    assert np.isfinite(outcome.models[None]).all()


# -- cached features -------------------------------------------------------------------------------


def features_seen(client: Client) -> Out:
    """What a phase finds, with the pixels that it belongs to."""
    return Out(
        {"x": hashlib.sha256(client.x.tobytes()).hexdigest()},
        state={"seen": client.features["reference"]},
    )


def seen(fleet: BaseFleet) -> dict[int, tuple[str, NDArray[np.float32]]]:
    got = fleet.map(features_seen, fleet.clients)
    states = {client: fleet.state(client, "seen") for client in got}
    return {
        client: (got[client]["x"], np.array(fleet.get(ref)))
        for client, ref in states.items()
        if ref is not None
    }


def test_cached_features_are_each_client_s_own_on_every_place_and_computed_once(
    tmp_path: Path, cluster: None
) -> None:
    config = toy({**METHOD, "encoder": TINY}, tmp_path)
    found, said = {}, {}
    for place in ("inline", "ray3"):
        fleet, sha256, shape = fleet_of(config, place)
        try:
            for folder in (place, "first" if place == "inline" else "inline"):
                said[place, folder] = shared(fleet, config, sha256, shape, tmp_path / folder)
            found[place] = seen(fleet)
        finally:
            fleet.close()
        if isinstance(fleet, InlineFleet):
            encoder, holdings = TinyEncoder().build(shape), fleet.executor.holdings
            expected = {
                client: encoder.encode(holdings.x[holdings.rows(client)])
                for client in fleet.clients
            }
    assert said["inline", "inline"] == [
        "encoding train with reference: 360/360",
    ]
    assert said["ray3", "ray3"] == said["inline", "inline"]
    assert said["ray3", "inline"] == []
    assert found["inline"].keys() == found["ray3"].keys() == expected.keys()
    for client, (pixels, features) in found["inline"].items():
        assert pixels == found["ray3"][client][0]
        assert np.array_equal(features, found["ray3"][client][1])
        assert np.array_equal(features, expected[client])


BLOBS = {
    "name": "blobs",
    "samples": 360,
    "test_samples": 120,
    "classes": 4,
    "side": 8,
    "spread": 0.2,
}


@pytest.mark.parametrize(
    ("method", "data", "computed"),
    [
        ({**METHOD, "encoder": TINY, "k": 3, "strength": 1.0}, BLOBS, False),
        ({**METHOD, "encoder": {**TINY, "seed": 1}}, BLOBS, True),
        ({**METHOD, "encoder": "pixels"}, BLOBS, True),
        ({**METHOD, "encoder": TINY}, {**BLOBS, "seed": 1}, True),
    ],
)
def test_features_are_computed_again_for_another_encoder_or_dataset_only(
    method: dict[str, Any], data: dict[str, Any], computed: bool, tmp_path: Path
) -> None:
    for settings, blobs, expected in (
        ({**METHOD, "encoder": TINY}, BLOBS, True),
        (method, data, computed),
    ):
        config = toy(settings, tmp_path, data=blobs)
        fleet, sha256, shape = fleet_of(config)
        assert bool(shared(fleet, config, sha256, shape, tmp_path / "features")) is expected


# -- starting from the encoder's weights -----------------------------------------------------------


SMALL = "shufflenet_v2_x0_5"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a small network in torchvision's layout, with statistics that are not the initial
    ones."""
    from torchvision.models import get_model

    path: Path = tmp_path_factory.mktemp("weights") / "encoder.pt"
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        network = get_model(SMALL, weights=None)
        for _ in range(20):
            network(torch.randn(8, 3, 32, 32) + 0.5)
    torch.save({f"encoder.{name}": value for name, value in network.state_dict().items()}, path)
    return path


def pretrained(method: str, start: bool, checkpoint: Path, folder: Path) -> Config:
    """One of the four runs that compare starts and losses."""
    file = {"network": SMALL, "prefix": "encoder."}
    encoder = {"name": "state_dict", **file, "path": str(checkpoint), "side": None}
    settings = (
        {"name": method, "encoder": encoder, "view": "batch"}
        if method != "fedavg"
        else {"name": method}
    )
    network = {"name": "torchvision", **file, "weights": str(checkpoint) if start else None}
    data = {**BLOBS, "side": 32, "channels": 3, "samples": 60, "test_samples": 8, "spread": 0.3}
    training = {"rounds": 1, "epochs": 1, "clients_per_round": 2}
    return toy(settings, folder, data=data, model=network, training=training)


def features_and_loss(client: Client, *, w: Vector, method: LocalKSimilarity) -> Out:
    """What network and encoder make of the same tensor in evaluation mode, and the constraint on
    it."""
    net = client.learner.resident(w).net.eval()
    assert isinstance(net, Network)
    x = client.learner.normalise(client.learner.pixels(client.x))
    with torch.no_grad():
        z, s = net.features(x), keep_encoder(client, method.encoder).encode_tensor(x)
    losses = [constraint(z.double(), v.double(), 4, 0.3, True).mean() for v in (z, s)]
    return Out({"z": z.numpy(), "s": s.numpy(), "loss": [float(loss) for loss in losses]})


def test_a_network_that_starts_as_the_encoder_sees_what_it_sees(
    checkpoint: Path, tmp_path: Path
) -> None:
    config = pretrained("local_k_similarity", True, checkpoint, tmp_path)
    fleet, _, _ = fleet_of(config)
    assert isinstance(fleet, InlineFleet)
    start = Resident(fleet.executor.learner.build(), torch.device("cpu")).dump()
    before = fleet.map(features_and_loss, [0], w=start, method=config.method)[0]
    # the network's kernels lie channels-last, the encoder's do not: sums are in another order
    np.testing.assert_allclose(before["z"], before["s"], rtol=1e-4, atol=1e-5)
    assert before["loss"][0] == pytest.approx(before["loss"][1], rel=1e-5)
    trained = np.array(
        fleet.get(
            fleet.map(train_with_neighbours, [0], w=start, method=config.method).mean({0: 1.0})
        )
    )
    after = fleet.map(features_and_loss, [0], w=trained, method=config.method)[0]
    assert np.array_equal(after["s"], before["s"])
    assert not np.allclose(after["z"], before["z"])


def test_four_starts_send_the_same_number_of_weights_and_share_the_random_head(
    checkpoint: Path, tmp_path: Path
) -> None:
    sent, hashes, heads = set(), set(), set()
    for method in ("fedavg", "local_k_similarity"):
        for start in (False, True):
            config = pretrained(method, start, checkpoint, tmp_path)
            outcome, fleet = run_toy(config, directory=f"{method} {start}")
            assert isinstance(fleet, InlineFleet)
            metrics = outcome.history[0]["metrics"]
            sent.add((metrics["cost/up_mb"], metrics["cost/down_mb"]))
            hashes.add(outcome.sha256)
            network = fleet.executor.learner.build()
            heads.add(hash_encoder("head", {}, network.get_submodule("head").state_dict()))
    assert len(sent) == 1
    assert len(hashes) == 4
    assert len(heads) == 1


# -- configurations --------------------------------------------------------------------------------


def test_the_server_s_check_touches_no_client(tmp_path: Path) -> None:
    fleet, _, _ = fleet_of(toy(BATCH, tmp_path))
    toy(BATCH, tmp_path).method.check(fleet)
    assert fleet.costs.take()["participants"] == 0
    assert SERVER not in fleet.table


@pytest.mark.parametrize(
    "name", ["local_k_cifar10", "local_k_cifar10_fedavg", "local_k_pretrained_init"]
)
def test_the_paper_s_configurations_are_valid_and_differ_where_they_should(name: str) -> None:
    config, base = (
        load_config(CONFIGS / "paper" / f"{file}.yaml") for file in (name, "local_k_cifar10")
    )
    assert config.training == base.training
    assert config.training.cohort(config.clients) == 10
    assert config.recorded() == base.recorded()
    method = config.method
    if name.endswith("fedavg"):
        assert config.resolved()["method"]["name"] == "fedavg"
    else:
        assert isinstance(method, LocalKSimilarity)
        assert (method.k, method.temperature, method.strength, method.view) == (
            4,
            0.3,
            3.0,
            "batch",
        )
        assert not method.encoders()
