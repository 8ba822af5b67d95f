"""How well `rayfl audit` finds wrong labels and clients, on data with a truth that it does not see.

    python benchmarks/audit.py [--results FOLDER] [--only REGEX] [--human FILE]
    python benchmarks/audit.py [--results FOLDER] --write docs/audit.md

Every cell (data, kind of noise, seed) is one audit of 8,000 images at 20 clients (`few`: of 500 at
five), inline, and a file in the folder, by default results/audit; cells that have one are not
repeated. cleanlab is compared with where it is installed: on out-of-fold probabilities of the same
linear model, trained on all samples at once.

The settings of the audit were chosen on rows 20,000 to 28,000 of the three datasets with seeds 100
to 102; the cells use the first 8,000 rows and seeds 0 to 4."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from audit_page import write_page

import rayfl
from rayfl.arrays import Bools, Floats, Ints
from rayfl.audit.features import find_axes
from rayfl.audit.heads import HeadDescent, answer_unseen, measure_slope
from rayfl.audit.story import Audit
from rayfl.federation.datasets import find_data_root
from rayfl.models.feature_store import FeatureKey, FeatureStore

SAMPLES, CLIENTS, SEEDS = 8000, 20, range(5)
RATES = np.linspace(0.0, 0.8, CLIENTS).round(4).tolist()
BAD = 0.4
"""Rate from which on a client is one that an audit must tell apart."""
FEW_SAMPLES, FEW_RATES = 500, [0.06, 0.02, 0.08, 0.26, 0.63]
"""A federation as small ones are: five sites of a hundred images."""
GATHERED = 0.75
"""Share of the wrong human labels that are gathered on the last eight clients."""


class Case(NamedTuple):
    """One cell: which data, which noise, which seed."""

    data: str
    kind: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.data}-{self.kind}-{self.seed}"


def list_cases() -> Iterator[Case]:
    """All cells, the cheap ones first."""
    kinds = {
        "mnist": ("symmetric", "pair", "clean", "repair"),
        "fashion-mnist": (
            "symmetric",
            "pair",
            "clean",
            "repair",
            "few",
            "dirichlet",
            "two-classes",
        ),
        "cifar10": (
            "symmetric",
            "pair",
            "human",
            "gathered",
            "drawn",
            "clean",
            "few",
            "dirichlet",
            "two-classes",
            "cost",
        ),
    }
    for seed in SEEDS:
        for data, wanted in kinds.items():
            for kind in wanted:
                # What a run costs differs by the machine, not by the seed.
                if kind != "cost" or seed == 0:
                    yield Case(data, kind, seed)


def make_config(case: Case, human: Path, scratch: Path) -> dict[str, Any]:
    """The configuration of a cell."""
    return {
        "data": case.data,
        "clients": len(FEW_RATES) if case.kind == "few" else CLIENTS,
        "split": {"train_samples": {"first": FEW_SAMPLES if case.kind == "few" else SAMPLES}},
        "partition": make_partition(case, human, scratch),
        "noise": make_noise(case.kind, human, scratch),
        "seed": case.seed,
        "fleet": "inline",
        "tracking": {"enabled": False},
        "output": str(scratch),
    }


def make_noise(kind: str, human: Path, scratch: Path) -> Any:
    """Rates from 0 to 80 %, or what people wrote."""
    if kind in ("human", "gathered"):
        return {"name": "human", "file": str(human), "key": "worse"}
    if kind == "drawn":
        path = scratch / "matrix.npy"
        np.save(path, count_human(human))
        return {"name": "transition", "matrix": str(path)}
    if kind == "pair":
        return {"name": "asymmetric", "pairs": "next", "rate": RATES}
    if kind == "clean":
        return "none"
    if kind == "few":
        return {"name": "symmetric", "rate": FEW_RATES}
    return {"name": "symmetric", "rate": 0.4 if kind in ("repair", "cost") else RATES}


def make_partition(case: Case, human: Path, scratch: Path) -> Any:
    """Who holds what."""
    if case.kind == "dirichlet":
        return {"name": "dirichlet", "alpha": 0.3}
    if case.kind == "two-classes":
        return {"name": "classes", "per_client": 2}
    if case.kind != "gathered":
        return "iid"
    clean, worse = read_human(human)
    owner = gather_wrong(worse != clean, np.random.default_rng(case.seed))
    path = scratch / "owners.npy"
    np.save(path, owner)
    return {"name": "explicit", "file": str(path)}


def read_human(human: Path) -> tuple[Ints, Ints]:
    """True labels and what people wrote, of the rows that cells use."""
    from rayfl.federation.datasets.cifar_n import read_human_labels

    clean, worse = (labels[:SAMPLES] for labels in read_human_labels(human, "worse"))
    return clean, worse


def count_human(human: Path) -> Floats:
    """How often people wrote each class as each label, as shares of the class."""
    clean, worse = read_human(human)
    counts = np.zeros((clean.max() + 1, clean.max() + 1))
    np.add.at(counts, (clean, worse), 1.0)
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def gather_wrong(wrong: Bools, rng: np.random.Generator) -> Ints:
    """An owner for each sample: most wrong labels go to the last eight clients."""
    sent = wrong & (rng.random(len(wrong)) < GATHERED)
    few = rng.integers(CLIENTS - 8, CLIENTS, len(wrong))
    return np.where(sent, few, rng.integers(0, CLIENTS, len(wrong)))


# -- one cell --------------------------------------------------------------------------------------


def measure_case(case: Case, human: Path) -> dict[str, Any]:
    """What a cell comes to."""
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        config = make_config(case, human, scratch)
        made = rayfl.audit(config, directory=scratch / "audit", track=False)
        found = describe_audit(made)
        if case.kind == "repair":
            found |= measure_repair(config, scratch / "audit")
        if case.kind == "cost":
            found |= measure_cost(config)
    if case.kind not in ("repair", "cost"):
        found |= compare_pooled(made)
    return {"case": case._asdict(), **found}


def describe_audit(made: Audit) -> dict[str, Any]:
    """An audit against the truth."""
    findings, scenario = made.findings, made.subject.scenario
    samples = findings.samples
    assert scenario.true is not None, "every cell has a truth"
    assert scenario.realised is not None
    true = scenario.true[samples.rows]
    wrong = samples.given != true
    shares = np.array([client.share for client in findings.clients])
    rates = scenario.realised[[client.client for client in findings.clients]]
    corrected = np.where(samples.flagged, samples.suggested, samples.given)
    return {
        "scenario": scenario.sha256,
        "wrong": float(wrong.mean()),
        "auroc": measure_auroc(wrong, 1 - samples.score),
        "client_auroc": measure_auroc(rates > BAD, shares[:, 0]),
        "rank": correlate_ranks(shares[:, 0], rates),
        "error": np.abs(shares[:, 0] - rates).tolist(),
        "bias": (shares[:, 0] - rates).tolist(),
        "covered": ((shares[:, 1] <= rates) & (rates <= shares[:, 2])).tolist(),
        "width": float((shares[:, 2] - shares[:, 1]).mean()),
        "flagged": float(samples.flagged.mean()),
        "precision": float(wrong[samples.flagged].mean()) if samples.flagged.any() else None,
        "recall": float(samples.flagged[wrong].mean()) if wrong.any() else None,
        "right_after": float((corrected == true).mean()),
        "accused": sum(client.accused for client in findings.clients),
        "warned": sum(bool(client.notes) for client in findings.clients),
        "seconds": dict(findings.seconds),
        "sent_mb": sum(sent.up for sent in findings.sent) / 1e6,
        "encoder": type(made.plan.encoder).__name__,
    }


def measure_auroc(positive: Bools, score: Floats) -> float | None:
    """None where there is nothing to tell apart."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(positive, score)) if 0 < positive.sum() < len(positive) else None


