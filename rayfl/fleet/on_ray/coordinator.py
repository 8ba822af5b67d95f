"""The coordinator actor, and the driver's side of it: start it, follow it, start it again when it
dies."""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from rayfl.errors import RayflError, ResourceError, broken
from rayfl.fleet.base import Spec
from rayfl.fleet.executor import Holdings
from rayfl.fleet.host import spare_imports
from rayfl.fleet.on_ray.placement import Placement, count_keepers

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from rayfl.fleet.on_ray.hiring import Hiring
    from rayfl.fleet.on_ray.ray_fleet import RayFleet

log = logging.getLogger("rayfl")

DEATHS_WITHOUT_PROGRESS = 3
JOB_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Where Ray tells the driver of a submitted job what was submitted."""
SUBMISSION = "job_submission_id"
HEED_SECONDS = 0.2
LINGER_SECONDS = 0.2
GRACE_SECONDS = 20.0
"""For the last checkpoint: Slurm and Kubernetes kill 30 seconds after they asked."""


Record = dict[str, Any]
"""What a run tells of a round."""


class DrivenRun(Protocol):
    """What the coordinator runs: the engine of one experiment."""

    def run(self, fleet: RayFleet, emit: Callable[[Record], object]) -> object: ...

    def save(self) -> int: ...


@dataclass(frozen=True)
class Ended:
    """How a run ended: with an outcome, or with an error that a person can read."""

    outcome: object = None
    error: RayflError | None = None


class Coordinator:
    """Holds reports and references, runs the rounds. Its methods run in threads of their own."""

    def __init__(self, run: list[ObjectRef], hiring: Hiring) -> None:
        self.reference, self.hiring = run[0], hiring
        self.job: DrivenRun | None = None
        self.records: list[Record] = []
        self.ended = False
        self.news = threading.Condition()

    def run(self) -> Ended:
        """All rounds; returns when the run is over."""
        import ray

        # The actors start while this process learns what the run is, which takes it through the
        # same imports.
        hired = [self.hiring.hire() for _ in range(self.hiring.placement.actors)]
        from rayfl.fleet.on_ray.ray_fleet import RayFleet

        try:
            with spare_imports():
                job, spec, holdings = ray.get(
                    [self.reference, self.hiring.spec, self.hiring.holdings]
                )
            fleet = RayFleet(spec, holdings, self.hiring, hired)
            self.job = job
            try:
                return Ended(outcome=job.run(fleet, self._emit))
            finally:
                fleet.close()
        except RayflError as error:
            return Ended(error=error)
        finally:
            with self.news:
                self.ended = True
                self.news.notify_all()

    def progress(self, seen: int) -> list[Record]:
        """Blocks until there are more than `seen` records, or the run is over; the new ones."""
        with self.news:
            self.news.wait_for(lambda: len(self.records) > seen or self.ended)
            # Rounds of milliseconds are told of together: following each would take more time than
            # it.
            self.news.wait_for(lambda: self.ended, timeout=LINGER_SECONDS)
            return self.records[seen:]

    def save(self) -> int:
        """Checkpoint the last whole round now; its number, -1 before there is one."""
        return -1 if self.job is None else self.job.save()

    def _emit(self, record: Record) -> None:
        with self.news:
            self.records.append(record)
            self.news.notify_all()


def describe_cluster() -> str:
    """How large the cluster is."""
    import ray

    total = ray.cluster_resources()
    nodes = sum(node["Alive"] for node in ray.nodes())
    return f"{nodes} nodes, {total.get('CPU', 0):g} CPUs, {total.get('GPU', 0):g} GPUs"


def describe_job() -> dict[str, str]:
    """Which job of Ray's this is; and, of one that was submitted, under which id."""
    import ray

    found = {"ray_job": str(ray.get_runtime_context().get_job_id())}
    told = json.loads(os.environ.get(JOB_CONFIG, "{}")).get("metadata", {})
    if SUBMISSION in told:
        found["ray_submission"] = str(told[SUBMISSION])
    return found


def fit_placement(
    actors: int | str,
    cpus: float,
    gpus: float | str | None,
    device: str,
    cohort: int,
    probe: Callable[[], float] | None = None,
    keepers: int | str = 0,
) -> Placement:
    """A placement that the cluster can hold, or a ResourceError that says what is missing.

    `probe` measures the fraction of a GPU that a client needs, for `gpus: auto`.
    """
    import ray

    total = ray.cluster_resources()
    gpus_there = float(total.get("GPU", 0))
    cuda = device == "cuda" or (device == "auto" and gpus_there > 0 and gpus != 0)
    # Where nothing is said, or until it is measured: four clients to a GPU.
    share = (0.25 if cuda else 0.0) if gpus is None or isinstance(gpus, str) else gpus
    if (cuda or share) and gpus_there < max(share, 1e-9):
        rule = f"device: {device} with {share} GPU an actor needs a GPU in the cluster"
        raise ResourceError(
            broken(
                rule, f"{gpus_there:g} GPUs", "Set device: cpu and resources.gpus_per_client: 0."
            )
        )
    if cuda and gpus == "auto":
        if probe is None:
            rule = "resources.gpus_per_client is a number where several runs share the GPUs"
            raise ResourceError(
                broken(rule, "auto", "Measure it with a run of its own, then set it.")
            )
        share = probe()
    if cuda and share == 0:
        raise ResourceError(broken("device: cuda needs resources.gpus_per_client above 0", share))
    if share > 1 and share != int(share):
        raise ResourceError(
            broken("resources.gpus_per_client is a fraction of a GPU or a whole number", share)
        )
    room = sum(
        count_room_on(node["Resources"], cpus, share) for node in ray.nodes() if node["Alive"]
    )
    if room < 1 or (isinstance(actors, int) and actors > room):
        rule = f"{actors} client actors of {cpus:g} CPU and {share:g} GPU must fit the cluster"
        found = f"{total.get('CPU', 0):g} CPUs and {gpus_there:g} GPUs, room for {room}"
        raise ResourceError(
            broken(
                rule, found, "Lower resources.actors, resources.cpus_per_client or gpus_per_client."
            )
        )
    count = min(room, cohort) if actors == "auto" else int(actors)
    return Placement(count, cpus, share, cuda, count_keepers(keepers, count))


