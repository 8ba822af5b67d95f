"""The network of a run as the encoder of its audit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rayfl
from rayfl.audit.encoders import COLOURLESS
from rayfl.audit.own_network import LEARNED, OwnNetwork
from rayfl.audit.story import Audit, note_encoder
from rayfl.audit.subject import open_subject
from rayfl.errors import ConfigError, StorageError
from rayfl.models.encoders.hog import HoG
from rayfl.models.network import Network
from rayfl.run.result import Result
from tests.audit.toys import QUICK, make_settings

pytestmark = pytest.mark.filterwarnings("ignore")
BAD = 3


def train(output: Path, **changes: Any) -> Result:
    training = {"rounds": 5, "epochs": 2, "lr": 0.1, "normalise": "dataset"}
    settings = {**make_settings(), "training": training, "output": str(output), **changes}
    result: Result = rayfl.run(settings)
    return result


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return train(tmp_path_factory.mktemp("own"), tracking={"enabled": True})


def test_the_run_s_own_network_finds_its_bad_client(trained: Result) -> None:
    found: Audit = rayfl.audit(trained.directory, plan={**QUICK, "encoder": "own"})
    assert isinstance(found.plan.encoder, OwnNetwork)
    assert [client.client for client in found.findings.clients if client.accused] == [BAD]
    assert LEARNED in found.findings.notes


def test_features_are_what_the_network_s_head_reads(trained: Result) -> None:
    subject = open_subject(trained.directory)
    x = subject.dataset.train.x[:40]
    found: Audit = rayfl.audit(trained.directory, plan={**QUICK, "encoder": "own"})
    spec: Any = found.plan.encoder
    encoder = spec.build(subject.dataset.shape)
    features = encoder.encode(x)
    assert features.shape == (40, encoder.dim)
    network = trained.model
    assert isinstance(network, Network)
    logits = network.head(torch.from_numpy(features)).detach().numpy()
    mean, std = (np.array(each, np.float32) for each in (spec.mean, spec.std))
    pixels = torch.from_numpy((x.transpose(0, 3, 1, 2) / 255 - mean) / std).float()
    whole = network.eval()(pixels).detach().numpy()
    assert logits == pytest.approx(whole, abs=1e-4)
    assert spec.std != (1.0,)


def test_what_an_encoder_makes_unsure_is_said() -> None:
    assert [*note_encoder(HoG(), (32, 32, 3))] == [COLOURLESS]
    assert [*note_encoder(HoG(), (28, 28, 1))] == []
    assert [*note_encoder(OwnNetwork(run="run"), (32, 32, 3))] == [LEARNED]


def test_a_configuration_has_no_network_of_its_own() -> None:
    with pytest.raises(ConfigError, match="'own' is the network of the run that is audited"):
        rayfl.audit(make_settings(), plan={"encoder": "own"})


def test_a_run_that_left_no_model_is_refused(tmp_path: Path) -> None:
    result = train(tmp_path, tracking={"enabled": False})
    with pytest.raises(StorageError, match="left no model"):
        rayfl.audit(result.directory, plan={**QUICK, "encoder": "own"})


def test_a_network_that_normalises_by_the_batch_is_refused(tmp_path: Path) -> None:
    model = {"name": "preact_resnet18", "track_running_stats": False}
    training = {"rounds": 1, "clients_per_round": 1}
    result = train(tmp_path, model=model, training=training, tracking={"enabled": True})
    with pytest.raises(ConfigError, match="must normalise with running statistics"):
        rayfl.audit(result.directory, plan={**QUICK, "encoder": "own"})
