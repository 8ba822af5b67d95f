"""What commands print for programs."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rayfl.commands.doctor import Check
from rayfl.commands.json_output import print_json
from rayfl.commands.listings import LISTINGS
from rayfl.commands.registries import find_registry
from rayfl.config.shipped import list_shipped
from tests.front.cli import invoked_json

TINY: dict[str, Any] = {
    "data": {"name": "blobs", "samples": 100, "test_samples": 20, "classes": 3},
    "clients": 3,
    "model": {"name": "mlp", "hidden": [4]},
    "training": {"rounds": 1},
    "fleet": "inline",
    "tracking": {"enabled": False},
}
STUDY = """
title: Two methods
base: tiny.yaml
axes:
  method:
    fedavg: {title: FedAvg, set: {method: fedavg}}
    later: {title: Later, missing: not built}
seeds: [0]
"""


@pytest.fixture
def tiny(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (home / "tiny.yaml").write_text(yaml.safe_dump(TINY))
    (home / "study.yaml").write_text(STUDY)
    return home


def test_values_are_plain_and_no_number_is_odd(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({1: [math.nan, np.float32(0.5), np.int64(2), Path("a"), math.inf], "b": ("c",)})
    printed = capsys.readouterr().out
    assert yaml.safe_load(printed) == {"1": [None, 0.5, 2, "a", None], "b": ["c"]}


@pytest.mark.parametrize("plural", sorted(LISTINGS))
def test_a_listing_has_every_component_with_its_settings(plural: str) -> None:
    found = invoked_json(plural)
    assert [each["name"] for each in found] == find_registry(plural).names()
    assert all({"path", "about", "settings"} <= each.keys() for each in found)
    assert invoked_json(plural, found[0]["name"]) == found[0]


def test_configurations_and_datasets_are_listed() -> None:
    assert [each["name"] for each in invoked_json("configs")] == list_shipped()
    datasets = {each["name"]: each for each in invoked_json("data", "list")}
    assert sorted(datasets) == find_registry("datasets").names()
    assert datasets["digits"]["state"] == "always here"
    assert datasets["mura"]["state"] in ("by hand", "here")
    assert "rayfl data get svhn" in datasets["svhn"]["source"] or (
        datasets["svhn"]["state"] == "here"
    )
    assert len({each["about"] for each in datasets.values()}) == len(datasets)


def test_a_run_is_one_value(tiny: Path) -> None:
    found = invoked_json("run", "tiny.yaml")
    assert found["config"]["clients"] == 3
    assert (tiny / "outputs" / "runs") in Path(found["run"]).parents
    assert len(found["model_sha256"]) == 64
    assert found["mlflow_run"] is None


@pytest.mark.slow
def test_a_study_is_one_value_planned_and_run(tiny: Path) -> None:
    planned = invoked_json("study", "study.yaml", "--plan", "--ledger", "none")
    assert [(run["choices"], run["over"]) for run in planned["runs"]] == [
        ({"method": "fedavg"}, False)
    ]
    found = invoked_json("study", "study.yaml", "--ledger", "none")
    first, later = found["cells"]
    assert first["scores"]["accuracy"]["mean"] >= 0
    assert list(first["runs"]) == ["0"]
    assert later["missing"] == "not built"


def test_the_doctor_s_findings_are_one_value(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = [Check("disk", True, "much"), Check("torch", True, "works", "none")]
    monkeypatch.setattr("rayfl.commands.doctor.run_checks", lambda output, address: checks)
    assert invoked_json("doctor") == [
        {"what": "disk", "good": True, "found": "much", "remedy": ""},
        {"what": "torch", "good": True, "found": "works", "remedy": "none"},
    ]
