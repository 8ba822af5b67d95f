"""The speed suite's own logic, and a tiny race through the plain loops and rayfl."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

from speed_suite import document, measure, methods, race, rayfl_system, targets, workloads  # noqa: E402
from speed_suite.bare_methods import Scaffold, find_place  # noqa: E402
from speed_suite.bare_place import Place, dealt  # noqa: E402
from speed_suite.federation import MARK, Clock, Federation, Settings  # noqa: E402
from speed_suite.plain import shuffled  # noqa: E402
from speed_suite.workloads import WORKLOADS, Workload  # noqa: E402

PATIENCE = 180.0
TINY = Workload(
    key="w0",
    title="8 clients of 20",
    network="tiny_mlp",
    config=workloads.tiny(clients=8, cohort=4),
    rounds={"": 4, "bare1": 6},
    warmup={"": 1},
    systems=("bare1", "bare2", "rayfl-inline"),
    tolerance=(0.002, 0.001),
)


def federation(sizes: list[int], cohorts: list[list[int]], epochs: int = 1) -> Federation:
    """Clients of these sizes, without anything to train."""
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    x, y = np.zeros((offsets[-1], 2, 2, 1), np.uint8), np.zeros(offsets[-1], np.int64)
    settings = Settings(
        "tiny_mlp", classes=2, lr=0.1, momentum=0.0, epochs=epochs, batch_size=2, drop_last=False
    )
    return Federation(
        x, y, offsets, x[:1], y[:1], np.array(cohorts), [np.ones(3, np.float32)], settings
    )


# -- a race ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_plain_loops_and_rayfl_train_the_same_and_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else it would keep what it makes below the cache of whoever runs the tests.
    monkeypatch.setenv("RAYFL_BENCH", str(tmp_path))
    said: list[str] = []
    found = race.race(TINY, TINY.systems, repeats=1, say=said.append)

    assert set(found["systems"]) == set(TINY.systems)
    # One step of one whole batch: nothing is left to chance but rounding.
    ours, plain = found["systems"]["rayfl-inline"], found["systems"]["bare2"]
    assert ours["moved"] == pytest.approx(plain["moved"], rel=1e-4)
    assert ours["moved"] > 0.01
    for name, system in found["systems"].items():
        assert system["samples_per_second"] == pytest.approx(4 * 20 / system["seconds"]), name
        assert 0 < system["startup"] < system["total"]
        assert system["peak_mb"] > 50
    assert ours["split"]["train"] <= ours["seconds"] * 1.5
    # The reference is kept with the arrays, for either number of rounds.
    (kept,) = tmp_path.glob("workloads/w0-*/reference-*.json")
    assert set(json.loads(kept.read_text())) == {"4", "6"}

    path = tmp_path / "performance.md"
    document.write(path, {"w0": {**found, "command": "python benchmarks/speed.py"}})
    text = path.read_text()
    assert "| plain PyTorch, 2 processes x 1 thread |" in text
    assert "python benchmarks/speed.py" in text


def test_a_saved_federation_is_read_back(tmp_path: Path) -> None:
    saved = federation([3, 1], [[0, 1]])
    saved.save(tmp_path)
    read = Federation.load(tmp_path)
    assert read.settings == saved.settings
    assert (read.size(0), read.rows(1), read.clients) == (3, slice(3, 4), 2)
    np.testing.assert_array_equal(read.initial[0], saved.initial[0])


@pytest.mark.parametrize(
    ("first", "last", "expected"), [(0, 1, 2 * 7), (1, 2, 2 * 3), (0, 2, 20), (1, 1, 0)]
)
def test_samples_of_rounds_count_epochs(first: int, last: int, expected: int) -> None:
    assert federation([5, 2, 1], [[0, 1], [1, 2]], epochs=2).samples(first, last) == expected


@pytest.mark.parametrize(("drop_last", "sizes"), [(False, [2, 2, 1]), (True, [2, 2])])
def test_every_epoch_visits_each_sample_once(drop_last: bool, sizes: list[int]) -> None:
    settings = replace(federation([5], [[0]]).settings, drop_last=drop_last)
    batches = [chosen.tolist() for chosen in shuffled(5, settings)]
    assert [len(batch) for batch in batches] == sizes
    assert len({position for batch in batches for position in batch}) == sum(sizes)


def test_the_processes_of_the_plain_loop_get_equal_loads() -> None:
    parts = dealt(federation([9, 1, 4, 4], [[0]]), [0, 1, 2, 3], 2)
    assert parts == [[0], [2, 3, 1]]


# -- the same training -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            {"accuracy": 0.95, "moved": 2.0},
            "w0: flower does not reach .* in 4 rounds: 0.9500 against 0.9000",
        ),
        ({"accuracy": 0.85, "moved": 2.0}, "0.8500 against 0.9000"),
        (
            {"accuracy": 0.90, "moved": 4.0},
            "does not move the weights as far in 4 rounds: 4.00000 against 2.00000",
        ),
    ],
)
def test_a_system_that_trains_something_else_is_refused(
    found: dict[str, float], message: str
) -> None:
    with pytest.raises(race.NotTheSame, match=message):
        race.same(TINY, "flower", found, {"accuracy": 0.9, "moved": 2.0})


def test_a_system_without_an_answer_is_told_with_its_output() -> None:
    with pytest.raises(measure.Failed, match=r"(?s)pfl ended with 3 .*no such thing"):
        measure.read_answer("pfl", 3, "chatter\n", "no such thing\n")


def test_an_answer_is_found_among_chatter() -> None:
    assert measure.read_answer("pfl", 1, f'hello\n{MARK}{{"seconds": 2}}\nbye\n', "") == {
        "seconds": 2
    }


@pytest.mark.parametrize(
    ("variant", "key"),
    [
        ("bf16", "precision"),
        ("stacked", "stack"),
        ("channels-first", "layout"),
        ("reached", "kernels"),
    ],
)
def test_a_variant_is_settings_on_top(variant: str, key: str) -> None:
    settings: dict[str, Any] = WORKLOADS["w1"].config
    for part in rayfl_system.VARIANTS[variant]:
        settings = rayfl_system.merged(settings, part)
    assert key in settings["training"]
    assert settings["training"]["epochs"] == 5
    assert settings["tracking"] == {"enabled": False}


def test_a_named_component_is_replaced_and_a_section_merged() -> None:
    below = {"model": {"name": "mlp", "hidden": [3]}, "training": {"lr": 1}}
    assert rayfl_system.merged(below, {"model": {"name": "linear"}, "training": {"epochs": 2}}) == {
        "model": {"name": "linear"},
        "training": {"lr": 1, "epochs": 2},
    }


# -- other methods in plain PyTorch ----------------------------------------------------------------


def small_config(method: str, rounds: int) -> dict[str, Any]:
    """8 clients of 20, 4 a round, three whole-batch steps: enough for a pull and for control
    variates to matter."""
    changes = dict(workloads.ON_W3[method][1])
    if "split" in changes:
        changes["data"] = {"samples": 8 * 20 + 30}
        changes["split"] = {"public": {"total": 30}}
    settings = rayfl_system.merged(workloads.tiny(clients=8, cohort=4), changes)
    return rayfl_system.merged(settings, {"training": {"epochs": 3, "rounds": rounds}})


def run_places(found: Federation) -> tuple[np.ndarray[Any, Any], Place]:
    """All rounds by two places, as threads of this process; the final weights, and the first."""
    kind = find_place(found.settings)
    shared = kind.share(found, 2)
    places = [kind(found, shared, rank) for rank in range(2)]
    barrier = threading.Barrier(2, timeout=60)

    def run_rounds(place: Place) -> None:
        for cohort in found.cohorts.tolist():
            place.run_round(cohort, barrier.wait)

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(run_rounds, places))
    return np.concatenate([tensor.numpy().ravel() for tensor in shared.weights]), places[0]


@pytest.mark.parametrize("method", workloads.ON_W3)
def test_the_plain_loops_method_is_rayfls(method: str, tmp_path: Path) -> None:
    from rayfl.config.schema import validate_config
    from rayfl.run.experiment import run

    settings = small_config(method, rounds=5)
    quiet = {**rayfl_system.QUIET, "fleet": "inline", "output": str(tmp_path)}
    config = validate_config(rayfl_system.merged(settings, quiet))
    workload = replace(TINY, config=settings)
    saved = workloads.federation_of(workload, config, rounds=5)
    saved.save(tmp_path)
    found = Federation.load(tmp_path)
    result = run(config)

    plain, place = run_places(found)
    np.testing.assert_allclose(plain, result.models[None], rtol=1e-4, atol=1e-5)
    # It is the method that makes them equal.
    averaging = replace(found, settings=replace(found.settings, method={"name": "fedavg"}))
    assert np.abs(run_places(averaging)[0] - plain).max() > 1e-3
    assert len(place.trained) == 5
    # FedDS's votes and EM are told apart by both.
    noted = rayfl_system.apart(list(result.history))
    assert (len(place.apart) == 5) is ("apart" in noted) is (method == "fedds")


def test_a_plain_method_without_momentum_refuses_it() -> None:
    settings = replace(federation([2], [[0]]).settings, momentum=0.9, method={"name": "scaffold"})
    found = replace(federation([2], [[0]]), settings=settings)
    with pytest.raises(ValueError, match="momentum must be 0"):
        Scaffold.share(found, 1)


# -- measuring -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("warmup", "seconds"), [(0, 3.0), (1, 2.0), (2, 1.0)])
def test_warm_up_rounds_are_not_timed(warmup: int, seconds: float) -> None:
    clock = Clock(started=100.0, warmup=warmup, begun=110.0, ends=[115.0, 118.0, 119.0])
    facts = clock.facts()
    assert (facts["seconds"], facts["startup"], facts["total"]) == (seconds, 10.0, 19.0)


def test_descendants_are_known_even_without_their_parent() -> None:
    child = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    nested = f"import subprocess, sys; subprocess.Popen({child})"
    parent = subprocess.Popen([sys.executable, "-c", f"{nested}; input()"], stdin=subprocess.PIPE)
    tree = measure.Tree(parent.pid)
    try:
        began = time.monotonic()
        while len(tree.look()) < 2:
            assert time.monotonic() - began < PATIENCE
            time.sleep(0.05)
        tree.measure()
        assert tree.peak > 5000
        parent.communicate(b"\n")
        (orphan,) = tree.left()
        assert measure.proportional_set_kb(orphan) > 0
    finally:
        with measure.ended(parent, tree):
            pass
    assert tree.left() == []


def test_where_a_round_went_adds_up() -> None:
    clocks = [
        {"time/train_s": 1.0, "time/busy_s": 1.6, "time/elapsed_s": 7.0, "time/evaluate_s": 0.0}
    ] * 3
    history: list[dict[str, Any]] = [
        {"round": i, "metrics": {}, "clock": clock} for i, clock in enumerate(clocks)
    ]
    history[-1]["clock"] = {**clocks[0], "time/evaluate_s": 9.0}
    found = rayfl_system.split(history, warmup=1, seconds=1.1, actors=2)  # type: ignore[arg-type]
    assert found["train"] == pytest.approx(0.8)
    assert found["idle"] == pytest.approx(0.2)
    assert found["between"] == pytest.approx(0.1)
    assert not {"evaluate_s", "elapsed_s"} & set(found)


@pytest.mark.parametrize(
    ("busy", "train", "expected"), [(3.0, 1.5, 0.4), (3.0, 3.0, 0.8), (0.0, 0.0, 0.8)]
)
def test_a_test_is_shared_by_as_many_as_the_training(
    busy: float, train: float, expected: float
) -> None:
    found = {"split": {"busy_s": busy, "train": train}, "rounds_log": [{"time/evaluate_s": 0.8}]}
    assert document.tested(found) == pytest.approx(expected)


# -- aims and costs --------------------------------------------------------------------------------


def system(seconds: float, peak: float = 100.0, **more: Any) -> dict[str, Any]:
    return {"seconds": seconds, "peak_mb": peak, **more}


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (targets.faster("w1", "bare2"), 1.5),
        (targets.faster("w1", "bare2", "rayfl-bf16"), 3.0),
        (targets.smaller("w1", "bare2"), 0.5),
        (targets.not_training("w1"), 10.0),
        (targets.faster_visits("w3-scaffold"), 4.0),
        (targets.faster_visits("w3-gce"), None),
        (targets.faster("w1", "pfl"), None),
        (targets.faster("w2", "bare2"), None),
    ],
)
def test_aims_are_read_from_one_race(read: targets.Reading, expected: float | None) -> None:
    # Of a run that took longer than the median.
    split = {"train": 1.98, "idle": 0.2, "between": 0.02}
    systems = {
        "bare2": system(3.0, 200.0),
        "rayfl": system(2.0, split=split),
        "rayfl-bf16": system(1.0),
    }
    stacked = {
        "bare2": system(3.0, trained=2.0),
        "rayfl-stacked": system(2.0, split={"train": 0.5}),
    }
    races = {"w1": {"systems": systems}, "w3-scaffold": {"systems": stacked}}
    assert read(races) == pytest.approx(expected)


def test_local_training_is_shown_beside_the_round_where_it_was_measured() -> None:
    theirs, ours = system(3.0, trained=2.0), system(2.0, split={"train": 0.5})
    assert document.visit_cells(theirs, ours) == ["2000 / 500", "4.00"]
    # Races of before are kept, and their document is still written.
    before = system(3.0)
    races = {"w3-gce": {"systems": {"bare2": before, "rayfl-stacked": ours}}}
    assert document.visit_cells(before, ours) == ["-", "-"]
    assert targets.faster_visits("w3-gce")(races) is None


def test_the_coordinators_growth_is_that_of_its_rounds() -> None:
    log = [{"memory/coordinator_mb": 100.0 + i} for i in range(60)]
    races = {"w4": {"systems": {"rayfl-watched": {"rounds_log": log}}}}
    assert targets.grown("w4")(races) == pytest.approx(149 / 104)


@pytest.mark.parametrize(
    ("value", "more", "met"), [(1.2, True, True), (1.1, True, False), (1.1, False, True)]
)
def test_an_aim_is_met_or_missed(value: float, more: bool, met: bool) -> None:
    target = targets.Target("a", lambda races: value, 1.2, more=more)
    assert target.met(value) is met
    assert ("**missed**" in document.aimed(target, {})) is not met


def test_a_method_over_its_cost_model() -> None:
    # Two actors: 100 samples forward in 0.05 s are 1 ms each; a round of 0.2 s leaves 3 ms for each
    # backward pass.
    paced = {"pace/train_s": 0.2, "pace/forward_s": 0.05, "pace/samples": 100.0}
    plain = [{**paced, "cost/forward": 200.0, "cost/backward": 100.0, "time/train_s": 9.0}]
    ds = [
        {
            "time/train_s": 0.33,
            "cost/forward": 100.0,
            "cost/backward": 100.0,
            "cost/server_forward": 100.0,
        }
    ]
    rn = [{"time/train_s": 0.5, "cost/forward": 400.0, "cost/backward": 200.0}]
    logs = {"fedavg": plain, "fedds": ds, "fedrn": rn}
    systems = {name: {"rounds_log": log, "warmup": 0} for name, log in logs.items()}
    found = methods.overheads(systems, em=0.05)
    assert found["fedavg"]["forward"] == pytest.approx(1e-3)
    assert found["fedavg"]["backward"] == pytest.approx(3e-3)
    assert found["fedds"]["predicted"] == pytest.approx(0.25 + 0.05)
    assert found["fedrn"]["ratio"] == pytest.approx(0.5 / 0.5)


# -- workloads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda workload: workload.key)
def test_every_workload_is_a_valid_configuration_for_known_systems(workload: Workload) -> None:
    from rayfl.config.schema import validate_config

    for each in (workload, workloads.quickened(workload)):
        config = validate_config(each.config)
        assert config.training.clients_per_round is not None
        assert set(each.systems) <= set(measure.SYSTEMS)
        for name in each.systems:
            assert 0 <= each.warmup_of(name) < each.rounds_of(name)
        # Flower's first round contains its start.
        assert "flower" not in each.systems or each.warmup_of("flower") >= 1


@pytest.mark.parametrize("key", ["w3", "w5"])
def test_the_plain_network_is_rayfls(key: str) -> None:
    from rayfl.config.schema import validate_config

    workload = WORKLOADS[key]
    small = {
        **workload.config,
        "clients": 8,
        "data": {**workload.config["data"], "samples": 160, "test_samples": 16},
    }
    small["training"] = {**small["training"], "clients_per_round": 2}
    config = validate_config({**small, "fleet": "inline"})
    found = workloads.federation_of(workload, config, rounds=3)
    workloads.refuse_other_network(workload, config, found)
    assert found.cohorts.shape == (3, 2)
    assert sum(found.size(client) for client in range(8)) == 160


def test_another_network_is_noticed() -> None:
    from rayfl.config.schema import validate_config

    config = validate_config(
        {**TINY.config, "model": {"name": "mlp", "hidden": [63]}, "fleet": "inline"}
    )
    found = workloads.federation_of(TINY, config, rounds=1)
    with pytest.raises((AssertionError, RuntimeError), match="size"):
        workloads.refuse_other_network(TINY, config, found)
