"""The rows of W6's second table: every method on one small federation, and what its paper says that
a round costs.

Eight clients of 64 images of 16 x 16, of whom half take part, two epochs of batches of 32: a round
of federated averaging takes a tenth of a second, most of it in convolutions. The settings are
those of configs/methods, with stages moved ahead so that the rounds that count are the method's
own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Settings = Mapping[str, Any]

FEDERATION: Settings = {
    "data": {
        "name": "blobs",
        "samples": 1024,
        "test_samples": 64,
        "side": 16,
        "channels": 3,
        "spread": 0.4,
    },
    "split": {"client_samples": {"total": 512}},
    "clients": 8,
    "model": {"name": "cnn4", "widths": [32, 64, 64, 32]},
    "training": {"epochs": 2, "batch_size": 32},
}
IID: Settings = {"partition": "iid"}
TWO_TASKS: Settings = {}
"""As configs/methods/single_global.yaml has them, and a round for everybody."""
UNPRINTED = "-"
"""The paper prints no costs."""


@dataclass(frozen=True)
class Row:
    """A method, or a stage of one.

    name    as the table prints it
    file    of configs/methods, which it begins with
    method  its settings, on top
    more    what else it needs
    begins  how many rounds lie before the stage that is measured; the first one never counts
    paper   what its paper prints that a participant sends (down + up) and computes in a round: M is
            the model, F and B are passes over a client's data, e are epochs
    """

    name: str
    file: str
    method: Settings = field(default_factory=dict)
    more: Settings = field(default_factory=lambda: IID)
    begins: int = 1
    paper: str = UNPRINTED


FEDCORR: Settings = {"name": "fedcorr", "iterations": 9, "visits": 2, "weighting": "equal"}
ENCODERS: Settings = {
    "clustering_encoder": {"name": "hog", "cell": 4},
    "correction_encoder": {"name": "hog", "cell": 4},
}
"""Short features: to be compared before the first round, which is not what is measured."""
CLIPFL: Settings = {"name": "clipfl_personal", "warmup": 9}
RHFL: Settings = {"name": "rhfl", "public": "validation"}
SURE: Settings = {"local": {"threshold": 0.0}}
"""Clients believe every guess, so that every image goes back."""
SMALL_SERVER: Settings = {**IID, "split": {"labelled": {"per_class": 10}}}


def within(name: str, file: str, host: Settings, **more: Any) -> Row:
    """A method within the clusters that FB-NLL finds before the first round."""
    encoders = ENCODERS if file == "fb_nll" else {"clustering_encoder": {"name": "hog", "cell": 4}}
    return Row(name, file, {"host": host, **encoders, **more}, TWO_TASKS)


def at_server(name: str, file: str, **method: Any) -> Row:
    """A method whose labels lie at the server, without pre-training."""
    settings = {"pretraining": 0, "server_epochs": 2, **method}
    return Row(name, file, settings, SMALL_SERVER)


ROWS: Sequence[Row] = (
    Row("FedAvg", "fedavg", paper="M + M; eF + eB"),
    Row("FedDS", "fedds"),
    Row(
        "FedRN, k = 2",
        "fedrn",
        {"warmup": 1},
        begins=2,
        paper="(k + 1)M + M; (e + 2k + 1)F + (k + e)B",
    ),
    Row("SymCE", "symce"),
    Row("LogitClip", "logitclip"),
    Row("Co-Teaching", "co_teaching", {"warmup": 1}, begins=2, paper="2M + 2M; 2eF + 2eB"),
    Row("Joint-optm", "joint_optimization", {"warmup": 1}, begins=2, paper="M + M; eF + eB"),
    Row("SELFIE", "selfie", {"warmup": 1, "queue": 2}, begins=2, paper="M + M; 2eF + eB"),
    Row("DivideMix", "dividemix", {"warmup": 1}, begins=2, paper="2M + 2M; (4m + 2)eF + 2eB"),
    Row("FedCorr, first stage", "fedcorr", {"iterations": 9, "visits": 4}),
    Row("FedCorr, on clean clients", "fedcorr", {"iterations": 1, "visits": 8, "finetuning": 9}),
    Row("FedNoRo, detection", "fednoro", {"warmup": 1}),
    Row("FedNoRo, teaching", "fednoro", {"warmup": 1, "begin": 1, "end": 2}, begins=2),
    Row("FedLN-AKD", "fedln_akd"),
    Row("Robust FL", "robust_fl", {"warmup": 1}, begins=2, paper="M + M; eF + eB"),
    Row("FOCUS", "focus"),
    Row("Client Selection", "client_selection"),
    Row("ClipFL, while it scores", "clipfl", {"warmup": 9}),
    Row("ClipFL of FB-NLL, while it scores", "clipfl_personal", {"warmup": 9}, TWO_TASKS),
    Row("RHFL", "rhfl", {}, TWO_TASKS),
    Row("IFCA-PFL, 2 models", "ifca_pfl", {}, TWO_TASKS),
    Row("FB-NLL", "fb_nll", ENCODERS, TWO_TASKS),
    within("FedCorr in clusters, first stage", "fb_nll_minus", FEDCORR),
    within("FedCorr + FB-NLL, first stage", "fb_nll", FEDCORR, correct_after=1),
    within("ClipFL + FB-NLL", "fb_nll", CLIPFL, correct_after=1),
    within("RHFL + FB-NLL", "fb_nll", RHFL, correct_after=1),
    at_server("FedAvg-FixMatch", "fedavg_fixmatch", **SURE),
    at_server("FedProx-FixMatch", "fedprox_fixmatch", **SURE),
    at_server("FedAvg-UDA", "fedavg_uda", **SURE),
    at_server("FedProx-UDA", "fedprox_uda", **SURE),
    at_server("SemiFL", "semifl", threshold=0.0),
    at_server("SSFL", "ssfl", **SURE),
    at_server("FedCon", "fedcon"),
    at_server("RSCFed", "rscfed"),
    at_server("FedMatch with helpers", "fedmatch", interval=1, confidence=0.0),
    at_server("FedAnchor", "fedanchor", threshold=0.0),
    at_server("(FL)^2", "fl2", threshold=0.0),
    at_server("FedCR", "fedcr"),
    at_server("FedCR without GCE", "fedcr", supervised="ce"),
    at_server("FedCR without L_cr", "fedcr", strength=0.0),
    at_server("FedCR without EMA", "fedcr", ema=0.0),
    at_server("FedCR with BYOL's loss", "fedcr", regulariser="byol"),
    at_server("FedCR, whole model", "fedcr", whole_model=True),
    at_server("FedCR-FedEMA", "fedcr_fedema"),
)
