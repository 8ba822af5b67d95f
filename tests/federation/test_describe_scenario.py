"""Looking at a scenario: the table says what the arrays say, figures show it, and absent truth
stays absent."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rayfl.commands.scenario import scenario_commands as command
from rayfl.component import component
from rayfl.federation.dataset import Dataset, Images
from rayfl.federation.plan import FederationPlan
from rayfl.federation.scenario import DatasetReference, Scenario
from rayfl.federation.scenario_display import (
    draw_scenario_figures,
    draw_tables,
    format_percent,
    format_plain_text,
    list_client_rows,
    list_scenario_facts,
    print_scenario,
    save_scenario_figures,
)

NOTHING = float("nan")


@component
class Toy:
    """Sixty samples of three classes."""

    def load(self, root: Path) -> Dataset:
        y = np.arange(60) % 3
        images = Images(np.zeros((60, 1, 1, 1), np.uint8), y)
        return Dataset("toy", images, images, ("cat", "dog", "owl"))


def tiny(**change: Any) -> Scenario:
    """Client 0: three samples of two classes, one wrong. Client 1: two right ones of one class.
    Client 2: none."""
    scenario = Scenario(
        dataset=DatasetReference("toy", {"name": "toy"}, "00"),
        classes=("cat", "dog", "owl"),
        seed=3,
        owner=np.array([0, 0, 0, 1, 1, -1, -2, -4, -4], np.int32),
        given=np.array([0, 1, 2, 2, 2, 0, 1, 1, 0]),
        true=np.array([0, 1, 1, 2, 2, 0, 1, 1, 1]),
        nominal=np.array([0.4, 0.0, np.nan]),
    )
    return dataclasses.replace(scenario, **change)


def test_rows_by_hand() -> None:
    assert list_client_rows(tiny()) == [
        ("0", "3", "2", "40.00 %", "33.33 %"),
        ("1", "2", "1", "0.00 %", "0.00 %"),
        ("2", "0", "0", "-", "-"),
    ]


def test_without_truth_classes_are_the_given_ones_and_rates_unknown() -> None:
    assert list_client_rows(tiny(true=None), most=1) == [("0", "3", "3", "unknown", "unknown")]
    assert dict(list_scenario_facts(tiny(true=None)))["client noise"] == "unknown"


@pytest.mark.parametrize(
    ("what", "value"),
    [
        ("dataset", "toy, 9 training samples, 3 classes"),
        ("clients", "3, 5 samples (0 to 3 each)"),
        ("empty clients", "1"),
        ("client noise", "20.00 %"),
        ("unused", "1"),
        ("public", "1, noise 0.00 %"),
        ("validation", "0"),
        ("labelled", "2, noise 50.00 %"),
        ("test", "all"),
        ("seed", "3"),
        ("sha256", tiny().sha256),
    ],
)
def test_the_summary_by_hand(what: str, value: str) -> None:
    assert dict(list_scenario_facts(tiny()))[what] == value


@pytest.mark.parametrize(("rate", "text"), [(None, "unknown"), (NOTHING, "-"), (0.4021, "40.21 %")])
def test_rates_as_text(rate: float | None, text: str) -> None:
    assert format_percent(rate) == text


def test_plain_text_is_aligned_and_complete() -> None:
    lines = format_plain_text(list_scenario_facts(tiny()), list_client_rows(tiny())).splitlines()
    assert lines[0] == "dataset        toy, 9 training samples, 3 classes"
    table = lines[-4:]
    assert len({len(line) for line in table}) == 1
    assert table[1].split() == ["0", "3", "2", "40.00", "%", "33.33", "%"]


def test_a_terminal_gets_the_same_cells_in_a_drawn_table() -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    draw_tables(console, list_scenario_facts(tiny()), list_client_rows(tiny()))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "┃" in text
    assert all(cell in text for row in list_client_rows(tiny()) for cell in row)


def test_printing_says_how_many_clients_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_scenario(tiny(), most=2)
    assert capsys.readouterr().out.splitlines()[-1] == "... and 1 more clients"
    print_scenario(tiny())
    assert "more clients" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({}, {"classes_by_client", "sizes", "noise_by_client", "transition"}),
        ({"true": None}, {"classes_by_client", "sizes"}),
    ],
)
def test_figures_that_need_what_is_unknown_are_absent(
    change: dict[str, Any], names: set[str]
) -> None:
    assert set(draw_scenario_figures(tiny(**change))) == names


def test_the_class_map_shows_the_counts() -> None:
    axes = draw_scenario_figures(tiny())["classes_by_client"].axes[0]
    image = axes.images[0].get_array()
    np.testing.assert_array_equal(image, [[1, 0, 0], [2, 0, 0], [0, 2, 0]])
    assert [text.get_text() for text in axes.texts] == ["1", "2", "2"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("client", "class (true label)")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["cat", "dog", "owl"]


def test_the_transition_matrix_is_over_clients_and_its_rows_are_shares() -> None:
    image = draw_scenario_figures(tiny())["transition"].axes[0].images[0].get_array()
    np.testing.assert_allclose(np.asarray(image), np.array([[1, 0, 0], [0, 0.5, 0.5], [0, 0, 1]]))


def test_the_noise_figure_has_both_rates() -> None:
    figure = draw_scenario_figures(tiny())["noise_by_client"]
    nominal, realised = (points.get_offsets() for points in figure.axes[0].collections)
    np.testing.assert_allclose(np.ma.getdata(nominal)[:2], np.array([[0, 0.4], [1, 0]]))
    np.testing.assert_allclose(np.ma.getdata(realised)[:2], np.array([[0, 1 / 3], [1, 0]]))
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["nominal", "realised"]


def test_the_sizes_histogram_counts_clients() -> None:
    from matplotlib.patches import Rectangle

    bars = [
        bar
        for bar in draw_scenario_figures(tiny())["sizes"].axes[0].patches
        if isinstance(bar, Rectangle)
    ]
    assert [bar.get_height() for bar in bars] == [1, 0, 1, 1]


@pytest.mark.parametrize(("clients", "every"), [(400, 1), (401, 2), (10_000, 25)])
def test_many_clients_are_thinned_out_and_the_axis_says_so(clients: int, every: int) -> None:
    owner = np.arange(clients, dtype=np.int32)
    labels = np.arange(clients) % 3
    crowd = tiny(owner=owner, given=labels, true=labels, nominal=np.zeros(clients))
    axes = draw_scenario_figures(crowd)["classes_by_client"].axes[0]
    shown = axes.images[0].get_array()
    assert shown is not None
    np.testing.assert_array_equal(shown.argmax(axis=0), labels[::every])
    assert axes.get_xlabel() == (
        "client" if every == 1 else f"client (one in {every} of {clients} is drawn)"
    )


def test_figures_are_saved_as_png(tmp_path: Path) -> None:
    paths = save_scenario_figures(tiny(), tmp_path / "new" / "figures")
    assert [path.suffix for path in paths] == [".png"] * 4
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_the_describe_command_prints_and_draws(elsewhere: bool, tmp_path: Path) -> None:
    tiny().save(tmp_path / "s")
    options = ["-o", str(tmp_path / "out")] if elsewhere else []
    result = CliRunner().invoke(
        command, ["describe", str(tmp_path / "s"), *options], catch_exceptions=False
    )
    assert result.exit_code == 0
    assert tiny().sha256 in result.output
    assert "33.33 %" in result.output
    assert (tmp_path / ("out" if elsewhere else "s/figures") / "transition.png").exists()
    assert Scenario.load(tmp_path / "s").sha256 == tiny().sha256


def test_the_build_command_saves_what_the_configuration_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Config(FederationPlan):
        def seeds_for(self, what: str) -> int:
            return {"data": 11}[what]

    def load_config(path: Path, overrides: tuple[str, ...]) -> Config:
        assert path.read_text() == "here"
        return Config.model_validate(
            {"data": Toy(), "clients": int(overrides[0].partition("=")[2])}
        )

    monkeypatch.setitem(
        sys.modules, "rayfl.config.schema", SimpleNamespace(load_config=load_config)
    )
    (tmp_path / "config.yaml").write_text("here")
    arguments = ["build", str(tmp_path / "config.yaml"), "clients=4", "-o", str(tmp_path / "s")]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    found = Scenario.load(tmp_path / "s")
    assert result.output.split() == [str(tmp_path / "s"), found.sha256]
    assert (found.clients, found.seed) == (4, 11)


def test_clients_with_names_are_called_by_them() -> None:
    named = tiny(client_names=("oslo", "rome", "bern"))
    assert [row[0] for row in list_client_rows(named)] == ["oslo", "rome", "bern"]
    drawn = draw_scenario_figures(named)
    for name in ("classes_by_client", "noise_by_client"):
        ticks = drawn[name].axes[0].get_xticklabels()
        assert [tick.get_text() for tick in ticks] == ["oslo", "rome", "bern"]
