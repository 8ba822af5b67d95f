"""The rounds of one run: method, evaluation, measures against the truth, checkpoints.

The engine runs wherever the coordinator is, in an actor or in this process, and knows neither Ray
nor MLflow."""

from __future__ import annotations

import hashlib
import logging
import math
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rayfl.config.schema import Config
from rayfl.errors import PhaseError, RayflError, StorageError, broken
from rayfl.federation.scenario import Scenario
from rayfl.fleet.base import BaseFleet, Errand
from rayfl.fleet.executor import nbytes
from rayfl.protocol import ClientId, NobodyLeft, Ref, Vector
from rayfl.run.assembly import seen_by
from rayfl.run.checkpoint import CheckpointStore, Snapshot
from rayfl.run.codec import Marked
from rayfl.run.evaluation import Judge, Verdict
from rayfl.run.features import share_features

log = logging.getLogger("rayfl")

Record = dict[str, Any]
Emit = Callable[[Record], object]


@dataclass
class Outcome:
    """What a run ends with."""

    rounds: int
    history: list[Record]
    models: dict[ClientId | None, Vector]
    sha256: str
    verdict: Verdict | None
    left: dict[str, NDArray[Any]]


@dataclass
class Progress:
    """The run after its last whole round: everything that a checkpoint needs."""

    round: int
    state: Any
    table: dict[ClientId, dict[str, Ref]]
    history: list[Record] = field(default_factory=list)
    left: dict[str, NDArray[Any]] = field(default_factory=dict)


@dataclass
class Draft:
    """A round that has been trained and may still be under evaluation."""

    round: int
    state: Any
    table: dict[ClientId, dict[str, Ref]]
    left: dict[str, NDArray[Any]] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    clock: dict[str, float] = field(default_factory=dict)
    errand: Errand = field(default_factory=Errand)