def count_room_on(node: Mapping[str, float], cpus: float, gpus: float) -> int:
    """How many actors one node can hold; no actor's fraction of a GPU spans two."""
    # 0.2 fits into 0.6 three times, which rounding would deny.
    room = int(node.get("CPU", 0) / cpus + 1e-9)
    if not gpus:
        return room
    on_a_gpu = int(1 / gpus + 1e-9)
    return min(
        room, int(node.get("GPU", 0)) * on_a_gpu if on_a_gpu else int(node.get("GPU", 0) / gpus)
    )


def store_for_hiring(spec: Spec, holdings: Holdings, placement: Placement) -> Hiring:
    """How actors are hired, with the arrays in the object store: the caller may drop its own."""
    import ray

    from rayfl.fleet.on_ray.hiring import Hiring

    return Hiring(ray.put(spec), ray.put(holdings), placement)


def drive_run(
    run: DrivenRun,
    hiring: Hiring,
    emit: Callable[[Record], int],
    heed: Callable[[], object] = lambda: None,
) -> Any:
    """Run to the end. A coordinator that dies is started again and goes on from its last
    checkpoint.

    `emit` answers how many rounds are known, which tells whether a restarted coordinator gets
    anywhere; `heed` raises when the run has been asked to stop."""
    import ray
    from ray.exceptions import ObjectLostError, RayActorError

    reference = ray.put(run)
    deaths, reached = 0, -1
    while True:
        # Calls at a time: the run itself, who follows it, who wants it saved; and one to spare.
        actor = ray.remote(Coordinator).options(
            num_cpus=0, max_concurrency=4, max_restarts=0, scheduling_strategy=pin_to_this_node()
        )
        coordinator = actor.remote([reference], hiring)
        progress = Following(coordinator, emit, heed)
        try:
            ended: Ended = progress.follow()
        except (RayActorError, ObjectLostError) as error:
            deaths = deaths + 1 if progress.rounds <= reached else 1
            reached = max(reached, progress.rounds)
            if deaths >= DEATHS_WITHOUT_PROGRESS:
                raise ResourceError(
                    f"the coordinator died {deaths} times at round {reached}:\n{error}"
                ) from error
            if isinstance(error, ObjectLostError):
                log.warning(
                    "a node or a keeper died with a part of the run after round %d; "
                    "going on from the last checkpoint",
                    reached,
                )
            else:
                log.warning("the coordinator died after round %d and is started again", reached)
            continue
        except BaseException:
            # Ctrl-C, or a job that is stopped: the rounds so far are somebody's hours.
            progress.save_quickly()
            raise
        finally:
            # Left to Ray, it would first finish what it is doing, which is the run.
            ray.kill(coordinator)
        if ended.error is not None:
            raise ended.error
        return ended.outcome


def pin_to_this_node() -> NodeAffinitySchedulingStrategy | None:
    """This node, for the coordinator: checkpoints lie beside the run's folder. Ray's own choice
    would be any node.

    Inside a placement group (a trial of a sweep) it stays in the group, to which its actors'
    processors belong."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if ray.util.get_current_placement_group() is not None:
        return None
    return NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)


def _grace_seconds() -> float:
    """How long a checkpoint may take after the driver was asked to stop."""
    if "RAY_JOB_CONFIG_JSON_ENV_VAR" not in os.environ:
        return GRACE_SECONDS
    # `ray job stop` kills three seconds after it asked, or as its environment has it.
    given = float(os.environ.get("RAY_JOB_STOP_WAIT_TIME_S", "3"))
    return max(given - 0.5, 0.5)


class Following:
    """One coordinator, followed by the driver."""

    def __init__(
        self, coordinator: ActorHandle, emit: Callable[[Record], int], heed: Callable[[], object]
    ) -> None:
        self.coordinator, self.emit, self.heed = coordinator, emit, heed
        self.rounds = 0

    def follow(self) -> Ended:
        """Hand on every record as it comes, until the run is over."""
        import ray

        over, seen = self.coordinator.run.remote(), 0
        news = self.coordinator.progress.remote(seen)
        while True:
            while not ray.wait([news], num_returns=1, timeout=HEED_SECONDS)[0]:
                self.heed()
            self.heed()
            records = ray.get(news)
            for record in records:
                self.rounds = self.emit(record)
            seen += len(records)
            if not records:
                ended: Ended = ray.get(over)
                return ended
            news = self.coordinator.progress.remote(seen)

    def save_quickly(self) -> None:
        """Ask for a checkpoint of the last whole round, within the time that a stopped job is
        given."""
        import ray

        try:
            ray.get(self.coordinator.save.remote(), timeout=_grace_seconds())
        except Exception as error:
            log.warning(
                "no fresh checkpoint could be written (%s): the one before it stands",
                type(error).__name__,
            )
