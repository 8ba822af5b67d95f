"""How often the neighbours that an encoder names share the true class: what local k-similarity can
hope for.

    python benchmarks/neighbour_purity.py

Uses the features that the runs of configs/results/local_k_cifar10.yaml left in the cache; batches
of 50 images of one client, the 4 nearest by cosine, as in the method. Prints one line an encoder,
and chance."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rayfl.config.schema import load_config
from rayfl.federation.datasets import find_data_root
from rayfl.federation.scenario import open_federation
from rayfl.models import ENCODERS
from rayfl.models.feature_store import FeatureKey, FeatureStore

CONFIG = Path(__file__).resolve().parent.parent / "configs" / "results" / "local_k_cifar10.yaml"
BATCH = 50
NEIGHBOURS = 4
SPECS = {
    "EfficientNet-Lite0, 128 px": {"name": "efficientnet_lite0", "side": 128},
    "random ResNet-50": {"name": "random"},
}


def main() -> None:
    config = load_config(CONFIG)
    dataset, scenario = open_federation(config, config.seeds_for("data"))
    store = FeatureStore((config.data_root or find_data_root()) / "features")
    for title, spec in SPECS.items():
        encoder = ENCODERS.build(spec).build(dataset.shape)
        features = store.get(FeatureKey(dataset.sha256, encoder.fingerprint(), "train all"))
        if features is None:
            print(
                f"{title}: no features in the cache; "
                "run configs/results/local_k_cifar10.yaml with it first"
            )
            continue
        shares = [
            purity(features[batch], dataset.train.y[batch])
            for client in range(scenario.clients)
            for batch in batches(scenario.shard(client), np.random.default_rng(client))
        ]
        same, chance = np.mean(shares, axis=0)
        print(
            f"{title}: {same:.3f} of the {NEIGHBOURS} neighbours have the image's true class; "
            f"chance {chance:.3f}"
        )


def batches(rows: NDArray[np.int64], rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """Whole mini-batches of one client."""
    order = rng.permutation(rows)
    return [order[start : start + BATCH] for start in range(0, len(order) - BATCH + 1, BATCH)]


def purity(features: NDArray[np.float32], truth: NDArray[np.int64]) -> tuple[float, float]:
    """Share of nearest neighbours of the same class, and of all other images of the batch."""
    unit = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    cosines = unit @ unit.T
    np.fill_diagonal(cosines, -np.inf)
    nearest = np.argsort(-cosines, axis=1, kind="stable")[:, :NEIGHBOURS]
    alike = truth[:, None] == truth
    chance = (alike.sum() - len(truth)) / (len(truth) * (len(truth) - 1))
    return float((truth[nearest] == truth[:, None]).mean()), float(chance)


if __name__ == "__main__":
    main()