class Engine:
    """One run on one fleet."""

    def __init__(
        self,
        config: Config,
        scenario: Scenario,
        checkpoint_uri: str,
        meta: Mapping[str, Any],
        shape: tuple[int, int, int],
        features: Path,
    ) -> None:
        self.config, self.method = config, config.method
        self.scenario = seen_by(config.method, scenario)
        self.uri, self.shape, self.features = checkpoint_uri, shape, features
        threads = max(int(config.resources.cpus_per_client), 1)
        self.meta = {
            **meta,
            "digest": config.digest,
            "scenario": scenario.sha256,
            "versions": {**versions(), "threads": str(threads)},
        }
        self.progress: Progress | None = None
        self.emit: Emit
        self.lock: threading.Lock
        self.fleet: BaseFleet
        self.store: CheckpointStore
        self._saved_round, self._saved_at, self._telling = -1, -math.inf, 0.0
        self._began = 0.0

    def run(self, fleet: BaseFleet, emit: Emit) -> Outcome:
        """Resume or begin, then go on to the last round."""
        self.fleet, self.store, self.lock = fleet, CheckpointStore(self.uri), threading.Lock()
        judge = Judge(self.config, self.scenario, fleet)
        dataset = self.scenario.dataset.sha256
        share_features(
            self.method,
            fleet,
            dataset,
            self.shape,
            self.features,
            lambda text: emit({"note": text}),
        )
        self.progress = progress = self._resumed() or self._begun()
        for record in progress.history:
            emit(record)
        self.emit = emit
        draft = Draft(progress.round, progress.state, progress.table)
        before = (
            progress.history[-1]["clock"].get("time/elapsed_s", 0.0) if progress.history else 0.0
        )
        self._began = time.perf_counter() - before
        while draft.round < self.config.training.rounds:
            try:
                draft = self._round(draft, judge)
            except RayflError:
                # The round before is whole but for its evaluation: what the run reached must not
                # hang on who is first.
                draft.errand.wait()
                raise
        draft.errand.wait()
        if self._saved_round != progress.round:
            self.save()
        return self._outcome(progress, judge)

    def save(self) -> int:
        """Write a checkpoint of the last whole round, from whichever thread asks; the round."""
        progress = self.progress
        if progress is None:
            return -1
        with self.lock:
            if self._saved_round == progress.round:
                return self._saved_round
            state = {"method": progress.state, "left": progress.left}
            snapshot = Snapshot(progress.round, state, progress.table, progress.history, self.meta)
            self.store.write(snapshot, self.fleet.get, self._mark)
            self._saved_round, self._saved_at = progress.round, time.monotonic()
            return self._saved_round

    # -- one round ---------------------------------------------------------------------------------------------

    def _round(self, before: Draft, judge: Judge) -> Draft:
        """One transaction: either all effects of a round stand, or none. Its evaluation may still
        go on."""
        fleet, t = self.fleet, before.round
        started = time.perf_counter()
        fleet.round = t
        try:
            state = self._method_round(before.state, t)
        except NobodyLeft as void:
            log.warning("%s; the model stays as it was", void)
            state, fleet.table = before.state, dict(before.table)
        draft = Draft(t + 1, state, dict(fleet.table))
        now = time.perf_counter()
        # The second is what a run took up to here, over all its sessions: for figures against time.
        draft.clock = {
            "time/train_s": now - started,
            "time/elapsed_s": now - self._began,
            **fleet.clock.take(),
        }
        draft.metrics = {
            **fleet.take_logged(),
            **self._costs(),
            **diverged_metrics(fleet.take_diverged()),
        }
        # What was stored before the first round is news in it.
        draft.metrics |= judge.label_metrics(changed({} if t == 0 else before.table, draft.table))
        draft.metrics |= judge.estimate_metrics(fleet.take_estimates(), fleet.take_answers())
        # The round before must be closed first: histories, checkpoints and what is left are in
        # order.
        before.errand.wait()
        draft.left = dict(fleet.left)
        if (
            draft.round % self.config.evaluation.every == 0
            or draft.round == self.config.training.rounds
        ):
            draft.errand = judge.begin(
                self.method, state, lambda verdict, s: self._close(draft, verdict.metrics, s)
            )
        else:
            self._close(draft, {}, 0.0)
        return draft

    def _close(self, draft: Draft, tested: Mapping[str, float], seconds: float) -> None:
        """The round is whole: it counts, is told of, and may be saved."""
        clock = {**draft.clock, "time/evaluate_s": seconds, "time/track_s": self._telling}
        record = {
            "round": draft.round,
            "metrics": plain({**draft.metrics, **tested}),
            "clock": clock,
        }
        progress = self.progress
        assert progress is not None
        with self.lock:
            progress.round, progress.state, progress.table = draft.round, draft.state, draft.table
            progress.left = draft.left
            progress.history.append(record)
        started = time.perf_counter()
        self.emit(record)
        self._checkpoint_if_due()
        # Known too late for its own record: that of the next round has it.
        self._telling = time.perf_counter() - started

    def _method_round(self, state: Any, t: int) -> Any:
        """The method's round; what it raises itself is named, with its traceback."""
        try:
            return self.method.round(state, self.fleet, t)
        except RayflError:
            raise
        except Exception as error:
            if self.fleet.lost(error):
                raise
            where = f"{type(self.method).__name__}.round raised at the coordinator in round {t}"
            raise PhaseError(f"{where}:\n{traceback.format_exc().rstrip()}") from error

    def _costs(self) -> dict[str, float]:
        taken = self.fleet.costs.take()
        metrics = {
            f"cost/{name}": float(value)
            for name, value in taken.items()
            if name not in {"up", "down", "participants"}
        }
        metrics |= {f"cost/{way}_mb": taken[way] / 1e6 for way in ("up", "down")}
        return {**metrics, "clients/participants": float(taken["participants"])}

    def _checkpoint_if_due(self) -> None:
        rules, progress = self.config.checkpoint, self.progress
        assert progress is not None
        due = rules.every and progress.round % rules.every == 0
        if due and time.monotonic() - self._saved_at >= rules.min_seconds:
            self.save()

    # -- beginning and resuming --------------------------------------------------------------------------------

    def _begun(self) -> Progress:
        self.fleet.round = -1
        self.method.check(self.fleet)
        state = self.method.init(self.fleet, self.fleet.initial())
        self.fleet.costs.take()
        return Progress(0, state, dict(self.fleet.table), left=dict(self.fleet.left))

    def _resumed(self) -> Progress | None:
        snapshot = self.store.newest(self._restore)
        if snapshot is None:
            return None
        self._saved_round, self._saved_at = snapshot.round, time.monotonic()
        self.fleet.table = {client: dict(entries) for client, entries in snapshot.clients.items()}
        left = self.fleet.left = dict(snapshot.state["left"])
        log.info("resumed after round %d", snapshot.round)
        table: Any = dict(snapshot.clients)
        return Progress(
            snapshot.round, snapshot.state["method"], table, snapshot.history, dict(left)
        )

    def _restore(self, manifest: Mapping[str, Any]) -> Snapshot:
        meta = manifest["meta"]
        for name in ("digest", "scenario"):
            if meta[name] != self.meta[name]:
                what = "configuration" if name == "digest" else "scenario"
                raise StorageError(
                    broken(
                        f"a checkpoint belongs to this run's {what} ({self.meta[name][:12]})",
                        meta[name][:12],
                    )
                )
        if meta["versions"] != self.meta["versions"]:
            log.warning(
                "library versions changed since the checkpoint: bits may differ (%s)",
                meta["versions"],
            )
        state, history = self.store.state(manifest, self._modules(), self._unmark)
        clients = {
            int(client): {
                key: self._stored(int(client), key, named) for key, named in entries.items()
            }
            for client, entries in manifest["clients"].items()
        }
        return Snapshot(manifest["round"], state, clients, history, meta)

    def _stored(self, client: ClientId, key: str, named: tuple[str, str]) -> Ref:
        def put(value: Any) -> Ref:
            ref = self.fleet.put({key: value})
            return Ref(ref.handle, key, nbytes(value))

        ref: Ref = self.store.entry(client, key, named, put)
        return ref

    def _mark(self, value: Any) -> Any:
        return Marked(self.fleet.get(value)) if isinstance(value, Ref) else value

    def _unmark(self, value: Any) -> Ref:
        return self.fleet.put(value)

    def _modules(self) -> set[str]:
        """Where dataclasses of a method's state may come from."""
        return {cls.__module__ for cls in type(self.method).__mro__} - {"builtins"}

    # -- ending ------------------------------------------------------------------------------------------------

    def _outcome(self, progress: Progress, judge: Judge) -> Outcome:
        models = judge.models(self.method, progress.state)
        # Clients of one cluster share one copy.
        fetched = {id(ref.handle): np.array(self.fleet.get(ref)) for ref in models.values()}
        vectors = {client: fetched[id(ref.handle)] for client, ref in models.items()}
        digest = hashlib.sha256()
        for client in sorted(vectors, key=lambda client: -1 if client is None else client):
            digest.update(f"{client}".encode() + vectors[client].astype("<f4").tobytes())
        return Outcome(
            progress.round,
            progress.history,
            vectors,
            digest.hexdigest(),
            judge.last,
            dict(self.fleet.left),
        )


