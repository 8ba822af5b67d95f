"""Starting, following and restarting the coordinator; what fits a cluster and what does not."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rayfl.errors import DataError, ResourceError
from rayfl.fleet.on_ray import connection, coordinator as module
from rayfl.fleet.on_ray.connection import connect_ray
from rayfl.fleet.on_ray.coordinator import count_room_on, drive_run, fit_placement, store_for_hiring
from rayfl.fleet.on_ray.placement import Placement
from tests.fleet import phases
from tests.fleet.toys import CLIENTS, holdings, spec

Emit = Callable[[dict[str, Any]], object]


# -- what fits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (("auto", 1.0, 0.0, "cpu", 100), Placement(8, 1.0, 0.0, False)),
        (("auto", 1.0, None, "cpu", 100), Placement(8, 1.0, 0.0, False)),
        (("auto", 1.0, None, "cpu", 3), Placement(3, 1.0, 0.0, False)),
        (("auto", 0.1, 0.0, "cpu", 1000), Placement(80, 0.1, 0.0, False)),
        (("auto", 1.0, 0.25, "cpu", 100), Placement(8, 1.0, 0.25, False)),
        (("auto", 1.0, 0.4, "cpu", 100), Placement(4, 1.0, 0.4, False)),
        (("auto", 1.0, None, "auto", 100), Placement(8, 1.0, 0.25, True)),
        (("auto", 1.0, 0.0, "auto", 100), Placement(8, 1.0, 0.0, False)),
        (("auto", 0.5, 1.0, "cuda", 100), Placement(2, 0.5, 1.0, True)),
        ((2, 4.0, 0.5, "cpu", 1), Placement(2, 4.0, 0.5, False)),
    ],
)
def test_placements_that_fit(asked: tuple[Any, ...], expected: Placement, cluster: None) -> None:
    assert fit_placement(*asked) == expected


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        (
            (9, 1.0, 0.0, "cpu", 9),
            "9 client actors of 1 CPU and 0 GPU must fit the cluster; got 8 CPUs .* room for 8",
        ),
        (("auto", 16.0, 0.0, "cpu", 9), "of 16 CPU .* room for 0. Lower resources.actors"),
        ((5, 1.0, 0.4, "cpu", 9), "5 client actors of 1 CPU and 0.4 GPU .* 2 GPUs, room for 4"),
        ((3, 1.0, 1.0, "cpu", 9), "1 GPU must fit the cluster; got 8 CPUs and 2 GPUs, room for 2"),
        (
            (1, 1.0, 3.0, "cuda", 9),
            "device: cuda with 3.0 GPU an actor needs a GPU in the cluster; got 2 GPUs",
        ),
        ((1, 1.0, 0.0, "cuda", 9), "device: cuda needs resources.gpus_per_client above 0; got 0.0"),
        (
            (1, 1.0, 1.5, "cpu", 9),
            "gpus_per_client is a fraction of a GPU or a whole number; got 1.5",
        ),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(
    asked: tuple[Any, ...], match: str, cluster: None
) -> None:
    with pytest.raises(ResourceError, match=match):
        fit_placement(*asked)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_gpus_that_are_not_there_are_refused(
    device: str, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    monkeypatch.setattr(ray, "cluster_resources", lambda: {"CPU": 8.0})
    match = (
        f"device: {device} with 0.25 GPU an actor needs a GPU in the cluster; got 0 GPUs. "
        "Set device: cpu"
    )
    with pytest.raises(ResourceError, match=match):
        fit_placement("auto", 1.0, 0.25, device, 10)


@pytest.mark.parametrize(
    ("node", "cpus", "gpus", "room"),
    [
        ({"CPU": 3.0}, 2.0, 0.0, 1),
        ({"CPU": 1.0}, 0.1, 0.0, 10),
        ({"CPU": 4.0}, 1.0, 0.25, 0),
        ({"CPU": 8.0, "GPU": 1.0}, 1.0, 0.3, 3),
        ({"CPU": 8.0, "GPU": 4.0}, 1.0, 2.0, 2),
        ({"CPU": 2.0, "GPU": 4.0}, 1.0, 0.25, 2),
        ({}, 1.0, 0.0, 0),
    ],
)
def test_room_on_one_node(node: dict[str, float], cpus: float, gpus: float, room: int) -> None:
    assert count_room_on(node, cpus, gpus) == room


# -- connecting ------------------------------------------------------------------------------------


def test_a_connection_that_is_there_is_used_and_kept(cluster: None) -> None:
    import ray

    with connect_ray(None):
        assert ray.is_initialized()
    assert ray.is_initialized()


@pytest.mark.parametrize(
    "error", [ConnectionError("nobody there"), RuntimeError("no"), ValueError("odd")]
)
@pytest.mark.parametrize("address", [None, "ray://nowhere:1"])
def test_a_cluster_that_is_not_there_is_a_clear_error(
    error: Exception, address: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    def refuse(where: str, **settings: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    # Nobody beyond this machine is asked.
    monkeypatch.setattr(connection, "refuse_silent_address", lambda *_: None)
    place = address or "this machine"
    with (
        pytest.raises(
            ResourceError, match=f"no Ray could be reached or started at {place}: {error}"
        ),
        connect_ray(address),
    ):
        pass


@pytest.mark.parametrize("address", [None, "10.0.0.1:6379"])
def test_only_our_own_connection_ends(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    steps: list[Any] = []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    # Nobody beyond this machine is asked.
    monkeypatch.setattr(connection, "refuse_silent_address", lambda *_: None)
    here = [{"Alive": True, "NodeManagerAddress": "127.0.0.1"}]
    monkeypatch.setattr(ray, "init", lambda where, **settings: steps.append(where))
    monkeypatch.setattr(ray, "shutdown", lambda: steps.append("shutdown"))
    monkeypatch.setattr(ray, "nodes", lambda: here)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    with pytest.raises(KeyError, match="inside"), connect_ray(address):
        raise KeyError("inside")
    assert steps == [address or "local", "shutdown"]


# -- driving ---------------------------------------------------------------------------------------


@dataclass
class Counting:
    """A run of some rounds that notes each in a file, dies where it is told to, and goes on from
    its notes."""

    folder: str
    rounds: int = 4
    deaths: int = 0
    raises: Exception | None = None

    def run(self, fleet: Any, emit: Emit) -> str:
        if self.raises is not None:
            raise self.raises
        done = Path(self.folder, "rounds")
        for t in range(int(done.read_text()) if done.exists() else 0, self.rounds):
            self.die_if_due(t)
            total = (
                sum(report["n"] for report in fleet.map(phases.describe, CLIENTS).values())
                if t == 0
                else 0
            )
            done.write_text(str(t + 1))
            emit({"round": t + 1, "total": total})
        return "the end"

    def die_if_due(self, t: int) -> None:
        notes = Path(self.folder, "deaths")
        so_far = len(notes.read_text()) if notes.exists() else 0
        if t == 2 and so_far < self.deaths:
            notes.write_text("x" * (so_far + 1))
            os.kill(os.getpid(), signal.SIGKILL)

    def save(self) -> int:
        Path(self.folder, "saved").touch()
        return self.rounds


def driven(
    run: Counting, emit: Callable[[dict[str, Any]], int] | None = None
) -> tuple[Any, list[dict[str, Any]]]:
    """The run's end, and the records on the way."""
    records: list[dict[str, Any]] = []

    def note(record: dict[str, Any]) -> int:
        records.append(record)
        return len(records)

    return drive_run(
        run, store_for_hiring(spec(), holdings(), Placement(1, cpus=0.5)), emit or note
    ), records


