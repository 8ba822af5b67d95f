"""The drill of kills, small; that it sees a changed bit; and the page that drills leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.reliability.desks import TARGETS, Kill, Sortie, gather_runs
from tests.reliability.kills import Executioner, carry_on, list_lost, read_lines
from tests.reliability.page import PAGE, read_tallies, write_page

SORTIE = Sortie(0, "run", "scaffold", (Kill("driver", 0.3, 0.05), Kill("actor", 0.6, 0.0)))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_kills_that_land_change_no_bit_and_what_one_changed_would_be_seen(tmp_path: Path) -> None:
    executioner = Executioner(tmp_path)
    ((sha256, history),) = executioner.refer_to(SORTIE)
    executioner.references["run", "scaffold"] = [(sha256, history[:-1])]
    lines = executioner.carry_out(SORTIE)
    assert [(line["landed"], line["outcome"]) for line in lines] == [(True, "other")] * 2
    assert lines[0]["starts"] == 2
    assert list_lost(lines) == [SORTIE.number] * 2
    # What was found stays, for somebody to look at: it is what nobody has disturbed.
    ((found, rounds),) = gather_runs(tmp_path / f"sortie-{SORTIE.number}")
    assert (found, rounds) == (sha256, history)


@pytest.mark.alone
@pytest.mark.timeout(4 * 3600)
def test_of_forty_kills_none_changes_a_bit(tmp_path: Path) -> None:
    tally = tmp_path / "kills.json"
    carry_on(tmp_path, 40, 3.0, "0/1", tally)
    lines = read_lines(tally)
    landed = [line for line in lines if line["landed"]]
    assert len(landed) >= 40
    assert list_lost(lines) == []
    assert {line["command"] for line in landed} == set(TARGETS)


def test_a_sortie_is_the_same_whenever_it_is_drawn() -> None:
    drawn = [Sortie.draw(number) for number in range(100)]
    assert drawn == [Sortie.draw(number) for number in range(100)]
    met = {(sortie.command, kill.target) for sortie in drawn for kill in sortie.kills}
    assert met == {(command, target) for command, targets in TARGETS.items() for target in targets}


def test_the_page_is_what_the_drills_have_left() -> None:
    assert PAGE.read_text() == write_page(read_tallies())
