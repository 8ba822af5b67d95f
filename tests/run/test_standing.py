"""Which clients stand out at the end of a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import rayfl
from rayfl.run.standing import list_standing, tell_standing
from rayfl.tracking.store import default_uri, open_client
from tests.audit.toys import make_settings


def test_only_who_is_far_from_the_others_stands_out() -> None:
    near = np.array([0.90, 0.91, 0.92, 0.89, 0.40, np.nan])
    (row,) = list_standing({"estimate/expertise": near, "similarity": np.eye(6)})
    assert (row["client"], row["estimate"]) == (4, "expertise")
    assert row["deviations"] < 0


@pytest.mark.parametrize("values", [[0.9, 0.9, 0.9, 0.901], [0.9, 0.1, 0.5]])
def test_hairs_and_handfuls_accuse_nobody(values: list[float]) -> None:
    assert list_standing({"estimate/trust": np.array(values)}) == []


def test_a_run_ends_with_the_client_that_its_method_distrusts(tmp_path: Path) -> None:
    noise = {"name": "symmetric", "rate": [0.0, 0.0, 0.0, 0.0, 0.0, 0.9]}
    method = {"name": "fedrn", "warmup": 1, "k": 1}
    training = {"rounds": 12, "clients_per_round": 6, "epochs": 3, "lr": 0.1}
    settings = make_settings(
        clients=6, noise=noise, method=method, output=str(tmp_path), training=training
    )
    result = rayfl.run({**settings, "tracking": {"enabled": True}})
    lines = [*tell_standing(result.directory)]
    assert lines[0] == "clients that stand out"
    assert any(line.split()[0] == "5" and "expertise" in line for line in lines[1:])
    with np.load(result.directory / "arrays.npz") as arrays:
        assert arrays["estimate/kept"].shape == (6,)
    assert result.mlflow_run_id is not None
    client = open_client(default_uri(tmp_path))
    tags = client.get_run(result.mlflow_run_id).data.tags
    shown = [each["path"] for each in json.loads(tags["mlflow.loggedArtifacts"])]
    assert shown == ["clients.json", "standing.json"]
    kept = client.download_artifacts(result.mlflow_run_id, "standing.json", str(tmp_path))
    table = json.loads(Path(kept).read_text(encoding="utf-8"))
    estimates = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert ("5", "expertise") in [(row["client"], row["estimate"]) for row in estimates]