def test_every_record_arrives_in_order(tmp_path: Path, cluster: None) -> None:
    ended, records = driven(Counting(str(tmp_path)))
    assert ended == "the end"
    assert records == [{"round": t, "total": 20 if t == 1 else 0} for t in (1, 2, 3, 4)]


def test_a_coordinator_that_dies_goes_on(
    tmp_path: Path, cluster: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "rayfl"):
        ended, records = driven(Counting(str(tmp_path), deaths=1))
    assert ended == "the end"
    assert [record["round"] for record in records][-2:] == [3, 4]
    assert "the coordinator died after round" in caplog.text


@pytest.mark.long
def test_a_coordinator_that_gets_nowhere_is_given_up(
    tmp_path: Path, cluster: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DEATHS_WITHOUT_PROGRESS", 2)
    with pytest.raises(ResourceError, match=r"the coordinator died 2 times at round"):
        driven(Counting(str(tmp_path), deaths=99))
    assert (tmp_path / "deaths").read_text() == "xx"


def test_an_error_for_people_arrives_as_itself(tmp_path: Path, cluster: None) -> None:
    with pytest.raises(DataError, match=r"^labels lie in \[0, 3\); got 7$"):
        driven(Counting(str(tmp_path), raises=DataError("labels lie in [0, 3); got 7")))


def test_any_other_error_arrives_with_its_traceback(tmp_path: Path, cluster: None) -> None:
    from ray.exceptions import RayTaskError

    with pytest.raises(RayTaskError, match=r"(?s)in run.*KeyError: 'a bug'"):
        driven(Counting(str(tmp_path), raises=KeyError("a bug")))


def test_an_interrupted_driver_asks_for_a_checkpoint(tmp_path: Path, cluster: None) -> None:
    def interrupt(record: dict[str, Any]) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match=r"^$"):
        driven(Counting(str(tmp_path)), interrupt)
    assert (tmp_path / "saved").exists()