def changed(
    before: Mapping[ClientId, Mapping[str, Ref]], after: Mapping[ClientId, Mapping[str, Ref]]
) -> dict[ClientId, dict[str, Ref]]:
    """The entries of the state table that a round wrote."""
    news = {
        client: {
            key: ref for key, ref in entries.items() if before.get(client, {}).get(key) is not ref
        }
        for client, entries in after.items()
        if entries is not before.get(client)
    }
    return {client: entries for client, entries in news.items() if entries}


def diverged_metrics(diverged: list[ClientId]) -> dict[str, float]:
    """How many updates were not finite, and whose."""
    named = {f"clients/diverged/{client}": 1.0 for client in diverged}
    return {"clients/diverged": float(len(diverged)), **named}


def plain(metrics: Mapping[str, float]) -> dict[str, float]:
    """Python floats; a measure that has no value this round is absent."""
    return {name: float(value) for name, value in metrics.items() if np.isfinite(value)}


def versions() -> dict[str, str]:
    """The libraries whose kernels decide bits."""
    # torch's own word, which names its build; to import torch for it would take a second and 250
    # MB.
    [folder] = find_spec("torch").submodule_search_locations  # type: ignore[union-attr, misc]
    torch = run_path(str(Path(folder, "version.py")))["__version__"]
    return {"python": sys.version.split()[0], "numpy": np.__version__, "torch": torch}
