"""Whole audits: what they find, what they must not see, and federations that are odd."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rayfl
from rayfl.audit.encoders import choose_encoder
from rayfl.audit.story import Audit
from rayfl.audit.subject import Subject, open_subject
from rayfl.errors import ConfigError
from rayfl.estimate.label_quality import measure_selection
from tests.audit.toys import QUICK, make_settings

BAD = 3


def test_the_bad_client_is_accused_and_nobody_else(made: Audit) -> None:
    accused = [client.client for client in made.findings.clients if client.accused]
    assert accused == [BAD]
    realised = made.subject.scenario.realised
    assert realised is not None
    assert made.findings.of(BAD).share.value == pytest.approx(realised[BAD], abs=0.1)


def test_wrong_labels_are_flagged_and_right_ones_suggested(made: Audit) -> None:
    samples, scenario = made.findings.samples, made.subject.scenario
    assert scenario.true is not None
    true = scenario.true[samples.rows]
    right = measure_selection(~samples.flagged, samples.given, true)
    assert right.precision > 0.95
    assert right.recall > 0.95
    wrong = samples.flagged & (samples.given != true)
    assert (samples.suggested[wrong] == true[wrong]).mean() > 0.8
    assert samples.score.min() >= 0
    assert samples.score.max() <= 1


def test_every_estimator_ranks_the_bad_client_last(made: Audit) -> None:
    for name in ("disagreement", "losses", "confident", "neighbours", "subspaces", "votes"):
        values = [client.evidence[name] for client in made.findings.clients]
        assert int(np.argmax(values)) == BAD, name
    for name in ("expertise", "reliability"):
        values = [client.evidence[name] for client in made.findings.clients]
        assert int(np.argmin(values)) == BAD, name


def test_every_stage_says_what_it_would_have_sent(made: Audit) -> None:
    stages = {sent.stage: sent for sent in made.findings.sent}
    samples = len(made.findings.samples)
    # 64 pixels: means and products, in single precision, of four clients.
    assert stages["axes"].up == 4 * 4 * (64 + 64 * 64)
    assert stages["duplicates"].up == 32 * samples
    assert stages["conclusions"].up < 4 * 8 * 1024


def test_the_truth_is_not_looked_at(made: Audit, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_without_truth(config: Any) -> Subject:
        subject = open_subject(config)
        blind = dataclasses.replace(subject.scenario, true=None)
        return dataclasses.replace(subject, scenario=blind)

    monkeypatch.setattr("rayfl.audit.story.open_subject", open_without_truth)
    blind: Audit = rayfl.audit(make_settings(), plan=QUICK)
    assert np.array_equal(blind.findings.samples.score, made.findings.samples.score)


@pytest.mark.long
@pytest.mark.usefixtures("cluster")
def test_actors_find_the_same_to_the_bit(made: Audit) -> None:
    settings = make_settings(fleet="ray", device="cpu", resources={"actors": 2})
    found: Audit = rayfl.audit(settings, plan=QUICK)
    assert np.array_equal(found.findings.samples.score, made.findings.samples.score)
    assert np.array_equal(found.findings.samples.opinions, made.findings.samples.opinions)
    shares = [[client.share for client in each.findings.clients] for each in (found, made)]
    assert shares[0] == shares[1]


def test_clean_labels_accuse_nobody() -> None:
    found: Audit = rayfl.audit(make_settings(noise="none"), plan=QUICK)
    assert not [client for client in found.findings.clients if client.accused]
    assert found.findings.samples.flagged.mean() < 0.03


# -- odd federations -------------------------------------------------------------------------------


def deal(tmp_path: Path, owner: np.ndarray[Any, Any], **changes: Any) -> Audit:
    """An audit of 400 digits whose owners are these."""
    np.save(tmp_path / "owner.npy", owner)
    partition = {"name": "explicit", "file": str(tmp_path / "owner.npy")}
    settings = make_settings(
        split={"train_samples": {"first": len(owner)}},
        partition=partition,
        clients=int(owner.max()) + 1,
        noise="none",
    )
    audit: Audit = rayfl.audit({**settings, **changes}, plan=QUICK)
    return audit


def test_small_single_and_lonely_classes_are_said_in_words(tmp_path: Path) -> None:
    subject = open_subject(make_settings(split={"train_samples": {"first": 400}}))
    labels = subject.dataset.train.y[:400]
    owner = np.arange(400) % 2
    owner[:30] = 2
    owner[(labels == 7) & (np.arange(400) >= 30)] = 3
    found = deal(tmp_path, owner.astype(np.int64))
    notes = {client.client: " ".join(client.notes) for client in found.findings.clients}
    assert "It has 30 samples" in notes[2]
    assert "All its labels are '7'" in notes[3]


def test_a_class_of_one_site_alone_is_said_in_words(tmp_path: Path) -> None:
    subject = open_subject(make_settings(split={"train_samples": {"first": 400}}))
    labels = subject.dataset.train.y[:400]
    owner = np.where(labels == 5, 0, np.arange(400) % 3)
    found = deal(tmp_path, owner.astype(np.int64))
    assert "Nobody else has '5'" in " ".join(found.findings.of(0).notes)


def test_skewed_classes_are_warned_of(tmp_path: Path) -> None:
    subject = open_subject(make_settings(split={"train_samples": {"first": 400}}))
    labels = subject.dataset.train.y[:400]
    found = deal(tmp_path, (labels // 2).astype(np.int64))
    warned = [client for client in found.findings.clients if "differ" in " ".join(client.notes)]
    assert len(warned) == 5


def test_a_site_without_a_right_label_is_accused() -> None:
    noise = {"name": "symmetric", "rate": [0.0, 0.0, 0.0, 1.0]}
    found: Audit = rayfl.audit(make_settings(noise=noise), plan=QUICK)
    assert found.findings.of(BAD).share.value > 0.8
    assert [client.client for client in found.findings.clients if client.accused] == [BAD]


def test_one_client_alone_is_told_so() -> None:
    settings = make_settings(clients=1, noise="none")
    found: Audit = rayfl.audit(settings, plan=QUICK)
    assert "There is one client" in " ".join(found.findings.notes)


def test_encoders_are_chosen_by_the_images() -> None:
    assert choose_encoder((8, 8, 1))["name"] == "pixels"
    assert choose_encoder((28, 28, 1)) == {"name": "hog", "cell": 4}
    assert choose_encoder((224, 224, 1))["cell"] == 32


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a configuration file or the directory of a run"):
        rayfl.audit(tmp_path)