def correlate_ranks(one: Floats, other: Floats) -> float | None:
    """Spearman's; None where nothing differs."""
    from scipy.stats import spearmanr

    return float(spearmanr(one, other)[0]) if np.ptp(other) > 0 and np.ptp(one) > 0 else None


def compare_pooled(made: Audit) -> dict[str, Any]:
    """AUROC of cleanlab's two scores on out-of-fold probabilities of pooled samples; where it is
    not installed, the cell says so."""
    if importlib.util.find_spec("cleanlab") is None:
        return {"cleanlab": None}
    version = importlib.import_module("cleanlab").__version__
    rank = importlib.import_module("cleanlab.rank")
    scenario, samples = made.subject.scenario, made.findings.samples
    assert scenario.true is not None
    wrong = samples.given != scenario.true[samples.rows]
    answers = answer_pooled(made)
    present = np.unique(samples.given)
    # cleanlab wants every class to be there.
    narrowed = answers[:, present] / answers[:, present].sum(axis=1, keepdims=True)
    labels = np.searchsorted(present, samples.given)
    found = {"cleanlab": version}
    for method in ("self_confidence", "normalized_margin"):
        scores = rank.get_label_quality_scores(labels, narrowed, method=method)
        found[f"pooled_{method}"] = measure_auroc(wrong, 1 - scores)
    return found


