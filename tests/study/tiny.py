"""A study of a second: the digits of scikit-learn, four clients, two rounds, in this process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from rayfl.config.files import merge_settings
from rayfl.study.cells import load_study
from rayfl.study.schema import Study

TINY: Mapping[str, Any] = {
    "title": "Tiny",
    "set": {
        "data": "digits",
        "clients": 4,
        "model": {"name": "mlp", "hidden": [8]},
        "training": {"rounds": 2, "batch_size": 64, "lr": 0.1},
        "fleet": "inline",
        "tracking": {"enabled": False},
    },
    "axes": {
        "method": {
            "fedavg": {"title": "FedAvg", "set": {"method": "fedavg"}},
            "fedprox": {"title": "FedProx", "set": {"method": {"name": "fedprox", "mu": 0.5}}},
            "gain": {"title": "Delta", "difference": ["fedprox", "fedavg"]},
            "rhfl": {"title": "RHFL", "missing": "RHFL is not built"},
        },
        "noise": {
            "clean": {"title": "clean", "set": {"noise": "none"}},
            "noisy": {"title": "noisy", "set": {"noise": {"name": "symmetric", "rate": 0.4}}},
        },
    },
    "seeds": [0, 1],
    "scores": {"accuracy": {"title": "accuracy (%)", "percent": True}},
    "table": {"rows": ["method"], "columns": ["noise"]},
}

FIGURES = """table,dataset,method,metric,mean,std
T,clean,FedAvg,accuracy (%),90.00,1.0
T,noisy,FedAvg,accuracy (%),80.00,
T,clean,Delta,accuracy (%),+1.50,
T,clean,RHFL,accuracy (%),-,
"""
WHERE = {"table": "T", "dataset": "{noise}", "method": "{method}", "metric": "{score}"}


def write(path: Path, settings: Mapping[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(dict(settings), sort_keys=False))
    return path


def study_file(
    folder: Path, changes: Mapping[str, Any] | None = None, printed: bool = True
) -> Path:
    """The tiny study as a file, changed as a file changes its base; with figures to compare
    with."""
    settings = merge_settings(TINY, changes or {})
    if printed:
        (folder / "printed.csv").write_text(FIGURES)
        settings.setdefault("printed", {"file": "printed.csv", "where": WHERE})
    return write(folder / "tiny.yaml", settings)


def study(folder: Path, changes: Mapping[str, Any] | None = None) -> Study:
    return load_study(study_file(folder, changes))
