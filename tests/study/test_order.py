"""What is asked of a study: seeds, the command that says it again, labels for MLflow, and its
memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfl.errors import ConfigError, RayflError
from rayfl.federation.datasets import find_data_root
from rayfl.study.order import StudyOrder, fill_placeholders, parse_seeds
from tests.study.tiny import study, study_file


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1", (0,)),
        ("2", (0, 1)),
        ("4", (0, 1, 2, 3)),
        ("4,7", (4, 7)),
        ("5,", (5,)),
        ("3, 3", (3,)),
    ],
)
def test_seeds_are_a_number_or_a_list(tmp_path: Path, text: str, expected: tuple[int, ...]) -> None:
    assert parse_seeds(text, study(tmp_path)) == expected


@pytest.mark.parametrize("text", ["0", "-1", "x", ",", "1,-2", "1,x"])
def test_wrong_seeds_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match="--seeds is a number of seeds"):
        parse_seeds(text, study(tmp_path))


def test_the_command_of_a_cell_says_the_same_again(home: Path) -> None:
    order = StudyOrder(
        study_file(home), ("noise=noisy",), (4,), 0.5, home / "out dir", ("training.lr=0.2",)
    )
    assert order.command() == (
        "rayfl study tiny.yaml --only noise=noisy --seeds 4, --scale 0.5 "
        f"-o '{home / 'out dir'}' training.lr=0.2"
    )
    cell = order.cells[0]
    assert order.command(cell).startswith(
        "rayfl study tiny.yaml --only method=fedavg --only noise=noisy --seeds 4,"
    )


def test_a_configuration_carries_its_cell_as_tags(home: Path) -> None:
    order = StudyOrder(
        study_file(home), seeds=(3,), output=home / "out", overrides=("training.lr=0.2",)
    )
    cell = order.cells[1]
    config = order.configuration(cell, 3).config
    assert config.seed == 3
    assert config.output == home / "out"
    assert config.training.lr == 0.2
    assert config.tracking.experiment == "Tiny"
    assert config.tracking.run_name == "FedAvg, noisy, seed 3"
    assert config.tracking.tags == {
        "study": "tiny",
        "method": "fedavg",
        "noise": "noisy",
        "seed": "3",
    }


def test_labels_that_are_written_stand(home: Path) -> None:
    written = {"set": {"tracking": {"experiment": "mine", "tags": {"team": "a", "method": "ours"}}}}
    config = (
        StudyOrder(study_file(home, written))
        .configuration(StudyOrder(study_file(home, written)).cells[0], 0)
        .config
    )
    assert config.tracking.experiment == "mine"
    assert config.tracking.tags["team"] == "a"
    assert config.tracking.tags["method"] == "ours"


def test_the_scale_is_a_tag_and_a_note(home: Path) -> None:
    order = StudyOrder(study_file(home, {"set": {"clients": 20}}), scale=0.5)
    made = order.configuration(order.cells[0], 0)
    assert made.config.tracking.tags["scale"] == "0.5"
    assert "clients 20 -> 10" in made.note


def test_the_digest_is_that_of_a_plain_run(home: Path) -> None:
    """Where a run is listed has no part in what it is: `rayfl run` of the same settings is found in
    the store."""
    order = StudyOrder(study_file(home))
    named = order.configuration(order.cells[0], 0).config
    plain = StudyOrder(study_file(home, {"title": "Other"})).configuration(order.cells[0], 0).config
    assert named.digest == plain.digest


def test_a_cell_with_a_wrong_setting_is_told_and_the_others_stand(home: Path) -> None:
    wrong = {"axes": {"method": {"fedprox": {"set": {"method": {"name": "fedprox", "mu": -1}}}}}}
    made = {
        cell.key: config
        for cell, _, config in StudyOrder(study_file(home, wrong), seeds=(0,)).configurations()
    }
    assert isinstance(made["fedprox", "clean"], RayflError)
    assert "tiny:\n  method.mu: must be" in str(made["fedprox", "clean"])
    assert not isinstance(made["fedavg", "clean"], RayflError)


def test_seed_and_data_are_filled_in() -> None:
    written = {"a": ["{seed}", 1], "b": {"c": "{data}/x.pt"}, "d": "seed {seed}"}
    assert fill_placeholders(written, 7) == {
        "a": [7, 1],
        "b": {"c": f"{find_data_root()}/x.pt"},
        "d": "seed {seed}",
    }


def test_a_study_remembers_what_was_asked(home: Path) -> None:
    path = study_file(home)
    asked = StudyOrder(path, ("method=fedavg",), (0, 5), 0.5, home / "out", ("clients=5",))
    asked.remember()
    assert StudyOrder.remembered(path, home / "out") == asked
    assert StudyOrder.remembered(path, home / "elsewhere") == StudyOrder(
        path, output=home / "elsewhere"
    )


def test_a_spoilt_memory_is_none(home: Path) -> None:
    path = study_file(home)
    StudyOrder(path, output=home / "out").remember()
    (home / "out" / "studies" / "tiny" / "order.json").write_text("{")
    assert StudyOrder.remembered(path, home / "out").seeds is None
