"""What a person sees of a run: rates, remaining time, and how often it is said."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from rayfl.run.progress import (
    Lines,
    Live,
    Progress,
    RoundClock,
    Silent,
    choose_doing,
    choose_progress,
    format_duration,
    progress_for,
)

Sleep = Callable[[float], None]


def record(done: int, clients: int = 4, **test: float) -> dict[str, Any]:
    metrics = {f"test/{name}": value for name, value in test.items()}
    return {"round": done, "metrics": {"clients/participants": clients, **metrics}, "clock": {}}


@pytest.fixture
def sleep(monkeypatch: pytest.MonkeyPatch) -> Sleep:
    """A clock that only goes when told to."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def forward(seconds: float) -> None:
        now[0] += seconds

    return forward


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0s"),
        (0, "0s"),
        (5.4, "5s"),
        (59.6, "1m00s"),
        (184, "3m04s"),
        (3599, "59m59s"),
        (3720, "1h02m"),
        (360000, "100h00m"),
    ],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def told(clock: RoundClock, entry: dict[str, Any]) -> str:
    return clock.read(entry).line


def test_a_line_has_round_accuracy_best_loss_rate_and_remaining_time(sleep: Sleep) -> None:
    clock = RoundClock(10)
    sleep(2)
    assert told(clock, record(1, accuracy=0.5, loss=1.25)) == (
        "round  1/10  accuracy 0.5000 (best 0.5000)  loss 1.2500  2.0 clients/s  2s"
        "  at most 18s left"
    )
    sleep(2)
    line = told(clock, record(2, accuracy=0.25, loss=1.0))
    assert "accuracy 0.2500 (best 0.5000)" in line
    assert line.endswith("2.0 clients/s  4s  16s left")


def test_the_remaining_time_counts_from_the_first_round(sleep: Sleep) -> None:
    clock = RoundClock(30)
    sleep(20)  # imports, actors, and the first round
    assert told(clock, record(1)).endswith("at most 9m40s left")
    sleep(1)
    assert told(clock, record(2)).endswith("28s left")
    sleep(1)
    assert told(clock, record(3)).endswith("4.0 clients/s  22s  27s left")


def test_before_the_first_evaluation_nothing_is_said_of_accuracy(sleep: Sleep) -> None:
    clock = RoundClock(3)
    sleep(1)
    first = told(clock, record(1))
    assert "accuracy" not in first
    assert "nan" not in first
    told(clock, record(2, accuracy=0.5, loss=1.0))
    last = told(clock, record(3))
    assert "accuracy 0.5000 (best 0.5000)  loss 1.0000" in last
    assert "left" not in last


def test_a_resumed_run_expects_only_what_it_still_has_to_do(sleep: Sleep) -> None:
    clock = RoundClock(100)
    sleep(91)
    told(clock, record(91))
    sleep(1)
    assert told(clock, record(92)).endswith(" 8s left")


def test_a_resumed_run_that_tells_its_history_again_does_not_believe_it_took_no_time(
    sleep: Sleep,
) -> None:
    clock = RoundClock(100)
    for done in range(1, 51):
        line = told(clock, {**record(done), "clock": {"time/elapsed_s": 2.0 * done}})
    assert line.endswith("2.0 clients/s  1m40s  1m40s left")


def test_lines_come_seconds_apart_and_for_the_last_round(
    sleep: Sleep, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(5)
    for done in range(1, 6):
        sleep(0.9)
        lines.round(record(done))
    lines.close()
    said = capsys.readouterr().out.splitlines()
    assert [line.split("/")[0] for line in said] == ["round 1", "round 4", "round 5"]


def test_notes_are_said_no_more_often_than_rounds(
    sleep: Sleep, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(5)
    for done in range(5):
        lines.note(f"features {done}")
        sleep(1)
    assert capsys.readouterr().out.splitlines() == ["features 0", "features 2", "features 4"]


def test_silence_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Silent()
    silent.round(record(1))
    silent.note("features")
    silent.close()
    assert capsys.readouterr() == ("", "")


def test_the_live_line_is_redrawn_and_the_last_one_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    console = Console(width=80)
    live = Live(2, console)
    live.note("features")
    live.round(record(1, accuracy=0.25, loss=2.0))
    live.round(record(2, accuracy=0.5, loss=1.0))
    live.close()
    out = capsys.readouterr().out
    assert "features" in out.splitlines()[0]
    assert "round 2/2" in out
    # Narrow as the terminal is, the time is not what is cut.
    assert re.search(r"round 2/2 .* 0s  accuracy 0\.5000 \(best 0\.5000\)", out)
    assert "round 1/2" not in out


def test_a_terminal_shows_what_is_done_while_nothing_moves_and_a_bar_afterwards() -> None:
    screen = Console(file=StringIO(), force_terminal=True, width=110, color_system=None)
    live = Live(2, screen)
    live.note("fedavg, digits over 4 clients")
    live.note("connecting to Ray")
    live.live.refresh()
    live.round(record(1, accuracy=0.25, loss=2.0))
    live.live.refresh()
    live.close()
    out = screen.file.getvalue()  # type: ignore[attr-defined]
    assert out.index("fedavg, digits over 4 clients") < out.index("connecting to Ray")
    bar = out[out.index("round 1/2") :]
    assert "\u2501" in bar
    assert "connecting" not in bar


@pytest.mark.parametrize(("wanted", "kind"), [(True, Lines), (False, Silent), (None, Silent)])
def test_from_python_a_file_is_not_written_to_unless_that_is_wanted(
    monkeypatch: pytest.MonkeyPatch, wanted: bool | None, kind: type[Progress]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    assert type(choose_progress(wanted, 3)) is kind
    own = Silent()
    assert choose_progress(own, 3) is own


@pytest.mark.parametrize(
    ("quiet", "terminal", "kind"),
    [(True, True, Silent), (True, False, Silent), (False, False, Lines), (False, True, Live)],
)
def test_the_kind_fits_where_the_output_goes(
    monkeypatch: pytest.MonkeyPatch, quiet: bool, terminal: bool, kind: type[Progress]
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    chosen = progress_for(3, quiet)
    chosen.close()
    assert type(chosen) is kind


def test_what_is_done_before_there_is_a_run_is_said_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a line that goes when it is done: what a person sees next is the run."""
    screen = StringIO()
    monkeypatch.setattr(screen, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", screen)
    with choose_doing(None)("loading data"):
        pass
    assert "loading data" in screen.getvalue()
    before = len(screen.getvalue())
    for wanted in (False, Silent()):
        with choose_doing(wanted)("loading data"):
            pass
    assert len(screen.getvalue()) == before
    monkeypatch.setattr(screen, "isatty", lambda: False)
    with choose_doing(True)("loading data"):
        pass
    assert len(screen.getvalue()) == before
