"""`rayfl check`: a table, and an exit code."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rayfl.commands.check import check
from rayfl.errors import ConfigError
from rayfl.testing import ON_RAY, QUICK

CONFIG = """
data: digits
split: {train_samples: {per_class: 30}, test_samples: {per_class: 10}}
clients: 4
model: linear
method: {name: fedprox, mu: 0.5}
training: {rounds: 100, fraction: 1.0, lr: 0.1}
"""


def run_check(*words: str) -> Result:
    return CliRunner().invoke(check, words, catch_exceptions=False)


def test_a_method_that_keeps_its_promises_exits_with_0() -> None:
    found = run_check("fedavg", "--quick")
    lines = found.output.splitlines()
    assert [line.split("  ")[0] for line in lines[:-1]] == ["holds"] * len(QUICK)
    assert lines[-1].startswith(f"{len(QUICK)} hold, 0 broken, 0 untried (")
    assert found.exit_code == 0


def test_a_broken_promise_exits_with_4_and_says_what_differed_and_what_to_do() -> None:
    found = run_check("tests.testing.traps:KeptByPlace", "--quick", "--only", "order")
    assert found.exit_code == 4
    lines = [line.strip() for line in found.output.splitlines()]
    assert lines[1] == (
        "BROKEN   order                 the order in which clients are visited changes no bit"
    )
    assert lines[2].startswith("differs from round 1 on (test/loss ")
    assert lines[3].startswith("-> Something lives on at the place from client to client")


def test_what_builds_on_a_broken_promise_is_not_tried() -> None:
    words = ("--quick", "--only", "order", "--only", "resumes")
    found = run_check("tests.testing.traps:KeptByPlace", *words)
    assert "untried  resumes               first mend `order`" in found.output
    assert found.output.splitlines()[-1].startswith("1 hold, 1 broken, 1 untried")


def test_a_configuration_of_ones_own_is_shortened(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(CONFIG)
    words = ("--quick", "--only", "learns")
    assert "runs                  3 rounds" in run_check("fedprox", str(path), *words).output
    longer = run_check("fedprox", str(path), "--rounds", "4", *words)
    assert "runs                  4 rounds" in longer.output


def test_a_configuration_of_another_method_lends_all_but_its_hyper_parameters(
    tmp_path: Path,
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(CONFIG)
    found = run_check("fedavg", str(path), "--quick", "--only", "order")
    assert found.output.splitlines()[-1].startswith("2 hold")


def test_overrides_reach_the_method() -> None:
    with pytest.raises(ConfigError, match=r"method\.mu"):
        run_check("fedprox", "method.mu=-1", "--quick")


def test_the_floor_is_the_users() -> None:
    found = run_check("fedavg", "--quick", "--only", "learns", "--floor", "1", "--rounds", "2")
    assert found.exit_code == 4
    assert "after 2 rounds; the floor is 1" in found.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("fedagv",), "Did you mean 'fedavg'"),
        (("fedavg", "--only", "ordr"), r"--only names a promise .*; got ordr\. Did you mean"),
        (("fedavg", "a.yaml", "b.yaml"), r"takes one CONFIG; got a\.yaml and b\.yaml"),
        (("fedavg", "nowhere.yaml"), "readable YAML file"),
    ],
)
def test_slips_are_refused_in_a_sentence(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run_check(*words, "--quick")


@pytest.mark.long
def test_on_ray_three_actors_find_what_one_place_hides(cluster: None) -> None:
    found = run_check("tests.testing.traps:OwnPlace", *(f"--only={name}" for name in ON_RAY))
    assert found.exit_code == 4
    assert "holds    one actor" in found.output
    assert "BROKEN   three actors" in found.output
    assert "untried  killed actor          first mend `three actors`" in found.output