def answer_pooled(made: Audit, folds: int = 5, steps: int = 60) -> Floats:
    """Out-of-fold probabilities of the audit's own kind of head, on everybody's samples at once."""
    subject, plan, samples = made.subject, made.plan, made.findings.samples
    encoder: Any = plan.encoder
    key = FeatureKey(
        subject.dataset.sha256, encoder.build(subject.dataset.shape).fingerprint(), "train all"
    )
    stored = FeatureStore(find_data_root() / "features").get(key)
    assert stored is not None, "the audit has just encoded them"
    features = np.array(stored[samples.rows], dtype=np.float64)
    first, second = features.mean(axis=0), features.T @ features / len(features)
    out = find_axes(
        None,  # type: ignore[arg-type]  # the server has no samples of its own
        first=first.astype(np.float32),
        second=second.astype(np.float32).ravel(),
        axes=plan.axes,
        ridge=plan.ridge,
    )
    assert isinstance(out.update, np.ndarray)
    matrix = out.update.reshape(features.shape[1] + 1, -1)
    points = np.column_stack([features @ matrix[:-1] + matrix[-1], np.ones(len(features))])
    points = points.astype(np.float32)
    dealt = np.random.default_rng(0).permutation(len(points)) % folds
    classes = len(made.findings.classes)
    start = np.zeros((folds, points.shape[1], classes), np.float32)
    descent = HeadDescent(start, plan.decay)
    for _ in range(steps):
        slope = measure_slope(points, descent.ahead, samples.given, dealt, np.eye(classes), 1.0)
        descent.step(slope * np.float32(folds / (folds - 1)))
    return answer_unseen(points, descent.heads, dealt)


def measure_repair(config: Mapping[str, Any], audited: Path) -> dict[str, Any]:
    """Accuracy of federated averaging on given, on corrected and on clean labels."""
    training = {"rounds": 30, "clients_per_round": CLIENTS, "epochs": 2, "lr": 0.05}
    usual = {**config, "model": "mlp", "training": training, "evaluation": {"every": 30}}
    runs = {
        "given": usual,
        "corrected": {**usual, "labels": str(audited / "labels.parquet")},
        "clean": {**usual, "noise": "none"},
    }
    scores = {name: rayfl.run(run).metrics["test/accuracy"] for name, run in runs.items()}
    return {f"accuracy_{name}": score for name, score in scores.items()}


def measure_cost(config: Mapping[str, Any], rounds: int = 3) -> dict[str, Any]:
    """Seconds of a round of federated averaging with `cnn4`, five epochs, all clients."""
    training = {"rounds": rounds, "clients_per_round": CLIENTS, "epochs": 5}
    started = time.perf_counter()
    run = rayfl.run(
        {**config, "model": "cnn4", "training": training, "evaluation": {"every": rounds}}
    )
    taken = time.perf_counter() - started
    trained = float(np.mean([record["clock"]["time/train_s"] for record in run.history]))
    return {"run_seconds": taken, "round_seconds": trained}


# -- all cells -------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description="How well an audit finds wrong labels.")
    parser.add_argument("--results", type=Path, default=Path("results/audit"))
    parser.add_argument("--only", default="")
    parser.add_argument("--human", type=Path, default=Path("cifar10n_train_labels.parquet"))
    parser.add_argument("--write", type=Path)
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    if arguments.write:
        cells = [json.loads(path.read_text()) for path in sorted(arguments.results.glob("*.json"))]
        arguments.write.write_text(write_page(cells), encoding="utf-8")
        return
    for case in list_cases():
        path = arguments.results / f"{case.name}.json"
        if re.search(arguments.only, case.name) and not path.exists():
            found = measure_case(case, arguments.human.absolute())
            path.write_text(json.dumps(found, indent=1), encoding="utf-8")
            print(f"{case.name:28} AUROC {found['auroc'] or float('nan'):.4f}", flush=True)


if __name__ == "__main__":
    main()
