"""Finished runs of a small study, made once: four methods on noisy digits, two seeds, tracked."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from rayfl.errors import RayflError
from rayfl.run.experiment import run
from rayfl.study.gather import gather_results
from rayfl.study.order import StudyOrder
from rayfl.study.result import StudyResult
from rayfl.tracking.store import default_uri
from tests.study.tiny import study_file

NOISE = {"name": "symmetric", "rate": {"name": "ramp", "min": 0.0, "max": 0.6}}
CHANGES = {
    "title": "Small & <small>",
    "paper": "A paper",
    "notes": "One note.",
    "set": {
        "split": {"public": {"fraction": 0.1}},
        "training": {"rounds": 3, "epochs": 2},
        "tracking": {"enabled": True},
    },
    "axes": {
        "method": {
            "fedds": {"title": "FedDS", "set": {"method": "fedds"}},
            "fedrn": {"title": "FedRN", "set": {"method": {"name": "fedrn", "k": 1, "warmup": 1}}},
            "local_k": {
                "title": "local k",
                "set": {
                    "method": {"name": "local_k_similarity", "k": 2, "encoder": {"name": "pixels"}}
                },
            },
            "gain": {"title": "Delta", "difference": ["fedds", "fedavg"]},
        },
        "noise": {"noisy": {"title": "noisy", "set": {"noise": NOISE}}},
    },
}
ONLY = ("method=fedavg,fedds,gain,fedrn,local_k,rhfl", "noise=noisy")


@dataclass(frozen=True)
class Made:
    """A study file with its runs."""

    path: Path
    output: Path

    @property
    def uri(self) -> str:
        return default_uri(self.output)

    @property
    def result(self) -> StudyResult:
        return gather_results(self.path, self.output)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("made")
    path = study_file(folder, CHANGES)
    output = folder / "out"
    order = StudyOrder(path, ONLY, output=output)
    order.remember()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own, of libraries that it uses
        for _, _, found in order.configurations():
            assert not isinstance(found, RayflError), found
            run(found.config)
    return Made(path, output)
