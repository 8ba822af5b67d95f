"""A resume of a damaged run gives the bits of an undisturbed one, or a sentence: never other bits,
never a traceback."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.reliability.mutations import REFUSED, SAME, Victim


@pytest.fixture
def victim(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Victim:
    caplog.set_level(logging.CRITICAL, "rayfl")  # of hundreds that are expected
    return Victim(tmp_path, seed=1)


@pytest.mark.long
def test_damage_at_random_and_by_aim_never_changes_a_bit(victim: Victim) -> None:
    victim.damage_at_random(120)
    victim.damage_aimed(80)
    assert not victim.failures
    assert {verdict for _, verdict in victim.tally} == {SAME, REFUSED}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("round",), 2),
        (("round",), 1),
        (("round",), 7),
        (("clients", "0"), "4"),
        (("clients", "0"), "1"),
        (("clients", "0", "c"), "b"),
        (("clients", "0", "c"), "C"),
    ],
    ids=str,
)
def test_one_edit_of_the_newest_manifest_is_no_other_run(
    victim: Victim, place: tuple[str, ...], value: object
) -> None:
    """Rounds and keys that are plausible in themselves."""
    victim.edit_manifest(place, value)
    victim.judge("edit", f"{place} to {value}")
    assert not victim.failures
    assert victim.tally == {("edit", SAME): 1}, "the checkpoint before it is whole"


@pytest.mark.alone
@pytest.mark.timeout(3600)
def test_two_thousand_random_and_five_hundred_aimed_mutations(victim: Victim) -> None:
    victim.damage_at_random(2000)
    victim.damage_aimed(500)
    assert not victim.failures
