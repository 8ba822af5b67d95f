"""Every method has its paper's algorithm, whose lines name code and settings that there are."""

from __future__ import annotations

from pathlib import Path

import pytest

from rayfl.algorithms import METHODS
from rayfl.algorithms.fedavg import FedAvg
from rayfl_site.algorithms import (
    ALGORITHMS,
    find_code,
    has_setting,
    list_faults,
    locate_code,
    read_algorithm,
)

OURS = sorted(METHODS.entries)


@pytest.mark.parametrize("name", OURS)
def test_a_methods_algorithm_names_what_there_is(name: str) -> None:
    assert list_faults(name) == []


def test_no_algorithm_is_of_a_method_that_is_not_there() -> None:
    assert {path.name for path in ALGORITHMS.iterdir()} <= {f"{name}.yaml" for name in OURS}


def test_code_is_found_where_it_stands() -> None:
    source = locate_code("rayfl.algorithms.fedds:FedDS.round")
    assert find_code("rayfl.algorithms.fedds:FedDS.round") is FedAvg.round
    assert source.path == "rayfl/algorithms/fedavg.py"
    assert source.text.startswith("def round(self")
    lines = Path(FedAvg.__module__.replace(".", "/") + ".py")
    assert lines.as_posix() == source.path


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("rayfl.protocol:Algorithm.client_labels", "client_labels: ClassVar"),
        ("rayfl.algorithms.fedrn:PROBE_SEED", "PROBE_SEED = 20221017"),
    ],
)
def test_a_value_is_shown_by_the_line_that_names_it(code: str, said: str) -> None:
    assert locate_code(code).text.startswith(said)


@pytest.mark.parametrize(
    "setting",
    [
        "training.epochs",
        "split.public",
        "noise.rate",
        "method.weighting",
        "method.weighting.tol",
        "seeds.model",
    ],
)
def test_settings_are_looked_up_in_sections_slots_and_methods(setting: str) -> None:
    assert has_setting(setting, "fedds")


@pytest.mark.parametrize(
    "setting", ["training.epoch", "noise.rat", "method.mu", "method.weighting.tolerance", "nothing"]
)
def test_a_setting_that_is_not_there_is_told(setting: str) -> None:
    assert not has_setting(setting, "fedds")


WRONG = """source: ""
lines:
  - text: " "
  - text: "w <- mean"
    code: rayfl.algorithms.fedavg:FedAvg.rounds
    setting: [training.rounds, method.mu]
"""


def test_each_fault_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "fedavg.yaml").write_text(WRONG)
    source, text, code, setting = list_faults("fedavg", tmp_path)
    assert source == "fedavg: the source is empty"
    assert text == "fedavg, line 1: the text is empty"
    assert code.startswith("fedavg, line 2: no code is 'rayfl.algorithms.fedavg:FedAvg.rounds'")
    assert setting == "fedavg, line 2: no setting is 'method.mu'"


def test_a_method_without_an_algorithm_is_told(tmp_path: Path) -> None:
    assert list_faults("fedavg", tmp_path) == ["fedavg: there is no fedavg.yaml"]
    assert read_algorithm("fedavg", tmp_path) is None
