"""The local K-similarity constraint: the step against its equations, the encoder's two views, and
what is cached."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rayfl.algorithms.local_k_similarity import (
    LocalKSimilarity,
    keep_encoder,
    train_with_neighbours,
)
from rayfl.component import component
from rayfl.config.files import merge_settings
from rayfl.config.schema import Config, load_config
from rayfl.errors import ConfigError
from rayfl.federation.scenario import open_federation
from rayfl.fleet.base import BaseFleet
from rayfl.fleet.inline import InlineFleet
from rayfl.learn.losses.k_similarity import find_nearest_in_batch
from rayfl.learn.resident import Resident
from rayfl.models.encoders.base import Sight, TorchEncoder, hash_encoder
from rayfl.models.network import Network, Shape
from rayfl.protocol import SERVER, Client, Out, Vector
from rayfl.run.assembly import holdings_of, spec_of
from rayfl.run.features import share_features
from tests.algorithms.conformance import Row, run_toy, shortened, toy_config

CONFIGS = Path(__file__).parents[2] / "configs"


@component
class TinyEncoder:
    """One fixed random convolution: a torch encoder that takes images of any size."""

    seed: int = 0

    def build(self, shape: Shape) -> TorchEncoder:
        convolution = nn.Conv2d(3, 8, 3, bias=False)
        with torch.no_grad():
            convolution.weight.normal_(generator=torch.Generator().manual_seed(self.seed))
        network = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())
        return TorchEncoder(
            f"tiny {self.seed}", network, shape, Sight(mean=(0.5,) * 3, std=(0.25,) * 3)
        )


TINY = {"name": f"{__name__}:TinyEncoder"}
METHOD = {"name": "local_k_similarity", "encoder": "pixels"}
BATCH = {"name": "local_k_similarity", "encoder": TINY, "view": "batch"}
# the gradient of the constraint grows as features shrink: without normalisation the toy's rate
# kills a small network
NORMALISED = {
    "model": {"name": "cnn4", "widths": [8, 8]},
    "training": {"batch_size": 32, "lr": 0.1},
}

ROWS = [
    Row(
        "local_k_similarity",
        METHOD,
        config=NORMALISED,
        floor=0.95,
        neutral={**METHOD, "strength": 0},
        same_as={"name": "fedavg"},
        refused=[
            ({"k": 0}, "method.k.* 1"),
            ({"temperature": 0}, "method.temperature.* 0"),
            ({"strength": -1}, "method.strength.* 0"),
            ({"view": "augmented"}, "method.view.*'cached' or 'batch'"),
            ({"encoder": "hogg"}, "unknown encoder 'hogg'. Did you mean 'hog'"),
        ],
    ),
    Row(
        "local_k_similarity_batch",
        BATCH,
        config=merge_settings(
            NORMALISED,
            {
                "model": {"widths": [16, 16]},
                "training": {"augment": {"name": "crop_flip", "padding": 0, "flip": 0.5}},
            },
        ),
        floor=0.85,
        neutral={**BATCH, "strength": 0},
        same_as={"name": "fedavg"},
    ),
]


# -- one step against the equations ----------------------------------------------------------------


def toy(method: Mapping[str, Any], folder: Path, **more: Any) -> Config:
    """The toy configuration with another method."""
    return toy_config(Row("toy", method, config=more), folder)


def fleet_of(config: Config, place: str = "inline") -> tuple[BaseFleet, str, Shape]:
    """The fleet of a configuration, with the hash of its dataset and the shape of its images."""
    dataset, scenario = open_federation(config, config.seeds_for("data"))
    holdings, spec = (
        holdings_of(config, dataset, scenario),
        spec_of(config, dataset, scenario, "cpu"),
    )
    shape, sha256 = dataset.shape, scenario.dataset.sha256
    if place == "inline":
        return InlineFleet(spec, holdings), sha256, shape
    import ray

    from rayfl.fleet.on_ray.hiring import Hiring
    from rayfl.fleet.on_ray.placement import Placement
    from rayfl.fleet.on_ray.ray_fleet import RayFleet

    hiring = Hiring(ray.put(spec), ray.put(holdings), Placement(actors=3, cpus=0.5))
    return RayFleet(spec, holdings, hiring), sha256, shape


def shared(fleet: BaseFleet, config: Config, sha256: str, shape: Shape, root: Path) -> list[str]:
    """Give the fleet the features that the method asks for; what was said on the way."""
    said: list[str] = []
    share_features(config.method, fleet, sha256, shape, root, said.append)
    return said


def constraint(z: Tensor, reference: Tensor, k: int, temperature: float, self_in: bool) -> Tensor:
    """Eq. 2 for every image, written with loops and Euclidean distances."""
    z = z / z.norm(dim=1, keepdim=True)
    unit = reference / reference.norm(dim=1, keepdim=True)
    losses = []
    for j in range(len(z)):
        others = [i for i in range(len(z)) if i != j]
        distance = (unit - unit[j]).norm(dim=1)
        nearest = sorted(others, key=distance.tolist().__getitem__)[:k]
        pull = sum(torch.exp(z[j] @ z[i] / temperature) for i in nearest)
        whole = sum(
            torch.exp(z[j] @ z[i] / temperature) for i in (range(len(z)) if self_in else others)
        )
        losses.append(-torch.log(torch.as_tensor(pull / whole)))
    return torch.stack(losses)


FLIP = {"name": "crop_flip", "padding": 0, "flip": 1.0}


@pytest.mark.parametrize("view", ["cached", "batch"])
@pytest.mark.parametrize(
    "settings",
    [
        {"k": 4, "temperature": 0.3, "strength": 3.0, "self_in_denominator": True},
        {"k": 2, "temperature": 0.5, "strength": 1.5, "self_in_denominator": False},
    ],
)
def test_a_step_goes_down_the_gradient_of_the_paper(
    settings: dict[str, Any], view: str, tmp_path: Path
) -> None:
    """Under a flip that is certain, the batch view sees flipped images and the cached view the
    clean ones."""
    training = {"batch_size": 60, "epochs": 1, "lr": 0.5, "momentum": 0.0, "augment": FLIP}
    config = toy({**BATCH, "view": view, **settings}, tmp_path, training=training)
    fleet, sha256, shape = fleet_of(config)
    shared(fleet, config, sha256, shape, tmp_path)
    assert isinstance(fleet, InlineFleet)
    executor = fleet.executor
    start = Resident(executor.learner.build(), torch.device("cpu")).dump()
    trained = fleet.get(
        fleet.map(train_with_neighbours, [0], w=start, method=config.method).mean({0: 1.0})
    )

    shard = executor.holdings.shard(0)
    flipped = np.ascontiguousarray(shard.x[:, :, ::-1])
    encoder = TinyEncoder().build(shape)
    reference = torch.from_numpy(encoder.encode(shard.x))
    if view == "batch":
        reference = encoder.encode_tensor(torch.from_numpy(flipped).permute(0, 3, 1, 2) / 255)
    resident = Resident(executor.learner.build(), torch.device("cpu")).load(start)
    net = resident.net
    assert isinstance(net, Network)
    z = net.features(torch.from_numpy(flipped).permute(0, 3, 1, 2) / 255)
    wrong = nn.functional.cross_entropy(net.head(z), torch.from_numpy(np.array(shard.y)))
    k, temperature, strength, self_in = settings.values()
    (
        wrong + strength * constraint(z, reference.double(), k, temperature, self_in).mean()
    ).backward()
    np.testing.assert_allclose(trained, start - 0.5 * resident.gradient.numpy(), atol=2e-6)
    assert np.abs(trained - start).max() > 0.01


@pytest.mark.parametrize(("method", "passes"), [({"name": "fedavg"}, 1), (METHOD, 1), (BATCH, 2)])
def test_costs_are_one_forward_pass_and_one_of_an_encoder_that_sees_batches(
    method: dict[str, Any], passes: int, tmp_path: Path
) -> None:
    outcome, _ = run_toy(shortened(toy(method, tmp_path), 1))
    metrics = outcome.history[0]["metrics"]
    assert metrics["cost/forward"] == passes * metrics["cost/backward"] == passes * 4 * 60 * 2
    assert metrics["cost/down_mb"] == 4 * len(outcome.models[None]) * 4 / 1e6


@pytest.mark.parametrize("seed", [0, 1])
def test_without_strength_no_encoder_has_an_influence(seed: int, tmp_path: Path) -> None:
    method = {**BATCH, "encoder": {**TINY, "seed": seed}, "strength": 0.0}
    neutral, _ = run_toy(shortened(toy(method, tmp_path), 2), directory="neutral")
    fedavg, _ = run_toy(shortened(toy({"name": "fedavg"}, tmp_path), 2), directory="fedavg")
    assert neutral.sha256 == fedavg.sha256


@pytest.mark.parametrize(
    "change", [{"k": 2}, {"temperature": 1.0}, {"self_in_denominator": False}, {"strength": 1.0}]
)
def test_every_setting_counts(change: dict[str, Any], tmp_path: Path) -> None:
    one, _ = run_toy(shortened(toy(METHOD, tmp_path), 1), directory="one")
    other, _ = run_toy(shortened(toy({**METHOD, **change}, tmp_path), 1), directory="other")
    assert one.sha256 != other.sha256


def test_features_gather_around_the_reference_neighbours(tmp_path: Path) -> None:
    """After training, images that the encoder finds similar are similar to the network, more than
    without."""
    agreement = {}
    for strength in (0.0, 3.0):
        config = toy({**METHOD, "strength": strength}, tmp_path, **NORMALISED)
        outcome, fleet = run_toy(config, directory=f"strength {strength}")
        assert isinstance(fleet, InlineFleet)
        x = fleet.executor.holdings.x[:100]
        learner = fleet.executor.learner
        net = learner.resident(outcome.models[None]).net.eval()
        assert isinstance(net, Network)
        near = find_nearest_in_batch(torch.from_numpy(x.reshape(100, -1) / 255.0), 4)
        with torch.no_grad():
            z = nn.functional.normalize(net.features(learner.normalise(learner.pixels(x))), dim=1)
        similarity = z @ z.T
        agreement[strength] = float(similarity.gather(1, near).mean() - similarity.mean())
    assert agreement[3.0] > agreement[0.0] + 0.1


# -- the frozen encoder ----------------------------------------------------------------------------


def encoder_hash(client: Client, *, method: LocalKSimilarity) -> Out:
    frozen = keep_encoder(client, method.encoder)
    return Out({"sha256": hash_encoder(frozen.kind, {}, frozen.module.state_dict())})


@pytest.mark.parametrize("place", ["inline", "ray3"])
def test_the_encoder_is_the_same_everywhere_and_never_trained(
    place: str, tmp_path: Path, cluster: None
) -> None:
    config = toy(BATCH, tmp_path)
    method = config.method
    fleet, _, shape = fleet_of(config, place)
    fresh = TinyEncoder().build(shape)
    expected = {hash_encoder(fresh.kind, {}, fresh.module.state_dict())}
    try:
        for _ in range(2):
            hashes = {
                r["sha256"] for r in fleet.map(encoder_hash, fleet.clients, method=method).values()
            }
            assert hashes == expected
            start = np.full(1108, 0.01, np.float32)
            trained = fleet.get(
                fleet.map(train_with_neighbours, fleet.clients, w=start, method=method).mean(
                    {0: 1.0}
                )
            )
            assert not np.array_equal(trained, start)
    finally:
        fleet.close()


def test_identity_features_rank_like_pixels(tmp_path: Path) -> None:
    config = toy(METHOD, tmp_path)
    fleet, sha256, shape = fleet_of(config)
    shared(fleet, config, sha256, shape, tmp_path)
    assert isinstance(fleet, InlineFleet)
    found = find_nearest_in_batch(
        torch.from_numpy(np.array(fleet.executor.features["reference"])), 4
    )
    x = fleet.executor.holdings.x.reshape(360, -1).astype(np.float64)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    cosines = x @ x.T - 9 * np.eye(360)
    assert np.array_equal(found.numpy(), np.argsort(-cosines, axis=1, kind="stable")[:, :4])


# -- refusals before the first round ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "training", "match"),
    [
        (
            {**METHOD, "view": "batch"},
            {},
            "view: batch needs an encoder that is a network.*got FlatPixels.*view: cached",
        ),
        (
            {**METHOD, "k": 16},
            {},
            "method.k is at most 15 in batches of 16; got 16. Lower method.k",
        ),
        (
            {**METHOD, "k": 15, "self_in_denominator": False},
            {},
            "method.k is at most 14 in batches of 16; got 15",
        ),
        (METHOD, {"batch_size": 4}, "at most 3 in batches of 4; got 4.*raise training.batch_size"),
        (
            {**METHOD, "encoder": {"name": "hog", "cell": 8}},
            {},
            "cells of 8x8 pixels; got 8x8. Make `cell` smaller",
        ),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_round(
    method: dict[str, Any], training: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=match):
        run_toy(toy(method, tmp_path, training=training))


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
